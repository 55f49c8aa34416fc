"""A parameter's state: how it is made, and what torch's own load_state_dict does not check and does not keep."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from acmo import checks
from acmo.options import check_group, check_momentum_dtype
from acmo.parts import real, scalar_dtype
from acmo.sharding import local

KEYS = ("momentum_buffer", "step", "beta_hat")


def complete(state: dict[str, Any], p: Tensor, group: dict[str, Any]) -> Tensor:
    """Make what a parameter's state lacks: all of it before its first step, some after a load from SGD.

    A state follows its parameter to another device; one that has no data (on meta) is made anew.
    """
    dtype = group["momentum_dtype"] or p.dtype
    m = state.get("momentum_buffer")
    if m is not None and m.device != p.device:
        moved = {} if m.is_meta else {k: x.to(p.device) for k, x in state.items() if isinstance(x, Tensor)}
        state.clear()
        state.update(moved)
        m = state.get("momentum_buffer")
    if m is None:
        if not (p.is_floating_point() or p.is_complex()):
            raise ValueError(f"a parameter of {p.dtype} has a gradient, and ACMo steps floating point and complex ones")
        m = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False)
        state["momentum_buffer"] = m
    conform(state, "step", torch.zeros((), dtype=torch.float32, device=p.device))
    if group["psi"] == "sqrt":  # no bound for the first step
        # Of shape (1,): of a 0-dim float64 on the CPU torch.compile makes a symbol, and then traces all anew.
        dtype = scalar_dtype(p.device)
        conform(state, "beta_hat", torch.full((1,), torch.inf, dtype=dtype, device=p.device))
    return m


def conform(state: dict[str, Any], key: str, default: Tensor) -> None:
    """Make a number of the state what the kernel takes it for: of the default's dtype, device and shape."""
    value = state.get(key)
    if value is None:
        state[key] = default
    elif not isinstance(value, Tensor) or (value.dtype, value.device, value.shape) != (
        default.dtype,
        default.device,
        default.shape,
    ):
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(
                f"{key} in a parameter's state must be one number, got a tensor of shape {tuple(value.shape)}"
            )
        state[key] = torch.full_like(default, float(value))


def check(state_dict: dict[str, Any], groups: Sequence[dict[str, Any]], defaults: dict[str, Any]) -> None:
    """Raise, naming parameter, key and value, unless the state is one of ACMo or SGD and fits these groups.

    It comes before anything is changed, and what it lets pass can be loaded to the end.
    """
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise ValueError(f"the state dict has no {key!r}, only {list(state_dict)}: it is not one of an optimizer")
    saved = state_dict["param_groups"]
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in groups]:
        return  # torch says so itself, before it changes anything
    complete = [{**pick(mine, defaults), **theirs} for mine, theirs in zip(groups, saved, strict=True)]
    for i, (group, mine, theirs) in enumerate(zip(complete, groups, saved, strict=True)):
        check_group(group, complete[:i])
        whole_number("skipped_steps", f"group {i}", group["skipped_steps"])
        if len(theirs.get("param_names", mine["params"])) != len(mine["params"]):
            raise ValueError(misfit("param_names", f"group {i}", f"{len(mine['params'])}", theirs["param_names"]))
        for j, p in enumerate(mine["params"]):
            check_momentum_dtype(group["momentum_dtype"], p, f"parameter {j} of group {i}")
    options = {id(p): group for mine, group in zip(groups, complete, strict=True) for p in mine["params"]}
    for who, p, state in matched(state_dict, groups):
        if not isinstance(state, dict) or not set(state) <= set(KEYS):
            foreign = [key for key in state if key not in KEYS] if isinstance(state, dict) else state
            raise ValueError(f"the state dict is not one of ACMo or SGD: the state of {who} has {foreign!r}")
        if state.get("momentum_buffer") is not None:
            check_moment(who, state["momentum_buffer"], p, options[id(p)])
        if state.get("step") is not None:
            whole_number("step", who, state["step"])
        if state.get("beta_hat") is not None and not one_number("beta_hat", who, state["beta_hat"]) >= 0:
            raise ValueError(misfit("beta_hat", who, ">= 0", state["beta_hat"]))
    for i, theirs in enumerate(saved):  # one that was saved before its first step has no state to tell by
        if "betas" in theirs and "momentum" not in theirs:
            raise ValueError(f"the state dict is not one of ACMo or SGD: group {i} has betas={theirs['betas']!r}")


def check_moment(who: str, m: Any, p: Tensor, group: dict[str, Any]) -> None:
    """Raise unless m can be the moment of p under the options of its group."""
    dtype = group["momentum_dtype"] or p.dtype
    if not isinstance(m, Tensor):
        raise TypeError(misfit("momentum_buffer", who, "a Tensor or None", m))
    if m.shape != p.shape:
        raise ValueError(misfit("momentum_buffer", who, f"of the parameter's shape {tuple(p.shape)}", tuple(m.shape)))
    if m.is_complex() != p.is_complex() or not (m.is_complex() or m.is_floating_point()):
        raise ValueError(misfit("momentum_buffer", who, f"of a dtype that can become {dtype}", m.dtype))
    if m.layout != torch.strided or (m.is_meta and not p.is_meta):
        raise ValueError(misfit("momentum_buffer", who, "dense and have data", (m.layout, m.device)))
    placed = [getattr(x, "placements", None) for x in (m, p)]  # of DTensors
    if placed[0] != placed[1]:
        raise ValueError(misfit("momentum_buffer", who, f"sharded as the parameter, {placed[1]}", placed[0]))
    if group["nonfinite"] == "propagate":
        return  # NaN goes in as it came out, as with torch.optim
    (here,) = real([local(m.detach())])
    if not has_values(here) or not here.numel():
        return
    # The extremes tell, and take no memory; after the cast, for it may overflow.
    low, high = (float(x.to(dtype.to_real())) for x in torch.aminmax(here))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(misfit("momentum_buffer", who, f"finite as {dtype}", [low, "...", high]))


def one_number(key: str, who: str, value: Any) -> float:
    """The value as a float; 0 where it is one but cannot be looked at."""
    if isinstance(value, Tensor) and value.numel() == 1 and not has_values(value):
        return 0.0
    try:
        return checks.number(key, value)
    except (TypeError, ValueError):
        raise ValueError(misfit(key, who, "one number", value)) from None


def whole_number(key: str, who: str, value: Any) -> None:
    x = one_number(key, who, value)
    if not (x >= 0 and x.is_integer()):
        raise ValueError(misfit(key, who, "a whole number >= 0", value))


def has_values(x: Tensor) -> bool:
    """Whether a tensor's values can be looked at: not so on meta, nor under a FakeTensorMode."""
    return not x.is_meta and not isinstance(x, FakeTensor)


def misfit(key: str, who: str, wanted: str, got: Any) -> str:
    return f"the state dict does not fit: {key} of {who} must be {wanted}, got {got!r}"


def restore(
    state: dict[Tensor, Any],
    groups: Sequence[dict[str, Any]],
    before: Sequence[dict[str, Any]],
    defaults: dict[str, Any],
    state_dict: dict[str, Any],
) -> None:
    """Give back what torch's load drops (options that the state lacks) and casts (all to the parameter's dtype)."""
    for group, old in zip(groups, before, strict=True):
        for key in defaults:
            group.setdefault(key, old[key])
        group["projection"] = old["projection"]  # the live one: what is saved is a placeholder
        for key in ("dampening", "nesterov"):  # SGD's, without meaning here
            group.pop(key, None)
    dtypes = {id(p): group["momentum_dtype"] or p.dtype for group in groups for p in group["params"]}
    for _, p, saved in matched(state_dict, groups):
        mine = state[p]
        for key, dtype in (
            ("momentum_buffer", dtypes[id(p)]),
            ("step", torch.float32),
            ("beta_hat", scalar_dtype(p.device)),
        ):
            value = saved.get(key)
            if isinstance(value, Tensor):
                # Always a copy: the state that was given must not change as this optimizer goes on.
                mine[key] = value.detach().to(device=p.device, dtype=dtype, copy=True)
            elif value is not None:
                mine[key] = torch.tensor(float(value), dtype=dtype, device=p.device)
            if key != "momentum_buffer" and value is not None:
                mine[key] = mine[key].reshape(() if key == "step" else 1)


def matched(
    state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """(what to call it in an error, parameter, saved state) of every parameter that has a saved state."""
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    parameters = [p for group in groups for p in group["params"]]
    names = [name for group in groups for name in group.get("param_names", [None] * len(group["params"]))]
    for i, (number, p, name) in enumerate(zip(numbers, parameters, names, strict=True)):
        if number in state_dict["state"]:
            yield f"parameter {i}" if name is None else f"parameter {i} ({name!r})", p, state_dict["state"][number]


def pick(group: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in keys}


def dtype_name(dtype: torch.dtype | None) -> str | None:
    """As it is saved: torch.distributed.checkpoint neither gathers nor offloads a torch.dtype."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def typed(group: dict[str, Any]) -> dict[str, Any]:
    """A saved group with its dtype as torch's: a copy, for the state that was given must stay as it is.

    SGD's choice of a backend is left out: its fused kernel serves where ours does not, and ours has another name.
    """
    if "nesterov" in group:
        group = {key: value for key, value in group.items() if key not in ("foreach", "fused")}
    name = group.get("momentum_dtype")
    return {**group, "momentum_dtype": getattr(torch, name, name)} if isinstance(name, str) else group
