"""The paper's figures of our runs, in its layout, as SVG, PDF and PNG; beside our final values the paper's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill, shorten
from typing import Any, NamedTuple

from acmo.lab import atomic
from acmo.lab.config.plan import slug
from acmo.lab.errors import LabError, missing_extra
from acmo.lab.redaction import redact
from acmo.lab.report import words
from acmo.lab.report.curves import learning
from acmo.lab.report.evidence import Contestant, Evidence
from acmo.lab.report.paper import Original, original
from acmo.lab.report.tuning import sensitivity
from acmo.lab.results.tables import Row

COLOURS = ("#d1242f", "#0b62c4", "#1a7f37", "#8250df", "#b86200", "#0e7c86", "#bf3989", "#57606a", "#6b5200", "#4d2d9e")
DASHES = ("-", "-", "--", "--", ":", ":", "-.", "-", "--", ":")
FORMATS = ("svg", "pdf", "png")


class Column(NamedTuple):
    """A task of a comparison: a column of a figure."""

    task: Row
    protocol: str
    paper: Original | None


def draw(evidences: Iterable[Evidence], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw the learning curves: training loss above, validation score below, a column a network; BLEU beside loss.

    Args:
      evidences: of one or more comparisons; tasks on the same data under the same protocol share a figure.
      folder: where to.
      formats: a file each.

    Returns:
      What was written: ``figure-2`` to ``figure-4`` for the paper's own experiments, ``curves-…`` for others.
    """
    groups: dict[str, list[Column]] = {}
    for evidence in evidences:
        for task in evidence.tasks:
            if any(c.lines and any(c.lines) for c in task["contestants"]):
                column = Column(
                    task, evidence.found.plan.get("protocol") or "", original(evidence.found.plan, task["task"])
                )
                groups.setdefault(_name(column), []).append(column)
    if not groups:
        raise LabError("there is nothing to draw yet: no run has logged anything")
    return _save({name: (_figure, columns) for name, columns in groups.items()}, folder, formats)


def draw_rates(evidences: Iterable[Evidence], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw ``rates-<task>``: the best validation score at each learning rate tried; a cross where all diverged."""
    figures = {
        slug(f"rates-{task['task']}"): (_rates, task)
        for evidence in evidences
        for task in evidence.tasks
        if any(len(s["lr"]) > 1 for s in sensitivity(task["contestants"], task["metric"], task["best"]))
    }
    return _save(figures, folder, formats)


def _save(figures: Mapping[str, tuple[Callable[[Any], Any], Any]], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Make each figure and write it in every format, the same bytes each time."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "matplotlib") from None
    with atomic.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    style: dict[Any, Any] = {
        "svg.hashsalt": "acmo",
        "pdf.fonttype": 42,
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
    with mpl.rc_context(style):
        for name, (make, subject) in figures.items():
            figure = make(subject)
            for form in formats:
                path = folder / f"{name}.{form}"
                metadata = {} if form == "png" else {"Date" if form == "svg" else "CreationDate": None}
                with atomic.explained(path):
                    figure.savefig(path, dpi=160, bbox_inches="tight", metadata=metadata)
                written.append(path)
    return written


def _name(column: Column) -> str:
    if column.paper is not None:
        return f"figure-{column.paper.figure}"
    data = column.task["task"].partition(":")[0]
    return slug(f"curves-{data}-{column.protocol}".rstrip("-"))


def _figure(columns: Sequence[Column]) -> Any:
    from matplotlib.figure import Figure

    wide = all(column.task["metric"] == "bleu" for column in columns)
    labels = list(dict.fromkeys(c.label for column in columns for c in column.task["contestants"]))
    across, down = (2, len(columns)) if wide else (len(columns), 2)
    table_height = 0.25 * (len(labels) + 2)
    figure = Figure(figsize=(max(3.6 * across, 6.4), 2.7 * down + table_height + 0.8), layout="constrained")
    grid = figure.add_gridspec(down + 1, across, height_ratios=[2.7] * down + [table_height])
    handles: dict[str, Any] = {}
    for i, column in enumerate(columns):
        plots = learning(column.task["contestants"], column.task["metric"])
        found = {(p["kind"], p["key"]): p for p in plots}
        # The paper's dev loss is a sentence's, not a token's.
        dev = found.get(("valid", "loss_per_sentence"), found.get(("valid", "loss")))
        top = dev if wide else found.get(("train", "loss"))
        bottom = found.get(("valid", column.task["metric"]))
        for j, plot in enumerate((top, bottom)):
            axes = figure.add_subplot(grid[i, j] if wide else grid[j, i])
            if j == 0 or wide:
                axes.set_title(_plain(column.task["task"]))
            if plot is not None:
                handles |= _curves(axes, plot, labels, column)
    _table(figure.add_subplot(grid[down, :]), columns, labels)
    titles = {c.label: c.title for column in columns for c in column.task["contestants"]}
    keys = [label for label in labels if label in handles]
    figure.legend(
        [handles[k] for k in keys], [_plain(titles[k]) for k in keys], loc="outside upper center",
        ncols=min(len(keys), 7 if across > 1 else 4) or 1, frameon=False,
    )  # fmt: skip
    figure.supxlabel(fill(_caption(columns[0]), int(14 * figure.get_figwidth())), fontsize=8)
    return figure


def _curves(axes: Any, plot: Row, labels: list[str], column: Column) -> dict[str, Any]:
    """Draw a plot; by label, the line that a legend shows."""
    x = "step" if column.task["metric"] == "bleu" or not any(any(s["epoch"]) for s in plot["series"]) else "epoch"
    handles = {}
    for s in plot["series"]:
        style = _style(labels.index(s["label"]))
        handles[s["label"]] = axes.plot(s[x], s["mean"], marker="." if len(s[x]) == 1 else "", **style)[0]
        if s["n"] > 1:
            axes.fill_between(s[x], s["low"], s["high"], color=style["color"], alpha=0.12, linewidth=0)
    if plot["log"] and all(v > 0 for s in plot["series"] for v in s["low"]):
        axes.set_yscale("log")
    elif plot["key"] == column.task["metric"] and column.task["best"] == "max":
        floor = [s["mean"][len(s["mean"]) // 4] for s in plot["series"] if len(s["mean"]) >= 8]
        top = max(max(s["high"]) for s in plot["series"])
        if floor and min(floor) < top:  # as the paper does: what matters is above
            axes.set_ylim(min(floor) - 0.15 * (top - min(floor)), top + 0.05 * (top - min(floor)))
    axes.set_xlabel(x)
    axes.set_ylabel(plot["title"].replace("Validation loss", "Dev loss") if x == "step" else plot["title"])
    return handles


def _style(i: int) -> dict[str, Any]:
    """Return the i-th optimizer's line; from the eleventh on, colours come back with another dash."""
    dash = DASHES[(i + 2 * (i // 10)) % 10]
    return {"color": COLOURS[i % 10], "linestyle": dash, "linewidth": 2 if i == 0 else 1.3}


def _rates(task: Row) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    series = sensitivity(task["contestants"], task["metric"], task["best"])
    titles = {c.label: _plain(c.title) for c in task["contestants"]}
    labels = [c.label for c in task["contestants"]]
    for s in series:
        style = _style(labels.index(s["label"]))
        found = [(lr, score) for lr, score in zip(s["lr"], s["score"], strict=True) if score is not None]
        axes.plot([lr for lr, _ in found], [v for _, v in found], marker=".", label=titles[s["label"]], **style)
        lost = [lr for lr, score in zip(s["lr"], s["score"], strict=True) if score is None]
        axes.plot(lost, [0.02] * len(lost), "x", color=style["color"], transform=axes.get_xaxis_transform())
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"validation {words.name(task['metric'])}{words.unit(task['metric']).replace(' %', ', %')}")
    axes.set_title(_plain(task["task"]))
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _table(axes: Any, columns: Sequence[Column], labels: Sequence[str]) -> None:
    """Add a table of final test scores: ours with their intervals, and the paper's where it has them."""
    axes.axis("off")
    heads = ["optimizer"]
    cells: list[list[str]] = []
    for column in columns:
        heads.append(f"{_plain(column.task['task'])}: test {words.name(column.task['metric'])}")
        if column.paper and column.paper.finals:
            heads.append("in the paper")
    for label in labels:
        found: list[Contestant] = [c for column in columns for c in column.task["contestants"] if c.label == label]
        line = [_plain(found[0].title)]
        for column in columns:
            own = next((c for c in column.task["contestants"] if c.label == label), None)
            line.append(words.interval(own.row["test"], column.task["metric"]) if own else words.NONE)
            if column.paper and column.paper.finals:
                value = column.paper.finals.get(label)
                line.append(words.NONE if value is None else f"{value:.1f}{words.unit(column.task['metric'])}")
        cells.append(line)
    table = axes.table(cellText=cells, colLabels=heads, loc="center", cellLoc="center", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.auto_set_column_width(list(range(len(heads))))


def _caption(column: Column) -> str:
    said = [f"The paper's Figure {column.paper.figure}, repeated." if column.paper else ""]
    if column.paper and not column.paper.finals:
        said.append("No final values of it are known.")
    if column.paper and column.paper.finals:
        said.append("The paper's values are read off its figures.")
    said.append("Curves are of validation data, mean and range over seeds; test data is read once, at the end.")
    return " ".join(part for part in said if part)


def _plain(text: str) -> str:
    """Return text that matplotlib shows as it is: a dollar sign would begin a formula."""
    return shorten(redact(text), 40, placeholder=" …").replace("$", r"\$")
