"""``metrics.jsonl``: one JSON object per line, appended as it happens, and passed on to trackers, if there are any."""

import json
import os
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from acmo.lab.atomic import explained, to_json

NAME = "metrics.jsonl"
Row = dict[str, Any]


class Tracker(Protocol):
    """Another place for the numbers of a run (`acmo.lab.runs.trackers`)."""

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a line."""

    def close(self, status: str | None) -> None:
        """End the run; the status is None if it was stopped."""


class MetricsWriter:
    """The metrics of a run.

    Args:
      folder: the run's.
      size: bytes to keep of what is there already: what a checkpoint knows of; the lines after it will come again.
      trackers: where its numbers go too.
    """

    def __init__(self, folder: Path, size: int = 0, trackers: Sequence[Tracker] = ()) -> None:
        self.path = folder / NAME
        with explained(self.path):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self._file, size)
        self.size = size
        self._trackers = trackers

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
        if self._trackers:
            numbers = {k: v for k, v in row.items() if k != "step" and isinstance(v, int | float) and isfinite(v)}
            for tracker in self._trackers:
                tracker.write(kind, step, numbers)

    def sync(self) -> int:
        """Make what is written outlive a power cut, and return the size of the file then."""
        with explained(self.path):
            os.fsync(self._file)
        return self.size

    def close(self, status: str | None = None) -> None:
        """Close the file and the trackers; the status is None if the run was stopped."""
        os.close(self._file)
        for tracker in self._trackers:
            tracker.close(status)


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
