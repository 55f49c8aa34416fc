"""``metrics.jsonl``: one JSON object per line, appended as it happens; and TensorBoard beside it, if asked for."""

import json
import os
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from acmo.lab.atomic import explained, to_json
from acmo.lab.errors import missing_extra

NAME = "metrics.jsonl"
Row = dict[str, Any]


class MetricsWriter:
    """The metrics of a run.

    Args:
      folder: the run's.
      size: bytes to keep of what is there already: what a checkpoint knows of; the lines after it will come again.
      step: how many steps were taken before.
      tensorboard: write event files too.
    """

    def __init__(self, folder: Path, size: int = 0, *, step: int = 0, tensorboard: bool = False) -> None:
        self.path = folder / NAME
        with explained(self.path):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self._file, size)
        self.size = size
        self._board = _open_tensorboard(folder, step) if tensorboard else None

    def write(self, kind: str, step: int, epoch: float, seconds: float, **values: Any) -> None:
        """Append a line; should the disk be full, no half of it stays."""
        row = {"kind": kind, "step": step, "epoch": epoch, "seconds": round(seconds, 6), **values}
        line = (to_json(row, ensure_ascii=False) + "\n").encode()
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
                if key not in ("kind", "step") and isinstance(value, (int, float)) and isfinite(value):
                    self._board.add_scalar(f"{kind}/{key}", value, step)

    def sync(self) -> int:
        """Make what is written outlive a power cut, and return the size of the file then."""
        with explained(self.path):
            os.fsync(self._file)
        return self.size

    def close(self) -> None:
        """Close the file, and TensorBoard's."""
        os.close(self._file)
        if self._board is not None:
            self._board.close()


class MetricRows(NamedTuple):
    """The lines of a file that could be read, and how many could not."""

    rows: list[Row]
    damaged: int

    def of(self, kind: str) -> list[Row]:
        """Return the rows of one kind: ``train``, ``valid``, ``test`` or ``sample``."""
        return [row for row in self.rows if row["kind"] == kind]


def read_metrics(folder: Path) -> MetricRows:
    """Read a run's metrics; a line that was cut short by a kill is counted and left out."""
    try:
        lines = (folder / NAME).read_bytes().split(b"\n")
    except OSError:
        return MetricRows([], 0)
    rows, damaged = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append({"epoch": 0, "seconds": 0.0, **row, "kind": row["kind"], "step": int(row["step"])})
        except (ValueError, TypeError, KeyError):
            damaged += 1
    return MetricRows(rows, damaged)


def ends_within_a_line(folder: Path) -> bool:
    """Return whether a run's metrics end with a line that was cut short, without reading the others."""
    try:
        with (folder / NAME).open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def _open_tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_extra("tensorboard", "dev") from None
    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)
