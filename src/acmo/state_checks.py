"""Checks of a state dict before it is loaded: what torch's own load_state_dict does not check."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from acmo.options import check_group, read_number
from acmo.parameter_checks import check_momentum_dtype
from acmo.quantise import LEVELS
from acmo.sharding import local
from acmo.state_tensors import make_beta_hat, moment_dtype
from acmo.step_data import view_as_real

KEYS = ("momentum_buffer", "momentum_scale", "step", "beta_hat")
FOREIGN = "the state dict is not one of ACMo, SGD, Adam or Muon"


def check_state_dict(state_dict: dict[str, Any], groups: Sequence[dict[str, Any]], defaults: dict[str, Any]) -> None:
    """Raise, naming parameter, key and value, unless the state is one of ACMo or SGD and fits these groups.

    It comes before anything is changed, and what it lets pass can be loaded to the end.
    """
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise ValueError(f"the state dict has no {key!r}, only {list(state_dict)}: it is not one of an optimizer")
    saved = state_dict["param_groups"]
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in groups]:
        return  # torch raises its own error before it changes anything
    complete = [{**{key: mine[key] for key in defaults}, **theirs} for mine, theirs in zip(groups, saved, strict=True)]
    for i, (group, mine, theirs) in enumerate(zip(complete, groups, saved, strict=True)):
        check_group(group, complete[:i])
        check_whole_number("skipped_steps", f"group {i}", group["skipped_steps"])
        if len(theirs.get("param_names", mine["params"])) != len(mine["params"]):
            raise ValueError(
                describe_misfit("param_names", f"group {i}", f"{len(mine['params'])}", theirs["param_names"])
            )
        for j, p in enumerate(mine["params"]):
            check_momentum_dtype(group["momentum_dtype"], p, f"parameter {j} of group {i}")
    options = {id(p): group for mine, group in zip(groups, complete, strict=True) for p in mine["params"]}
    for who, p, state in match_states(state_dict, groups):
        if not isinstance(state, dict) or not set(state) <= set(KEYS):
            foreign = [key for key in state if key not in KEYS] if isinstance(state, dict) else state
            raise ValueError(f"{FOREIGN}: the state of {who} has {foreign!r}")
        if state.get("momentum_buffer") is not None:
            check_moment(who, state["momentum_buffer"], p, options[id(p)])
        check_scale(who, state, p, options[id(p)])
        if state.get("step") is not None:
            check_whole_number("step", who, state["step"])
        if state.get("beta_hat") is not None:
            check_beta_hat(who, state["beta_hat"], p, options[id(p)])
    for i, theirs in enumerate(saved):  # one that was saved before its first step has no state to recognise it by
        if "betas" in theirs and "momentum" not in theirs:
            raise ValueError(f"{FOREIGN}: group {i} has betas={theirs['betas']!r}")


def check_moment(who: str, m: Any, p: Tensor, group: dict[str, Any]) -> None:
    """Raise unless m can be the moment of p under the options of its group."""
    dtype = moment_dtype(p, group)
    if not isinstance(m, Tensor):
        raise TypeError(describe_misfit("momentum_buffer", who, "a Tensor or None", m))
    if m.shape != p.shape:
        raise ValueError(
            describe_misfit("momentum_buffer", who, f"of the parameter's shape {tuple(p.shape)}", tuple(m.shape))
        )
    is_number = m.is_complex() or m.is_floating_point() or (m.dtype == torch.int8 and p.ndim >= 2)
    if m.is_complex() != p.is_complex() or not is_number:
        raise ValueError(describe_misfit("momentum_buffer", who, f"of a dtype that can become {dtype}", m.dtype))
    if m.layout != torch.strided or (m.is_meta and not p.is_meta):
        raise ValueError(describe_misfit("momentum_buffer", who, "dense and have data", (m.layout, m.device)))
    placed = [getattr(x, "placements", None) for x in (m, p)]  # of DTensors
    if placed[0] != placed[1]:
        raise ValueError(describe_misfit("momentum_buffer", who, f"sharded as the parameter, {placed[1]}", placed[0]))
    if group["nonfinite"] == "propagate" or torch.int8 in (m.dtype, dtype):
        return  # NaN goes in as it came out, as with torch.optim
    (here,) = view_as_real([local(m.detach())])
    if not has_values(here) or not here.numel():
        return
    # The extremes suffice and take no memory. Checked after the cast, which may overflow. int8 scales are float32.
    real = torch.float32 if dtype == torch.int8 else dtype.to_real()
    low, high = (float(x.to(real)) for x in torch.aminmax(here))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(describe_misfit("momentum_buffer", who, f"finite as {dtype}", [low, "...", high]))


def check_scale(who: str, state: dict[str, Any], p: Tensor, group: dict[str, Any]) -> None:
    """Raise unless an int8 moment, and no other, has one scale per row of dimension 0."""
    m, scale = state.get("momentum_buffer"), state.get("momentum_scale")
    if m is None or m.dtype != torch.int8:
        if scale is not None:
            raise ValueError(describe_misfit("momentum_scale", who, "None beside a moment that is not int8", scale))
        return
    wanted = f"a float Tensor of shape ({p.shape[0]},), one per row"
    if not isinstance(scale, Tensor) or not scale.is_floating_point():
        raise TypeError(describe_misfit("momentum_scale", who, wanted, scale))
    here = local(scale.detach())
    if scale.shape != p.shape[:1] or here.shape != local(p.detach()).shape[:1]:
        raise ValueError(describe_misfit("momentum_scale", who, wanted, tuple(scale.shape)))
    if group["nonfinite"] == "propagate" or not has_values(here) or not here.numel():
        return
    low, high = (float(x) for x in torch.aminmax(here.float() * LEVELS))
    if not (low >= 0 and math.isfinite(high)):
        raise ValueError(
            describe_misfit("momentum_scale", who, "finite and >= 0", [low / LEVELS, "...", high / LEVELS])
        )


def check_beta_hat(who: str, value: Any, p: Tensor, group: dict[str, Any]) -> None:
    """Raise unless β̂ is one number, or by row one per row or column; a callable Ψ may make any numbers of it."""
    wanted = make_beta_hat(p, group)
    if isinstance(value, Tensor) and value.shape == wanted.shape:
        if local(value).shape != local(wanted).shape:
            placed = getattr(wanted, "placements", None)
            raise ValueError(describe_misfit("beta_hat", who, f"sharded as the rows of the parameter, {placed}", value))
        numbers = local(value.detach()).flatten().tolist() if has_values(value) else []
    else:
        numbers = [read_one_number("beta_hat", who, value)]
    for x in [] if callable(group["psi"]) else numbers:
        if not x >= 0 and not (math.isnan(x) and group["nonfinite"] == "propagate"):
            raise ValueError(describe_misfit("beta_hat", who, ">= 0", value))


def read_one_number(key: str, who: str, value: Any) -> float:
    """Return the value as a float; 0 where it is one number, but cannot be read."""
    if isinstance(value, Tensor) and value.numel() == 1 and not has_values(value):
        return 0.0
    try:
        return read_number(key, value)
    except (TypeError, ValueError):
        raise ValueError(describe_misfit(key, who, "one number", value)) from None


def check_whole_number(key: str, who: str, value: Any) -> None:
    """Raise unless the value is a whole number >= 0."""
    x = read_one_number(key, who, value)
    if not (x >= 0 and x.is_integer()):
        raise ValueError(describe_misfit(key, who, "a whole number >= 0", value))


def has_values(x: Tensor) -> bool:
    """Return whether a tensor's values can be read: not so on meta, nor under a FakeTensorMode."""
    return not x.is_meta and not isinstance(x, FakeTensor)


def describe_misfit(key: str, who: str, wanted: str, got: Any) -> str:
    """Return the text of the error for a value that does not fit."""
    return f"the state dict does not fit: {key} of {who} must be {wanted}, got {got!r}"


def match_states(
    state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Yield (name for errors, parameter, saved state) of every parameter that has a saved state."""
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    parameters = [p for group in groups for p in group["params"]]
    names = [name for group in groups for name in group.get("param_names", [None] * len(group["params"]))]
    for i, (number, p, name) in enumerate(zip(numbers, parameters, names, strict=True)):
        if number in state_dict["state"]:
            yield f"parameter {i}" if name is None else f"parameter {i} ({name!r})", p, state_dict["state"][number]
