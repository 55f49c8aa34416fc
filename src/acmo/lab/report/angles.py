"""ACMo's telemetry over a run: the angle between gradient and moment, β̂, clipping."""

from collections.abc import Sequence
from math import isfinite
from statistics import median

from acmo.lab.report.curves import plot_of
from acmo.lab.report.evidence import Contestant
from acmo.lab.results.tables import Row


def telemetry(contestants: Sequence[Contestant]) -> list[Row]:
    """Return the plots of ACMo's angles, for the optimizers that report them."""
    titles = {
        "cos_grad_moment": "cos(g, m): the gradient's angle to the moment before it",
        "beta_hat": "β̂ = β‖g‖/‖m‖: the factor on the moment",
        "clip_scale": "clip scale: 1 where nothing is clipped",
    }
    plots = [plot_of(contestants, "train", key, title=title, log=key == "beta_hat") for key, title in titles.items()]
    return [plot for plot in plots if plot["series"] and not _nothing_clips(plot)]


def _nothing_clips(plot: Row) -> bool:
    return plot["key"] == "clip_scale" and all(min(series["low"]) >= 1 for series in plot["series"])


def share_clipped(contestant: Contestant) -> float | None:
    """Return the share of the logged steps whose gradient was clipped."""
    scales = [line.get("clip_scale") for lines in contestant.lines for line in lines.get("train", [])]
    present = [scale for scale in scales if isinstance(scale, int | float) and isfinite(scale)]
    return len([scale for scale in present if scale < 1]) / len(present) if present else None


def median_of(contestant: Contestant, key: str, part: slice) -> float | None:
    """Return the median of a training value over a part of each run: ``slice(0.0, 0.1)`` is the first tenth."""
    values = []
    for lines in contestant.lines:
        train = lines.get("train", [])
        chosen = train[int(part.start * len(train)) : max(int(part.stop * len(train)), 1)]
        found = [line.get(key) for line in chosen]
        values += [value for value in found if isinstance(value, int | float) and isfinite(value)]
    return median(values) if values else None
