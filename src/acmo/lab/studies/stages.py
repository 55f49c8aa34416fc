"""The studies that a comparison consists of, and how many runs they are."""

import hashlib
import json
from typing import Any, NamedTuple

from acmo.lab.config.grids import Grid, drawn_points, grid_of, points_of
from acmo.lab.config.plan import Contender, Plan, slug
from acmo.lab.config.run_options import run_config
from acmo.lab.studies.trials import Spec

_FORMAT = 1  # of what a study's trials hold


class Goal(NamedTuple):
    """What counts on a task."""

    metric: str
    best: Any


def tuning_spec(plan: Plan, contender: Contender, task: str, goal: Goal, decay: float | None = None) -> Spec:
    """The study that tunes a contender on a task."""
    grid = grid_of(plan, contender, decay)
    run = {
        "task": task,
        "optimizer": contender.optimizer,
        "settings": contender.settings,
        "seed": plan.tune_seed,
        **plan.run_options(),
    }
    if plan.test_every_setting:
        run["phase"] = "final"
    depends_on = {"run": run, "grid": grid, "sampler": plan.sampler}
    points = _points(plan, grid)
    trials = plan.trials if plan.sampler == "tpe" else len(points)
    return _spec(
        plan, contender, task, goal, "tune", depends_on, points=points, grid=grid, sampler=plan.sampler, trials=trials
    )


def final_spec(plan: Plan, contender: Contender, task: str, goal: Goal, settings: dict[str, Any]) -> Spec:
    """The study that repeats the chosen setting with fresh seeds."""
    run = {"task": task, "optimizer": contender.optimizer, "settings": settings, **plan.run_options()}
    points = [{"seed": seed} for seed in plan.final_seeds()]
    return _spec(plan, contender, task, goal, "final", {"run": run}, points=points)


def tuning_waves(plan: Plan) -> list[list[Contender]]:
    """Who is tuned together: under ``fixed-wd`` SGD-momentum comes first, since the others take its weight decay."""
    everyone = plan.contenders()
    if plan.protocol != "fixed-wd":
        return [everyone]
    first = [c for c in everyone if c.label == "sgd-momentum"]
    return [wave for wave in (first, [c for c in everyone if c not in first]) if wave]


def run_counts(plan: Plan) -> dict[str, dict[str, int]]:
    """By contender: how many runs tune it, and how many repeat its best setting, on one task."""
    counts = {}
    for contender in plan.contenders():
        decay = 0.0 if plan.protocol == "fixed-wd" and contender.label != "sgd-momentum" else None
        points = _points(plan, grid_of(plan, contender, decay))
        tune = plan.trials if plan.trials and plan.sampler == "tpe" else len(points)
        counts[contender.label] = {"tune": tune, "final": plan.seeds}
    return counts


def folder_of(task: str, contender: Contender) -> str:
    """Where the runs of a contender on a task lie, relative to the output folder."""
    return f"runs/{slug(task)}/{slug(contender.label)}"


def _points(plan: Plan, grid: Grid) -> list[dict[str, Any]]:
    """What is tried of a grid; nothing is known of it yet where TPE chooses."""
    if plan.sampler == "random":
        return drawn_points(grid, plan.trials or 0, plan.tune_seed)
    return points_of(grid) if plan.sampler == "grid" else []


def _spec(
    plan: Plan, contender: Contender, task: str, goal: Goal, phase: Any, depends_on: dict[str, Any], **more: Any
) -> Spec:
    return Spec(
        name=_name(plan, contender, task, phase, depends_on),
        label=contender.label,
        task=task,
        phase=phase,
        run=depends_on["run"],
        folder=folder_of(task, contender),
        metric=goal.metric,
        best=goal.best,
        **more,
    )


def _name(plan: Plan, contender: Contender, task: str, phase: str, depends_on: dict[str, Any]) -> str:
    """A name that people can read, and a hash of what the outcomes depend on: other options are other studies."""
    run = run_config(**depends_on["run"]).identity()
    text = json.dumps({**depends_on, "run": run, "format": _FORMAT}, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"acmo/{task}/{contender.label}/{plan.protocol}/{phase}/{digest}"
