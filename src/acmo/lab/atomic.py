"""Files that are there whole or not at all, locks on them, and the sentence for a disk that is full."""

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acmo.lab.errors import LabError
from acmo.lab.redaction import redact

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write(path: Path, content: bytes) -> None:
    """Write a file so that whoever looks finds the old one or the new one, whole, also after a power cut."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with explained(path):
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync_folder(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def sweep(folder: Path) -> None:
    """Remove what kills left half written in a folder that nobody else writes into now."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON, where what is not finite is null, without passwords and home folders."""
    write(path, redact(to_json(content, indent=2, ensure_ascii=False) + "\n").encode())


def to_json(content: Any, **layout: Any) -> str:
    """Return strict JSON; values are looked at one by one only where one of them is not finite."""
    try:
        return json.dumps(content, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(strict(content), allow_nan=False, **layout)


def strict(value: Any) -> Any:
    """The same with null where JSON has no word: NaN and the infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value


def sync_folder(folder: Path) -> None:
    """Make sure that a new name in a folder outlives a power cut, where the system offers that."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the system says about a write into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise LabError(
                f"no space is left to write {path} ({error.strerror}); everything written before is still there: "
                "make room and start the same again, it goes on from its last checkpoint"
            ) from error
        raise LabError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, made where it is missing; wait for whoever holds it. Dying gives it back."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        _take(file.fileno())
        yield


def _take(file: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows; tries for ten seconds, then says so
        import msvcrt

        msvcrt.locking(file, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(file, fcntl.LOCK_EX)
