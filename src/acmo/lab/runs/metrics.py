"""``metrics.jsonl``: one JSON object a line, appended as it happens; and TensorBoard beside it, if asked for."""

import json
import os
from pathlib import Path
from typing import Any

from acmo.lab.atomic import explained, strict
from acmo.lab.errors import missing_extra


class Metrics:
    """The metrics of a run.

    Args:
      folder: the run's.
      size: bytes to keep of what is there already: what a checkpoint knows of; the lines after it will come again.
      tensorboard: write event files too.
    """

    def __init__(self, folder: Path, size: int = 0, *, step: int = 0, tensorboard: bool = False) -> None:
        self.path = folder / "metrics.jsonl"
        with explained(self.path):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self._file, size)
        self.size = size
        self._board = _board(folder, step) if tensorboard else None

    def write(self, kind: str, step: int, epoch: float, seconds: float, **values: Any) -> None:
        """Append a line; should the disk be full, no half of it stays."""
        row = strict({"kind": kind, "step": step, "epoch": epoch, "seconds": round(seconds, 6), **values})
        line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
        with explained(self.path):
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._file, line[written:])
            except OSError:
                os.ftruncate(self._file, self.size)
                raise
        self.size += len(line)
        if self._board is not None:
            for key, value in row.items():
                if key not in ("kind", "step") and isinstance(value, (int, float)):
                    self._board.add_scalar(f"{kind}/{key}", value, step)

    def sync(self) -> int:
        """Make what is written outlive a power cut; the file's size then."""
        with explained(self.path):
            os.fsync(self._file)
        return self.size

    def close(self) -> None:
        os.close(self._file)
        if self._board is not None:
            self._board.close()


def read(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The rows of a run's metrics, of one kind or of all; a last line that was cut short by a kill is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if kind is None or row["kind"] == kind]


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_extra("tensorboard", "dev") from None
    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)
