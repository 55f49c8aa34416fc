"""The studies that a comparison consists of, and how many runs they are."""

import hashlib
import json
from typing import Any

from acmo.lab.config.grids import grid_of, planned_points, run_counts
from acmo.lab.config.plan import Contender, Plan, slug
from acmo.lab.config.run_options import run_config
from acmo.lab.results.run_record import Role, Score
from acmo.lab.studies.spec import Spec

_FORMAT = 2  # of what a study's trials hold


def tuning_spec(
    plan: Plan,
    contender: Contender,
    task: str,
    score: Score,
    decay: float | None = None,
    fingerprint: str | None = None,
    lr: float | None = None,
) -> Spec:
    """Return the study that tunes a contender on a task, whose data has this fingerprint.

    With ``lr``, the one that extends its grid by this learning rate.
    """
    grid = grid_of(plan, contender, decay)
    if lr is not None:
        grid["lr"] = [lr]
    run = {
        "task": task,
        "optimizer": contender.optimizer,
        "settings": contender.settings,
        "seed": plan.tune_seed,
        "fingerprint": fingerprint,
        **plan.run_options(),
        "refit_on_all": None,  # what selects must not be trained on
    }
    if plan.test_every_setting:
        run["phase"] = "final"
    depends_on = {"run": run, "grid": grid, "sampler": plan.sampler, **({"prune": True} if plan.prune else {})}
    points = planned_points(plan, grid)
    trials = plan.trials if plan.sampler == "tpe" else len(points)
    tuned = {"points": points, "grid": grid, "sampler": plan.sampler, "trials": trials, "prune": plan.prune}
    return _spec(plan, contender, task, score, "tune", depends_on, **tuned)


def final_spec(
    plan: Plan,
    contender: Contender,
    task: str,
    score: Score,
    settings: dict[str, Any],
    fingerprint: str | None = None,
) -> Spec:
    """Return the study that repeats the chosen setting with fresh seeds."""
    own = {"task": task, "optimizer": contender.optimizer, "settings": settings, "fingerprint": fingerprint}
    run = {**own, **plan.run_options()}
    points = [{"seed": seed} for seed in plan.final_seeds()]
    return _spec(plan, contender, task, score, "final", {"run": run}, points=points)


def tuning_waves(plan: Plan, *, final: bool = True) -> list[list[Contender]]:
    """Return which contenders are tuned together: under ``fixed-wd``, SGD-momentum first, for its weight decay.

    Args:
      plan: the comparison.
      final: final runs follow, so a contender with one setting is not tuned.
    """
    counts = run_counts(plan, final=final)
    everyone = [c for c in plan.contenders() if counts[c.label]["tune"]]
    first = [c for c in everyone if plan.protocol == "fixed-wd" and c.label == "sgd-momentum"]
    return [wave for wave in (first, [c for c in everyone if c not in first]) if wave]


def folder_of(task: str, contender: Contender) -> str:
    """Return where the runs of a contender on a task lie, relative to the output folder."""
    return f"runs/{slug(task)}/{slug(contender.label)}"


def _spec(
    plan: Plan, contender: Contender, task: str, score: Score, phase: Role, depends_on: dict[str, Any], **more: Any
) -> Spec:
    return Spec(
        name=_name(plan, contender, task, phase, depends_on),
        label=contender.label,
        task=task,
        phase=phase,
        run=depends_on["run"],
        folder=folder_of(task, contender),
        score=score,
        **more,
    )


def _name(plan: Plan, contender: Contender, task: str, phase: str, depends_on: dict[str, Any]) -> str:
    """Return a readable name with a hash of what the outcomes depend on: other options are other studies."""
    known = run_config(**depends_on["run"]).identity()
    run = {key: value for key, value in known.items() if value is not None}  # as in a run's id
    text = json.dumps({**depends_on, "run": run, "format": _FORMAT}, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"acmo/{task}/{contender.label}/{plan.protocol}/{phase}/{digest}"
