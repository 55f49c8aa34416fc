"""How all pictures look: the report's colours, a white ground that is legible on any page, the same bytes each time."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from acmo.lab.config.plan import PAPER
from acmo.lab.report.paper_figures import COLOURS
from acmo.rivals import REGISTRY

INK, SOFT, LINE = "#1b1c1e", "#5d6066", "#dddfe3"
ACMO_COLOUR = "#d81b2f"  # of bars and intervals that are ours
STYLE: Any = {
    "svg.hashsalt": "acmo",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def colour(optimizer: str) -> str:
    """Return an optimizer's colour in the report of a comparison of the paper's seven, and so everywhere."""
    return COLOURS[PAPER.index(optimizer)]


def title(optimizer: str) -> str:
    """Return an optimizer's name for readers."""
    return REGISTRY[optimizer].title


@contextmanager
def figure(width: float, height: float, **options: Any) -> Iterator[Any]:
    """Return a figure without pyplot: nothing global, no display."""
    with mpl.rc_context():
        mpl.rcdefaults()  # not the user's own matplotlibrc
        mpl.rcParams.update(STYLE)
        yield Figure(figsize=(width, height), facecolor="white", **{"layout": "constrained", **options})


def content(drawn: Any, form: str, description: str | None = None) -> bytes:
    """Return the file, the same whenever it is drawn: no date, and names from a fixed salt.

    Args:
      drawn: the figure.
      form: ``"svg"`` or ``"png"``.
      description: what an SVG says of itself in its metadata.
    """
    file = BytesIO()
    svg = {"Date": None, **({"Description": description} if description else {})}
    drawn.savefig(file, format=form, dpi=160, metadata=svg if form == "svg" else {"Software": None})
    return file.getvalue()
