"""The forms of a saved state: dtypes by name, SGD's, Adam's and Muon's keys, and what acmo 0.1.0 did not have."""

from collections.abc import Sequence
from typing import Any

import torch

ADAM_KEYS = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}


def name_dtype(dtype: torch.dtype | None) -> str | None:
    """Return a dtype's name, as it is saved: torch.distributed.checkpoint cannot gather a torch.dtype."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def convert_state_dict(state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]) -> None:
    """Bring a state dict of ACMo, SGD, Adam(W) or Muon into the form of ACMo's; what it held before is not changed."""
    saved = state_dict.get("param_groups", [])
    if len(saved) != len(groups):
        return  # torch raises for it
    from_adam = {number for group in saved if is_adam(group) for number in group["params"]}
    state_dict["param_groups"] = [
        keep_live_group(theirs, mine) if is_adam(theirs) or is_muon(theirs) else convert_group(theirs, mine)
        for theirs, mine in zip(saved, groups, strict=True)
    ]
    if from_adam and isinstance(state_dict.get("state"), dict):
        state_dict["state"] = {
            number: convert_adam_state(state) if number in from_adam else state
            for number, state in state_dict["state"].items()
        }


def is_adam(group: dict[str, Any]) -> bool:
    """Return whether a group is one of Adam or AdamW. Of NAdam, RAdam and Adamax none has amsgrad."""
    return "betas" in group and "amsgrad" in group


def is_muon(group: dict[str, Any]) -> bool:
    """Return whether a group is one of torch.optim.Muon."""
    return "ns_coefficients" in group


def keep_live_group(theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any]:
    """Return the live group with the parameters and the direction of a saved one of Adam or Muon.

    Their learning rate and decay are for steps of another length, so those of the live group stay, and so does what a
    scheduler has left beside them.
    """
    kept: dict[str, Any] = {key: theirs[key] for key in ("params", "param_names", "maximize") if key in theirs}
    live = {key: value for key, value in mine.items() if not callable(value)}  # callables stay where they are
    return {**live, "projection": None, **kept}


def convert_adam_state(state: Any) -> Any:
    """Return the first moment and the step of one parameter; a state with other keys as it is."""
    if not isinstance(state, dict) or not set(state) <= ADAM_KEYS:
        return state
    names = {"exp_avg": "momentum_buffer", "step": "step"}
    return {names[key]: value for key, value in state.items() if key in names}


def convert_group(theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a saved group of ACMo or SGD with its dtype as a torch.dtype.

    SGD's choice of a backend is left out: its fused kernel is available where ours is not. Whether moments are int8 is
    decided by the live group, and they are converted. acmo 0.1.0 had no unit steps.
    """
    group = dict(theirs)
    if "nesterov" in group:
        for key in ("foreach", "fused"):
            group.pop(key, None)
    if "norm_scope" in group:
        group.setdefault("unit_step", False)
    if callable(mine["psi"]) or group.get("psi") is None:
        group.pop("psi", None)  # a callable is not saved: the live one stays
    for key in ("momentum_dtype", "ns_dtype"):
        name = group.get(key)
        if isinstance(name, str):
            group[key] = getattr(torch, name, name)
    dtypes = (group.get("momentum_dtype"), mine["momentum_dtype"])
    if dtypes.count(torch.int8) == 1:
        group["momentum_dtype"] = mine["momentum_dtype"]
    return group
