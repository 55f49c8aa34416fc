"""One figure for each question of docs/results/PROTOCOL.md: intervals beside their limit, or bars."""

from collections.abc import Sequence
from itertools import groupby
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any

from acmo.lab.gallery.canvas import ACMO_COLOUR, INK, LINE, SOFT, content, figure
from acmo.lab.published import read_published
from acmo.lab.questions import Answer, Difference, Quantity, answer_questions
from acmo.lab.report.results_tables import FIGURES


def draw(answer: Answer) -> bytes:
    """Return the figure of a question as SVG, one panel for each scale; its description is the answer in words."""
    panels: list[tuple[str, list[Any]]] = [
        (panel, list(own)) for panel, own in groupby(answer.evidence, attrgetter("panel"))
    ]
    rows = [len(own) for _, own in panels]
    with figure(7.2, 0.75 + 0.65 * len(panels) + 0.28 * sum(rows)) as drawn:
        title = f"{answer.question}\n{answer.verdict}"
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        places = drawn.subplots(len(panels), 1, squeeze=False, height_ratios=[n + 0.6 for n in rows])[:, 0]
        for axes, (panel, own) in zip(places, panels, strict=True):
            draw_rows = draw_intervals if isinstance(own[0], Difference) else draw_bars
            draw_rows(axes, own)
            axes.set_title(panel, fontsize=9, fontweight="normal", color=SOFT)
            axes.set_yticks(range(len(own)), [row.label for row in own], color=INK)
            axes.set_ylim(len(own) - 0.4, -0.6)
            axes.tick_params(axis="y", length=0)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.grid(axis="x", color=LINE, linewidth=0.5)
            axes.set_axisbelow(True)
        return content(drawn, "svg", str(answer))


def draw_intervals(axes: Any, rows: Sequence[Difference]) -> None:
    """Draw every difference with its interval, the zero as a line, and the limit as a dashed one."""
    axes.axvline(0, color=SOFT, linewidth=0.8)
    if rows[0].limit:
        axes.axvline(rows[0].limit, color=SOFT, linewidth=0.8, linestyle="--")
    for i, row in enumerate(rows):
        if isfinite(row.high - row.low):
            axes.plot([row.low, row.high], [i, i], color=ACMO_COLOUR, linewidth=2)
            axes.plot([row.mean], [i], marker="o", markersize=5, color=ACMO_COLOUR)
        else:
            axes.text(0, i, f" {row}", va="center", color=INK)


def draw_bars(axes: Any, rows: Sequence[Quantity]) -> None:
    """Draw a bar for every quantity, with its text."""
    colours = [ACMO_COLOUR if "ACMo" in row.label else SOFT for row in rows]
    drawn = axes.barh(range(len(rows)), [row.value for row in rows], color=colours, height=0.6)
    axes.bar_label(drawn, [row.text for row in rows], padding=3, color=INK)
    axes.margins(x=0.12)
    if rows[0].most is not None:
        axes.set_xlim(0, rows[0].most)


def draw_all(results: Path) -> dict[Path, bytes]:
    """Return the figures of the questions that the published comparisons answer, by path."""
    answers = answer_questions(read_published(results))
    return {results / FIGURES / f"{answer.slug}.svg": draw(answer) for answer in answers if answer.evidence}
