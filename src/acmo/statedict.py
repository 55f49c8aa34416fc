"""A parameter's state: how it is made, and what torch's own load_state_dict does not check and does not keep."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from acmo.options import check_group
from acmo.parts import scalar_dtype


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
    """Raise unless the state fits these groups in its options and in the shape of every moment."""
    saved = state_dict["param_groups"]
    complete = [{**pick(mine, defaults), **theirs} for mine, theirs in zip(groups, saved, strict=False)]
    for i, group in enumerate(complete):
        check_group(group, complete[:i])
    for where, p, state in matched(state_dict, groups):
        m = state.get("momentum_buffer")
        if isinstance(m, Tensor) and m.shape != p.shape:
            raise ValueError(
                f"the state dict does not fit: momentum_buffer of parameter {where} has shape {tuple(m.shape)}, "
                f"the parameter {tuple(p.shape)}"
            )


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
            if key == "beta_hat" and value is not None:
                mine[key] = mine[key].reshape(1)


def matched(
    state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """(name or number, parameter, saved state) of every parameter that has a saved state."""
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    parameters = [p for group in groups for p in group["params"]]
    names = [name for group in groups for name in group.get("param_names", map(str, range(len(group["params"]))))]
    for number, p, name in zip(numbers, parameters, names, strict=False):
        if number in state_dict["state"]:
            yield name, p, state_dict["state"][number]


def pick(group: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in keys}
