"""Learning rates beyond a grid: where the best rate lies at the edge, the next one out is tried as well."""

from collections.abc import Collection, Sequence
from typing import Any

from acmo.lab.config.plan import Plan

LIMIT = 4  # extensions of one grid, upward and downward together


def extends(plan: Plan) -> bool:
    """Return whether grids are extended: the paper's own is fixed, and samplers draw within the given range."""
    return plan.extend and plan.grid != "paper" and plan.sampler == "grid"


def next_rate(grid: Sequence[Any], tried: Collection[float], best: float) -> float | None:
    """Return the learning rate by which a grid is extended.

    Nothing but the grid and the finished runs enters, so that every machine and every later call decides the same.

    Args:
      grid: the rates of the plan.
      tried: the rates of all runs so far, in the grid or beyond it.
      best: the one that is best on validation data. A rate at which all runs diverged cannot be it.

    Returns:
      A rate next to ``best`` in the ratio of the two outermost rates of the grid; None if ``best`` lies inside, if
      `LIMIT` extensions were made, or if the grid has no ratio.

    Example:
      >>> next_rate([0.1, 0.05, 0.01], {0.1, 0.05, 0.01}, best=0.1)
      0.2
      >>> next_rate([0.1, 0.05, 0.01], {0.2, 0.1, 0.05, 0.01}, best=0.1) is None
      True
    """
    known = {*grid, *tried}
    if best not in (min(known), max(known)) or len(known) >= len(set(grid)) + LIMIT:
        return None
    beyond = rates_beyond(grid)
    side = beyond[LIMIT:] if best == max(known) else beyond[:LIMIT]
    return next((rate for rate in side if rate not in known), None)


def rates_beyond(grid: Sequence[Any]) -> list[float]:
    """Return every rate that extensions may reach: `LIMIT` downward, then `LIMIT` upward; none without a ratio."""
    rates = sorted({float(rate) for rate in grid if isinstance(rate, int | float) and rate > 0})
    if len(rates) < 2 or len(rates) < len(set(grid)):
        return []
    down, up = rates[1] / rates[0], rates[-1] / rates[-2]
    steps = range(1, LIMIT + 1)
    return [_rounded(rates[0] / down**k) for k in steps] + [_rounded(rates[-1] * up**k) for k in steps]


def _rounded(rate: float) -> float:
    return float(f"{rate:.4g}")
