"""One HTML page about a comparison, self-contained, and the paper's figures of it."""

from pathlib import Path

from acmo.lab import atomic
from acmo.lab.report.evidence import gather
from acmo.lab.report.html_page import render


def write(folder: Path | str) -> Path:
    """Write ``report.html`` into a comparison's folder, whatever state that is in.

    Args:
      folder: what was given to ``acmo compare`` as ``--out``.

    Returns:
      The path of the page.
    """
    path = Path(folder) / "report.html"
    atomic.write(path, render(gather(folder)).encode())
    return path
