"""Write files completely or not at all, lock them, and explain write errors such as a full disk."""

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
    """Write a file atomically: a reader finds the complete old or new file, also after a power cut."""
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
    """Remove half-written files of killed processes; no other process may be writing into the folder."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON without passwords and home folders; numbers that are not finite become null."""
    write(path, redact(to_json(content, indent=2, ensure_ascii=False) + "\n").encode())


def to_json(content: Any, **layout: Any) -> str:
    """Return strict JSON; values are converted one by one only if one of them is not finite."""
    try:
        return json.dumps(content, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(strict(content), allow_nan=False, **layout)


def strict(value: Any) -> Any:
    """Return the value with None for NaN and the infinities, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power cut, where the system supports it."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise a LabError with a full sentence for an OSError of a write."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise LabError(
                f"no space is left to write {path} ({error.strerror}); everything written before is still there: "
                "free some space and give the same command again to resume from the last checkpoint"
            ) from error
        raise LabError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, created if missing; wait for the process that holds it. The end of a process releases it."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        _lock(file.fileno())
        yield


def _lock(file: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows; tries for ten seconds, then raises
        import msvcrt

        msvcrt.locking(file, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(file, fcntl.LOCK_EX)
