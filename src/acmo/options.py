"""The options of ACMo, and the checks of hyper-parameters that its rivals and its JAX twin share."""

import math
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from acmo.newton_schulz import DEFAULT_STEPS
from acmo.scopes import ROW_SCOPES

REAL_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NORM_SCOPES = ("global", "group", "tensor", *ROW_SCOPES)
UNIT_STEPS = (False, "rms", "spectral")  # True means "rms"
PSIS = ("identity", "sqrt")
NONFINITE_POLICIES = ("skip", "raise", "propagate")
FLAGS = ("decoupled_weight_decay", "stochastic_rounding", "maximize", "differentiable")
OPTIONAL_FLAGS = ("foreach", "fused")  # None: the fastest backend there is
# What cannot differ between the groups of one optimizer.
OPTIMIZER_WIDE = (
    *("unit_step", "ns_steps", "ns_dtype", "psi", "max_grad_norm", "nonfinite", "foreach", "fused", "differentiable"),
)
# What a step must check again when a user has edited it.
read_edited = itemgetter("norm_scope", "spectral", "momentum_dtype", *OPTIMIZER_WIDE)


def check_group(group: dict[str, Any], others: Sequence[dict[str, Any]] = ()) -> None:
    """Raise, naming option and value, unless a group's options are valid and agree with those of the other groups."""
    check_at_least("lr", group["lr"])
    check_between("momentum", group["momentum"], 0.0, 1.0)
    check_at_least("delta", group["delta"])
    check_at_least("weight_decay", group["weight_decay"])
    check_one_of("norm_scope", group["norm_scope"], NORM_SCOPES)
    if not callable(group["psi"]):
        check_one_of("psi", group["psi"], PSIS)
    elif group["fused"]:
        raise ValueError(f"psi={group['psi']!r} is a callable, which no kernel can call: leave fused at None")
    check_one_of("unit_step", group["unit_step"], (True, *UNIT_STEPS))
    check_one_of("nonfinite", group["nonfinite"], NONFINITE_POLICIES)
    check_at_least("lr_scale", group["lr_scale"])
    check_flag("spectral", group["spectral"], optional=True)
    check_spectral(group)
    check_momentum_dtype(group["momentum_dtype"], group["norm_scope"])
    for name in FLAGS:
        check_flag(name, group[name])
    for name in OPTIONAL_FLAGS:
        check_flag(name, group[name], optional=True)
    if group["max_grad_norm"] is not None:
        check_at_least("max_grad_norm", group["max_grad_norm"], strict=True, finite=False)
    check_exclusive(group, ("differentiable", "foreach"), ("differentiable", "fused"), ("foreach", "fused"))
    if group["unit_step"] and group["max_grad_norm"] is not None:
        raise ValueError(f"max_grad_norm={group['max_grad_norm']} has no effect on unit steps: leave it out")
    if group["norm_scope"] in ROW_SCOPES and group["psi"] == "sqrt":
        raise ValueError(f"psi='sqrt' needs norm_scope 'global', 'group' or 'tensor', got {group['norm_scope']!r}")
    if group["stochastic_rounding"] and group["differentiable"]:
        raise ValueError("stochastic_rounding=True has no derivative: leave it or differentiable=True out")
    for other in others:
        scopes = {group["norm_scope"], other["norm_scope"]}
        if len(scopes) == 2 and scopes & {"global", "group"}:
            raise ValueError(
                f"norm_scope {group['norm_scope']!r} and {other['norm_scope']!r} cannot be mixed: "
                f"'global' and 'group' are one for the whole optimizer"
            )
        for key in OPTIMIZER_WIDE:
            same = group[key] == other[key] or (key == "unit_step" and {group[key], other[key]} == {True, "rms"})
            if not same:
                raise ValueError(
                    f"{key} is one for the whole optimizer, got {group[key]!r} in one group, {other[key]!r} in another"
                )


def check_spectral(group: dict[str, Any]) -> None:
    """Raise unless the number of iterations and what goes with spectral steps are valid."""
    steps, scope = group["ns_steps"], group["norm_scope"]
    if not isinstance(steps, int) or isinstance(steps, bool):
        raise TypeError(f"ns_steps must be a whole number, got {steps!r}")
    check_at_least("ns_steps", steps, 1)
    check_real_dtype("ns_dtype", group["ns_dtype"])
    if group["ns_dtype"] == torch.float16:  # its range is too short for the squares of small entries
        raise ValueError("ns_dtype must be torch.bfloat16, torch.float32 or torch.float64, got torch.float16")
    if group["unit_step"] != "spectral":
        if group["ns_dtype"] is not None:
            raise ValueError(f"ns_dtype={group['ns_dtype']} needs unit_step='spectral', got {group['unit_step']!r}")
        if steps != DEFAULT_STEPS:
            raise ValueError(f"ns_steps={steps} needs unit_step='spectral', got unit_step={group['unit_step']!r}")
    elif scope in ("global", "group"):
        raise ValueError(f"unit_step='spectral' needs norm_scope 'auto', 'row', 'column' or 'tensor', got {scope!r}")
    elif group["psi"] != "identity":
        raise ValueError(f"psi={group['psi']!r} has no effect on spectral steps: leave it out")


def check_momentum_dtype(dtype: Any, norm_scope: str) -> None:
    """Raise unless moments can be stored in a dtype: int8 is for the scopes by row, float16 for the others."""
    by_row = norm_scope in ROW_SCOPES
    if dtype is torch.int8 and not by_row:
        raise ValueError(f"momentum_dtype=torch.int8 needs norm_scope 'row', 'column' or 'auto', got {norm_scope!r}")
    if dtype is torch.float16 and by_row:
        raise ValueError(
            f"momentum_dtype=torch.float16 would lose small gradients by row (norm_scope={norm_scope!r}): use "
            f"torch.bfloat16 or torch.int8"
        )
    if dtype is not torch.int8:
        check_real_dtype("momentum_dtype", dtype)


def check_groups(groups: Sequence[dict[str, Any]]) -> None:
    """Raise unless the groups are valid and agree: users edit them between steps."""
    for k, group in enumerate(groups):
        check_group(group, groups[:k])


def check_at_least(name: str, value: Any, bound: float = 0.0, *, strict: bool = False, finite: bool = True) -> None:
    """Raise ValueError unless ``value`` is a number (or 1-element Tensor) that is >= ``bound`` (> when strict)."""
    x = read_number(name, value)
    if not (x > bound if strict else x >= bound) or (finite and math.isinf(x)):
        raise ValueError(
            f"{name} must be {'finite and ' if finite else ''}{'>' if strict else '>='} {bound:g}, got {value}"
        )


def check_between(
    name: str, value: Any, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Raise ValueError unless ``value`` lies between ``low`` and ``high``."""
    x = read_number(name, value)
    above = x > low if open_low else x >= low
    below = x < high if open_high else x <= high
    if not (above and below):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise ValueError(f"{name} must be in {interval}, got {value}")


def check_one_of(name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise ValueError unless ``value`` is among ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_flag(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise TypeError unless ``value`` is a bool (or None, where optional): "no" would count as True."""
    if not isinstance(value, bool) and not (optional and value is None):
        raise TypeError(f"{name} must be True or False{' or None' if optional else ''}, got {value!r}")


def check_real_dtype(name: str, value: Any) -> None:
    """Raise unless ``value`` is None or a real floating dtype that torch computes with (float8 is for storage)."""
    if value is None:
        return
    if not isinstance(value, torch.dtype):
        raise TypeError(f"{name} must be a torch.dtype or None, got {value!r}")
    if value not in REAL_DTYPES:
        raise ValueError(f"{name} must be one of {', '.join(map(str, REAL_DTYPES))}, got {value}")


def check_exclusive(options: dict[str, Any], *pairs: tuple[str, str]) -> None:
    """Raise ValueError when both options of a pair are set."""
    for first, second in pairs:
        if options[first] and options[second]:
            raise ValueError(f"{first}=True and {second}=True exclude each other: choose one of them")


def read_number(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise unless it is a real number or a Tensor of one."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {name} must be 1-element, got shape {tuple(value.shape)}")
        if value.is_complex():
            raise TypeError(f"{name} must be real, got {value}")
        return float(value.detach())
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"{name} must be a number, got {value!r}")
