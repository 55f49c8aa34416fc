"""The settings that are in effect in a run, defaults included: of the optimizer and of the training."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from acmo.lab.runs.training import Training

# Of a param group: what is no setting of the user's, or is set by the schedule.
_NOT_SETTINGS = {"params", "param_names", "initial_lr", "skipped_steps"}


def describe_settings(training: Training) -> dict[str, Any]:
    """Return what ``config.json`` records as ``effective``, before the first step: ``optimizer`` and ``run``."""
    recipe = training.recipe
    run = {f.name: getattr(recipe, f.name) for f in fields(recipe)} | {
        "schedule": recipe.schedule.text,
        "steps": training.steps,
        "log_every": training.log_every,
        "device": str(training.ranks.device),
        "ranks": training.ranks.world,
        "threads": torch.get_num_threads(),
    }
    return {"optimizer": describe_optimizer(training.optimizer), "run": run}


def describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Return the options of the first param group; ``groups`` lists what differs in the others, if anything does."""
    groups = [_read_group(group) for group in optimizer.param_groups]
    first, *others = groups
    differing = [{key: value for key, value in group.items() if first.get(key) != value} for group in others]
    return {"class": type(optimizer).__name__, **first, **({"groups": differing} if any(differing) else {})}


def _read_group(group: dict[str, Any]) -> dict[str, Any]:
    options = {key: _plain(value) for key, value in group.items() if key not in _NOT_SETTINGS}
    return {**options, "lr": _plain(group.get("initial_lr", group["lr"])), "tensors": len(group["params"])}


def _plain(value: Any) -> Any:
    """Return a value of JSON's types: a dtype or a function by its name."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__name__", None) or type(value).__name__
