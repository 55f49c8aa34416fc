"""Loading: what torch's own load_state_dict does not check, and what it does not keep."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from acmo.options import check_group
from acmo.parts import scalar_dtype


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
