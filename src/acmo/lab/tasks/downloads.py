"""Archives from the web, by pooch: checked, unpacked once, kept in one folder for all runs."""

import logging
import os
import re
import shutil
import sys
import tarfile
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from acmo.lab.atomic import locked
from acmo.lab.errors import LabError, missing_extra


def cache() -> Path:
    """Return where downloads are kept: ``$ACMO_DATA``, or the user's cache folder."""
    return Path(os.environ.get("ACMO_DATA") or _pooch().os_cache("acmo"))


def fetch(url: str, checksum: str) -> Path:
    """Return the file at a URL, downloaded if it is not there already; not what was expected: a `LabError`.

    Args:
      url: where it is.
      checksum: its md5, or another one as ``sha256:...``.
    """
    pooch = _pooch()
    pooch.get_logger().setLevel(logging.WARNING)
    kind, _, digest = checksum.rpartition(":")
    kind, name = kind or "md5", url.rpartition("/")[2]
    try:
        waits = nullcontext() if (cache() / name).exists() else locked(cache() / f".{name}.lock")
        with waits, _Bar(url) as bar:  # of many ranks, one downloads
            downloader = pooch.HTTPDownloader(progressbar=bar, timeout=60)
            found = pooch.retrieve(url, f"{kind}:{digest}", fname=name, path=cache(), downloader=downloader)
    except LabError:
        raise
    except ValueError as error:  # pooch's, of a checksum
        raise LabError(f"what came from {url} is damaged or another file: its {kind} is not {digest}") from error
    except Exception as error:  # of requests, urllib3 and the system
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LabError(f"{url} could not be downloaded ({reason}); give the folder of the data with --data") from error
    return Path(found)


def unpacked(url: str, checksum: str, members: str, name: str | None = None) -> Path:
    """Return the folder with those files of a tar archive whose path matches ``members``, downloaded and unpacked once.

    The files end up side by side under their own names: no path inside an archive is ever followed.

    Args:
      url: of the archive.
      checksum: as for `fetch`.
      members: a regular expression.
      name: of the folder in the cache; None: the archive's.
    """
    folder = cache() / (name or re.sub(r"\.tar(\.\w+)?$", "", url.rpartition("/")[2]))
    if folder.is_dir():
        return folder
    archive = fetch(url, checksum)
    part = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=cache()))
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isfile() and re.fullmatch(members, member.name) else None
                if source is not None:
                    with source, (part / Path(member.name).name).open("wb") as target:
                        shutil.copyfileobj(source, target)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was quicker
                raise
    except (tarfile.TarError, OSError, EOFError) as error:
        raise LabError(f"{archive} could not be unpacked: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _pooch() -> Any:
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError:
        raise missing_extra("pooch") from None
    return pooch


class _Bar:
    """A progress bar of rich with the face that pooch wants; nothing where no one looks."""

    def __init__(self, url: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._task = self._progress.add_task(url.rpartition("/")[2], total=None)
        self.total = 0

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, size: int) -> None:
        self._progress.update(self._task, advance=size, total=self.total or None)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        pass
