"""The one error that is meant for users, and what is shown of errors in their own code."""

import sys
import sysconfig
import traceback
from pathlib import Path


class LabError(Exception):
    """An error for users: one sentence with the value and what to do. The command line prints it and exits with 2."""


def missing_extra(module: str, extra: str = "lab") -> LabError:
    """Return the error for a package of an extra that is not installed."""
    return LabError(f'{module} is not installed; get it with: pip install "acmo[{extra}]"')


def own_traceback(error: BaseException) -> str | None:
    """Return the part of a traceback that lies in the user's own files; None if no part does."""
    known = [Path(__file__).parents[1], Path(sysconfig.get_path("stdlib"))]
    frames = [(frame, Path(frame.filename)) for frame in traceback.extract_tb(error.__traceback__)]
    own = [
        frame
        for frame, path in frames
        if not any(path.is_relative_to(folder) for folder in known)
        and not {"site-packages", "dist-packages"} & set(path.parts)
        and path.is_file()
        and path != Path(sys.argv[0])
    ]
    if not own:
        return None
    lines = ["Traceback, without acmo's own part:\n", *traceback.format_list(own)]
    return "".join([*lines, *traceback.format_exception_only(type(error), error)]).rstrip()
