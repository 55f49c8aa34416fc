"""Checkpoints: whole or absent, the last two kept, a damaged one named and the one before it used."""

import hashlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from acmo.lab import atomic

KEPT = 2
_NAME = re.compile(r"step-(\d+)\.pt")


class DamagedCheckpoint(UserWarning):
    """A checkpoint could not be read; an older one is used, or the run begins again."""


def save(folder: Path, step: int, state: dict[str, Any], keep: int = KEPT) -> Path:
    """Write the state after ``step`` steps, then remove all but the last few.

    A kill or a full disk at any moment leaves what was there.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with atomic.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step}.pt"
    atomic.write(path, _sealed(buffer.getvalue()))
    for old in found(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def found(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, in the order of their steps."""
    steps = {path: _NAME.fullmatch(path.name) for path in folder.glob("step-*.pt")}
    return sorted((path for path, match in steps.items() if match), key=lambda path: int(path.stem[5:]))


def newest(folder: Path, metrics_size: int) -> bytes | None:
    """Return the newest checkpoint that is sound, as bytes; each one that is not is named in a warning.

    Args:
      folder: with the checkpoints.
      metrics_size: of the metrics that are there; a checkpoint that knows of more lines than that is of no use.
    """
    paths = found(folder)
    for path in reversed(paths):
        try:
            content = path.read_bytes()
            state = load(content)
            if state["metrics_size"] > metrics_size:
                raise ValueError("the metrics that belong to it are not there")
        except Exception as error:  # zipfile and torch raise many kinds for a damaged file
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            instead = "the run begins again" if path == paths[0] else "the one before it is tried"
            warnings.warn(f"the checkpoint {path} is damaged ({reason}): {instead}", DamagedCheckpoint, stacklevel=2)
        else:
            return content
    return None


def load(content: bytes) -> dict[str, Any]:
    """Return the state that was saved; its checksum is compared, and no code in it is run."""
    body = content[: -len(_seal(b"")) - 2] + bytes(2)
    if _sealed(body) != content:
        raise ValueError("its checksum is not that of what was written")
    state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True, map_location="cpu")
    return state


def _sealed(body: bytes) -> bytes:
    """Return a zip archive with a checksum of the whole as its comment; `torch.load` reads it as before.

    The archive's own checksums are of its members alone: a flipped bit in its directory passes them, and torch.load
    then returns uninitialised memory.
    """
    seal = _seal(body)
    return body[:-2] + len(seal).to_bytes(2, "little") + seal


def _seal(body: bytes) -> bytes:
    return b"sha256:" + hashlib.sha256(body).hexdigest().encode()


def remove(folder: Path) -> None:
    """Delete all checkpoints, and what a kill left half written."""
    if folder.is_dir():
        for path in found(folder):
            path.unlink(missing_ok=True)
        atomic.sweep(folder)
        if not any(folder.iterdir()):
            folder.rmdir()
