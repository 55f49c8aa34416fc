"""Learning curves: mean over the seeds, with a band from the lowest to the highest."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from acmo.lab.report import words
from acmo.lab.report.evidence import Contestant, Lines
from acmo.lab.results.run_record import finite_or_none
from acmo.lab.results.tables import Row

POINTS = 240  # of a curve at most; more are not seen, and make the page heavy
FEW = 60  # of a curve of training lines; more only if there are more evaluations: they are noise
ABOUT = {"kind", "step", "epoch", "seconds"}
COUNTS = {"translated"}  # the same at every evaluation


def band(runs: Sequence[Sequence[Row]], key: str, scale: float = 1.0, points: int = POINTS) -> Row | None:
    """Return mean, lowest and highest of a value over runs, at common steps.

    Args:
      runs: the lines of each run, in order.
      key: whose value; lines where it is null are left out.
      scale: a factor on it.
      points: how many at most; where there are more steps, spans of them are averaged within a run.

    Returns:
      step, epoch, seconds, mean, low, high as lists, and n, the number of runs; None without any value.
    """
    tables = [table for table in [_table(lines, key, scale) for lines in runs] if len(table)]
    if not tables:
        return None
    steps = np.unique(np.concatenate([table[:, 0] for table in tables]))
    spans = min(len(steps), points)
    means = np.full((len(tables), spans, 4), np.nan)  # of each run in each span: step, epoch, seconds, value
    for mean, table in zip(means, tables, strict=True):
        span = np.searchsorted(steps, table[:, 0]) * spans // len(steps)
        count = np.bincount(span, minlength=spans)
        sums = np.stack([np.bincount(span, column, spans) for column in table.T], axis=1)
        mean[count > 0] = sums[count > 0] / count[count > 0, None]
    over = np.nanmean(means, axis=0)
    low, high = np.nanmin(means[:, :, 3], axis=0), np.nanmax(means[:, :, 3], axis=0)
    rounded = [float(f"{value:.5g}") for value in np.concatenate([*over.T, low, high]).tolist()]
    curve: Row = {"n": len(tables)}
    for i, name in enumerate(("step", "epoch", "seconds", "mean", "low", "high")):
        curve[name] = rounded[i * spans : (i + 1) * spans]
    return curve


def _table(lines: Sequence[Row], key: str, scale: float) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return step, epoch, seconds and the scaled value of the lines that have one, a row each."""
    rows = [
        (line["step"], line["epoch"] or 0.0, line["seconds"] or 0.0, line[key] * scale)
        for line in lines
        if isinstance(line.get(key), int | float)
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    table[~np.isfinite(table[:, 1:3]).all(axis=1), 1:3] = 0.0
    # β̂ is applied as 0 where there is no moment yet, which is not its size.
    kept_rows = np.isfinite(table[:, 3]) & ((table[:, 3] != 0.0) | (key != "beta_hat"))
    return np.compress(kept_rows, table, axis=0)


def learning(contestants: Sequence[Contestant], metric: str) -> list[Row]:
    """Return the plots of a task: training loss, the validation score, then the other metrics of validation data."""
    keys = dict.fromkeys(
        [k for c in contestants for lines in c.lines for line in lines.get("valid", [])[:1] for k in line]
    )
    others = [k for k in keys if k not in ABOUT | COUNTS | {metric} and _numeric(contestants, k)]
    plots = [
        plot_of(contestants, "train", "loss", log=True),
        plot_of(contestants, "valid", metric, log=metric == "loss"),
    ]
    tested = plot_of(contestants, "test_curve", metric, log=False)
    plots += [{**tested, "title": f"{tested['title']} (nothing is selected by it)"}] if tested["series"] else []
    plots += [plot_of(contestants, "valid", key, log="loss" in key) for key in others]
    return [plot for plot in plots if plot["series"]]


def of_kind(lines: Iterable[Lines], kind: str) -> list[list[Row]]:
    return [run.get(kind, []) for run in lines]


def plot_of(contestants: Sequence[Contestant], kind: str, key: str, *, log: bool = False, title: str = "") -> Row:
    evaluations = max([len(lines.get("valid", [])) for c in contestants for lines in c.lines], default=0)
    points = min(max(evaluations, FEW), POINTS) if kind == "train" else POINTS
    series = []
    for c in contestants:
        curve = band(of_kind(c.lines, kind), key, words.scale(key), points)
        if curve is not None:
            series.append({"label": c.label, **curve})
    where = {"train": "Training", "valid": "Validation", "test_curve": "Test"}[kind]
    title = title or f"{where} {words.name(key)}{' in %' * (words.unit(key) != '')}"
    return {"key": key, "kind": kind, "title": title, "log": log, "series": series}


def _numeric(contestants: Sequence[Contestant], key: str) -> bool:
    first = (line.get(key) for c in contestants for run in of_kind(c.lines, "valid") for line in run[:1])
    return any(finite_or_none(value) is not None for value in first)


def last(plot: Row) -> dict[str, float]:
    """Return by label where the curve ends."""
    return {s["label"]: s["mean"][-1] for s in plot["series"]}
