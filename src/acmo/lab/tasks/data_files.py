"""The files that data is read from: their sizes and hashes, and one fingerprint of all of them."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmo.lab import atomic
from acmo.lab.errors import LabError
from acmo.lab.tasks.downloads import cache

_CACHED = 1 << 20  # bytes; what is smaller is hashed sooner than its cached hash is read


def describe_files(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return name, size and SHA-256 of each file, in order; nothing of where it lies or when it was written."""
    hashes = [hash_file(path) for path in paths]  # before their sizes: a missing file is a LabError
    sizes = [path.stat().st_size for path in paths]
    return [
        {"name": path.name, "bytes": size, "sha256": digest}
        for path, size, digest in zip(paths, sizes, hashes, strict=True)
    ]


def fingerprint_files(paths: Sequence[Path]) -> str:
    """Return 16 hexadecimal digits of the names, sizes and contents of files."""
    text = json.dumps(describe_files(paths), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file; that of a large one is kept in the cache until the file changes."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            # The time of the last change of the inode cannot be set back by a program that rewrites the file.
            state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            if status.st_size < _CACHED:
                return hashlib.sha256(file.read()).hexdigest()
            entry = cache() / "hashes" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"
            known = _read(entry)
            if known is not None and known[0] == state:
                return known[1]
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from None
    _keep(entry, [state, digest.hexdigest()])
    return digest.hexdigest()


def _read(entry: Path) -> tuple[list[int], str] | None:
    try:
        state, digest = json.loads(entry.read_bytes())
        return (state, digest) if isinstance(digest, str) and len(digest) == 64 else None
    except (OSError, ValueError, TypeError):
        return None


def _keep(entry: Path, content: Any) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(entry, json.dumps(content).encode())
    except (OSError, LabError):
        pass  # a cache that cannot be written costs time alone
