"""One HTML page about a comparison, self-contained, and the paper's figures of it."""

from pathlib import Path

from acmo.lab import atomic
from acmo.lab.report.evidence import gather
from acmo.lab.report.html_page import render
from acmo.lab.results import Comparison


def write(source: Comparison | Path | str) -> Path:
    """Write ``report.html`` into a comparison's folder, whatever state that is in.

    Args:
      source: the folder that was given to ``acmo compare`` as ``--out``; or what `acmo.lab.results.load` made of it.

    Returns:
      The path of the page.
    """
    evidence = gather(source)
    path = evidence.found.folder / "report.html"
    atomic.write(path, render(evidence).encode())
    return path
