"""What is tried for a contender: the registry's learning rates or the paper's grid, or the plan's own values."""

import inspect
from collections.abc import Mapping
from itertools import product
from math import exp, log
from typing import Any

import numpy as np

from acmo.lab.config.optimizers import find_factory, options_of
from acmo.lab.config.plan import Contender, Plan
from acmo.lab.errors import LabError
from acmo.lab.objects import load_object, nearest
from acmo.rivals import REGISTRY

Grid = dict[str, list[Any]]


def grid_of(plan: Plan, contender: Contender, fixed_decay: float | None = None) -> Grid:
    """Return, for each option that is tuned, the values to try.

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
        whole = {**entry.grid, "lr": entry.rates} if plan.grid == "equal" else entry.grid
        keep = {"lr"} if plan.grid in ("equal", "lr") else set(whole)
        keep = keep - {"weight_decay"} | ({"weight_decay"} if plan.protocol != "default-wd" else set())
        grid = {o: [list(v) if isinstance(v, tuple) else v for v in vs] for o, vs in whole.items() if o in keep}
    if "all" in plan.grids:  # the options of a user's own optimizer are not checked
        known = None if entry is None else options_of(contender.optimizer)
        grid |= {o: list(vs) for o, vs in plan.grids["all"].items() if known is None or o in known}
    grid |= {o: list(vs) for o, vs in {**plan.grids.get(contender.label, {}), **contender.grid}.items()}
    if plan.protocol == "default-wd" and "weight_decay" not in contender.grid | plan.grids.get(contender.label, {}):
        grid.pop("weight_decay", None)
    if fixed_decay is not None and takes_weight_decay(contender.optimizer):
        grid["weight_decay"] = [fixed_decay]
    grid = {option: _once(values) for option, values in grid.items() if option not in contender.settings}
    if not grid and not contender.settings:
        if entry is None:
            find_factory(contender.optimizer)  # raises the error of an unknown name
        raise LabError(
            f"{contender.label} has no grid; give one with --try {contender.label}.lr=0.1,0.01 "
            f'or in the TOML file under [grids."{contender.label}"]'
        )
    return grid


def tried_values(plan: Plan) -> dict[str, Grid]:
    """Return by label the values that are tried of each option, fixed ones among them; empty where they are drawn."""
    if plan.sampler != "grid":
        return {}
    return {c.label: grid_of(plan, c) | {o: [v] for o, v in c.settings.items()} for c in plan.contenders()}


def check_names(plan: Plan) -> None:
    """Raise a `LabError` for an option that no optimizer tries, or a baseline that is no optimizer."""
    contenders = plan.contenders()
    tried = {option for contender in contenders for option in grid_of(plan, contender)}
    for option in plan.grids.get("all", {}).keys() - tried:
        hint = nearest(option, {o for c in contenders for o in options_of(c.optimizer) or ()})
        if option == "weight_decay" and plan.protocol == "default-wd":
            hint = ": the protocol default-wd does not tune it, tuned-wd does"
        raise LabError(f"all.{option} is tried by no optimizer of this comparison{hint}")
    names = {*REGISTRY, *(c.label for c in contenders)}
    for name in plan.baselines:
        if name not in names:
            raise LabError(f"the baseline {name!r} is no optimizer of this comparison{nearest(name, names)}")


def points_of(grid: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the grid, in order."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def drawn_points(grid: Mapping[str, list[Any]], n: int, seed: int) -> list[dict[str, Any]]:
    """Return different points drawn at random, the learning rate log-uniformly between its extremes.

    The first ones do not depend on ``n``. There are fewer than ``n`` if the grid has no more.
    """
    rng = np.random.default_rng(seed)
    points: list[dict[str, Any]] = []
    for _ in range(100 * n):
        place = {option: rng.random() for option in grid}
        point = {option: _drawn(option, values, place[option]) for option, values in grid.items()}
        if point not in points:
            points.append(point)
        if len(points) == n:
            break
    return points


def planned_points(plan: Plan, grid: Grid) -> list[dict[str, Any]]:
    """Return what is tried of a grid; nothing is known of it yet where TPE chooses."""
    if plan.sampler == "random":
        return drawn_points(grid, plan.trials or 0, plan.tune_seed)
    return points_of(grid) if plan.sampler == "grid" else []


def only_setting(plan: Plan, contender: Contender, fixed_decay: float | None = None) -> dict[str, Any] | None:
    """Return the setting of a contender that has no other, so that there is nothing to tune; None if it has several.

    Its learning rate is not extended either: a grid with one rate has no ratio.
    """
    grid = grid_of(plan, contender, fixed_decay)
    points = points_of(grid) if plan.sampler == "tpe" else planned_points(plan, grid)
    return {**contender.settings, **points[0]} if len(points) == 1 else None


def run_counts(plan: Plan, *, final: bool = True) -> dict[str, dict[str, int]]:
    """Return by contender how many runs tune it, and how many repeat its best setting, on one task.

    Args:
      plan: the comparison.
      final: the best settings are repeated, and an only setting is not tuned; False: all are tuned, none is repeated.
    """
    counts = {}
    for contender in plan.contenders():
        decay = 0.0 if plan.protocol == "fixed-wd" and contender.label != "sgd-momentum" else None
        points = planned_points(plan, grid_of(plan, contender, decay))
        tune = plan.trials if plan.trials and plan.sampler == "tpe" else len(points)
        if final and only_setting(plan, contender, decay) is not None:
            tune = 0
        counts[contender.label] = {"tune": tune, "final": plan.seeds if final else 0}
    return counts


def takes_weight_decay(optimizer: str) -> bool:
    """Return whether the optimizer has an option of that name."""
    if optimizer in REGISTRY:
        return True
    try:
        return "weight_decay" in inspect.signature(load_object(optimizer)).parameters
    except (TypeError, ValueError, LabError):
        return False


def title_of(contender: Contender) -> str:
    """Return the contender's name in tables."""
    entry = REGISTRY.get(contender.optimizer)
    return entry.title if entry is not None and contender.label == contender.optimizer else contender.label


def describe(settings: Mapping[str, Any]) -> str:
    """Return the settings as one short line: ``lr=0.1 betas=(0.9, 0.99)``."""
    parts = []
    for option, value in settings.items():
        parts.append(f"{option}={value:g}" if type(value) is float else f"{option}={_short(value)}")
    return " ".join(parts) or "defaults"


def _once(values: list[Any]) -> list[Any]:
    """Return the same without repetitions: what is named twice is tried once."""
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _drawn(option: str, values: list[Any], place: float) -> Any:
    if option == "lr" and len(values) > 1:
        if not all(isinstance(v, float) and v > 0 for v in values):
            raise LabError(f"learning rates are drawn between positive numbers, got {values}")
        low, high = log(min(values)), log(max(values))
        return float(f"{exp(low + place * (high - low)):.4g}")
    return values[int(place * len(values))]


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(_short(v) for v in value)})"
    return f"{value:g}" if isinstance(value, float) else str(value)
