"""What is tried for a contender: the paper's grid from the registry, or what the plan says instead."""

import inspect
from collections.abc import Mapping
from itertools import product
from math import exp, log
from typing import Any

import numpy as np

from acmo.lab.errors import LabError
from acmo.lab.plan import Contender, Plan
from acmo.rivals import REGISTRY

Grid = dict[str, list[Any]]


def grid_of(plan: Plan, contender: Contender, fixed_decay: float | None = None) -> Grid:
    """For each option that is tuned, the values to try.

    Args:
      plan: the comparison.
      contender: one of its contenders.
      fixed_decay: under ``fixed-wd``, the weight decay that SGD-momentum chose; None while it is choosing.

    Returns:
      The grid; an option with a single value is in it too.
    """
    entry = REGISTRY.get(contender.optimizer)
    grid: Grid = {}
    if entry is not None:
        keep = set(entry.grid) if plan.grid == "full" else {"lr"}
        keep = keep - {"weight_decay"} | ({"weight_decay"} if plan.protocol != "default-wd" else set())
        grid = {o: [list(v) if isinstance(v, tuple) else v for v in vs] for o, vs in entry.grid.items() if o in keep}
    grid |= {o: list(vs) for o, vs in plan.grids.get("all", {}).items() if entry is None or o in entry.grid}
    grid |= {o: list(vs) for o, vs in {**plan.grids.get(contender.label, {}), **contender.grid}.items()}
    if plan.protocol == "default-wd" and "weight_decay" not in contender.grid | plan.grids.get(contender.label, {}):
        grid.pop("weight_decay", None)
    if fixed_decay is not None and takes_weight_decay(contender.optimizer):
        grid["weight_decay"] = [fixed_decay]
    grid = {option: values for option, values in grid.items() if option not in contender.settings}
    if not grid and not contender.settings:
        raise LabError(
            f"{contender.label} has no grid; give one with --try {contender.label}.lr=0.1,0.01 "
            f'or in the TOML file under [grids."{contender.label}"]'
        )
    return grid


def points_of(grid: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination of the grid, in order."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def drawn_points(grid: Mapping[str, list[Any]], n: int, seed: int) -> list[dict[str, Any]]:
    """Points drawn at random, the learning rate log-uniformly between its extremes; the first do not hang on ``n``."""
    rng = np.random.default_rng(seed)
    points = []
    for _ in range(n):
        place = {option: rng.random() for option in grid}
        points.append({option: _drawn(option, values, place[option]) for option, values in grid.items()})
    return points


def takes_weight_decay(optimizer: str) -> bool:
    """Whether the optimizer has an option of that name."""
    if optimizer in REGISTRY:
        return True
    from acmo.lab.objects import load_object

    try:
        return "weight_decay" in inspect.signature(load_object(optimizer)).parameters
    except (TypeError, ValueError):
        return False


def title_of(contender: Contender) -> str:
    """The contender's name in tables."""
    entry = REGISTRY.get(contender.optimizer)
    return entry.title if entry is not None and contender.label == contender.optimizer else contender.label


def describe(settings: Mapping[str, Any]) -> str:
    """The settings as one short line: ``lr=0.1 betas=(0.9, 0.99)``."""
    return " ".join(f"{option}={_short(value)}" for option, value in settings.items()) or "defaults"


def _drawn(option: str, values: list[Any], place: float) -> Any:
    if option == "lr" and len(values) > 1:
        low, high = log(min(values)), log(max(values))
        return float(f"{exp(low + place * (high - low)):.4g}")
    return values[int(place * len(values))]


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(_short(v) for v in value)})"
    return f"{value:g}" if isinstance(value, float) else str(value)
