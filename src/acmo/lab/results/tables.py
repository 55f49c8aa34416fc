"""Tables in files: JSON lines and CSV, whole or not at all."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from acmo.lab import atomic
from acmo.lab.redaction import redact

Row = dict[str, Any]


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write one JSON object per line."""
    text = "".join([atomic.to_json(row) + "\n" for row in rows])
    atomic.write(path, redact(text).encode())


def read_lines(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSON-lines file; what is no JSON object, such as a last line cut short, is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], without: Sequence[str] = ()) -> None:
    """Write a table: what is nested becomes ``outer.inner`` columns, a list becomes JSON; some columns are left out."""
    flat = list(map(flatten, rows))
    every = dict.fromkeys(chain.from_iterable(flat))
    nested = {column.partition(".")[0] for column in every if "." in column}  # None where there is nothing inside
    columns = [column for column in every if column not in without and column not in nested]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    atomic.write(path, redact(text.getvalue()).encode())


def flatten(row: Mapping[str, Any]) -> Row:
    """Return the row with one level of keys.

    Example:
      >>> flatten({"lr": 0.1, "test": {"accuracy": 1.0}, "betas": [0.9, 0.99]})
      {'lr': 0.1, 'test.accuracy': 1.0, 'betas': '[0.9, 0.99]'}
    """
    flat: Row = {}
    stack = [("", iter(row.items()))]  # of what is being read, the innermost last
    while stack:
        prefix, items = stack[-1]
        for key, value in items:
            if isinstance(value, Mapping):
                stack.append((f"{prefix}{key}.", iter(value.items())))
                break
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list | tuple) else value
        else:
            stack.pop()
    return flat
