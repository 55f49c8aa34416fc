"""Learning curves: mean over the seeds, with a band from the lowest to the highest."""

from collections.abc import Iterable, Sequence

from acmo.lab.report import words
from acmo.lab.report.evidence import Contestant, Lines, Row
from acmo.lab.results.run_record import finite_or_none

POINTS = 240  # of a curve at most; more are not seen, and make the page heavy
FEW = 60  # of a curve of training lines; more only if there are more evaluations: they are noise
ABOUT = {"kind", "step", "epoch", "seconds"}
COUNTS = {"translated"}  # the same at every evaluation


def band(runs: Sequence[Sequence[Row]], key: str, scale: float = 1.0, points: int = POINTS) -> Row | None:
    """Mean, lowest and highest of a value over runs, at common steps.

    Args:
      runs: the lines of each run, in order.
      key: whose value; lines where it is null are left out.
      scale: a factor on it.
      points: how many at most; where there are more steps, spans of them are averaged within a run.

    Returns:
      step, epoch, seconds, mean, low, high as lists, and n, the number of runs; None without any value.
    """
    # β̂ is applied as 0 where there is no moment yet, which says nothing of its size.
    blank = {None, 0.0} if key == "beta_hat" else {None}
    runs = [[line for line in lines if finite_or_none(line.get(key)) not in blank] for lines in runs]
    runs = [lines for lines in runs if lines]
    if not runs:
        return None
    place = _places(sorted({line["step"] for lines in runs for line in lines}), points)
    cells: dict[int, list[list[float]]] = {}
    for lines in runs:
        own: dict[int, list[list[float]]] = {}
        for line in lines:
            values = [
                line["step"],
                finite_or_none(line["epoch"]) or 0.0,
                finite_or_none(line["seconds"]) or 0.0,
                line[key] * scale,
            ]
            own.setdefault(place[line["step"]], []).append(values)
        for at, rows in own.items():
            cells.setdefault(at, []).append(_means(rows))
    curve: Row = {name: [] for name in ("step", "epoch", "seconds", "mean", "low", "high")}
    for at in sorted(cells):
        step, epoch, seconds, mean = _means(cells[at])
        values = [row[3] for row in cells[at]]
        for name, value in zip(curve, (step, epoch, seconds, mean, min(values), max(values)), strict=True):
            curve[name].append(float(f"{value:.5g}"))
    return {**curve, "n": len(runs)}


def learning(contestants: Sequence[Contestant], metric: str) -> list[Row]:
    """The plots of a task: training loss, the score on validation data, then whatever else was measured there."""
    keys = dict.fromkeys(
        k for c in contestants for lines in c.lines for line in lines.get("valid", [])[:1] for k in line
    )
    others = [k for k in keys if k not in ABOUT | COUNTS | {metric} and _numeric(contestants, k)]
    plots = [
        plot_of(contestants, "train", "loss", log=True),
        plot_of(contestants, "valid", metric, log=metric == "loss"),
    ]
    plots += [plot_of(contestants, "valid", key, log="loss" in key) for key in others]
    return [plot for plot in plots if plot["series"]]


def of_kind(lines: Iterable[Lines], kind: str) -> list[list[Row]]:
    return [run.get(kind, []) for run in lines]


def plot_of(contestants: Sequence[Contestant], kind: str, key: str, *, log: bool = False, title: str = "") -> Row:
    evaluations = max((len(run) for c in contestants for run in of_kind(c.lines, "valid")), default=0)
    points = min(max(evaluations, FEW), POINTS) if kind == "train" else POINTS
    series = []
    for c in contestants:
        curve = band(of_kind(c.lines, kind), key, words.scale(key), points)
        if curve is not None:
            series.append({"label": c.label, **curve})
    where = {"train": "Training", "valid": "Validation"}[kind]
    title = title or f"{where} {words.name(key)}{' in %' * (words.unit(key) != '')}"
    return {"key": key, "kind": kind, "title": title, "log": log, "series": series}


def _numeric(contestants: Sequence[Contestant], key: str) -> bool:
    first = (line.get(key) for c in contestants for run in of_kind(c.lines, "valid") for line in run[:1])
    return any(finite_or_none(value) is not None for value in first)


def _places(steps: Sequence[int], points: int) -> dict[int, int]:
    """For each step, the span that it falls into."""
    spans = min(len(steps), points)
    return {step: i * spans // len(steps) for i, step in enumerate(steps)}


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def last(plot: Row) -> dict[str, float]:
    """By label, where the curve ends."""
    return {s["label"]: s["mean"][-1] for s in plot["series"]}
