"""The options of ACMo: what may be chosen, and whether a group's choice is valid."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from acmo import checks
from acmo.projections import check_on_shards, projected
from acmo.sharding import cut_over, flat_shard, is_dtensor, local

SCOPES = ("global", "group", "tensor")
PSIS = ("identity", "sqrt")
POLICIES = ("skip", "raise", "propagate")
FLAGS = ("decoupled_weight_decay", "maximize", "differentiable")
CHOICES = ("foreach", "fused")  # None: whatever serves best
# What cannot differ between the groups of one optimizer.
OPTIMIZER_WIDE = ("norm_scope", "psi", "max_grad_norm", "nonfinite", "foreach", "fused", "differentiable")
wide = itemgetter(*OPTIMIZER_WIDE)


def check_group(group: dict[str, Any], others: Sequence[dict[str, Any]] = ()) -> None:
    """Raise, naming argument and value, unless a group's options are valid and agree with those of the other groups."""
    checks.at_least("lr", group["lr"])
    checks.between("momentum", group["momentum"], 0.0, 1.0)
    checks.at_least("delta", group["delta"])
    checks.at_least("weight_decay", group["weight_decay"])
    checks.one_of("norm_scope", group["norm_scope"], SCOPES)
    checks.one_of("psi", group["psi"], PSIS)
    checks.one_of("nonfinite", group["nonfinite"], POLICIES)
    checks.real_floating_dtype("momentum_dtype", group["momentum_dtype"])
    for name in FLAGS:
        checks.flag(name, group[name])
    for name in CHOICES:
        checks.flag(name, group[name], optional=True)
    if group["max_grad_norm"] is not None:
        checks.at_least("max_grad_norm", group["max_grad_norm"], strict=True, finite=False)
    checks.exclusive(group, ("differentiable", "foreach"), ("differentiable", "fused"), ("foreach", "fused"))
    for other in others:
        for key in OPTIMIZER_WIDE:
            if group[key] != other[key]:
                raise ValueError(
                    f"{key} is one for the whole optimizer, got {group[key]!r} in one group, {other[key]!r} in another"
                )


def check_edited(groups: Sequence[dict[str, Any]], known: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Raise if what holds for the whole optimizer was edited in a group to what is not valid; returns what holds.

    Quick where it is as it was when last asked (``known``): it is asked at every step.
    """
    now: tuple[Any, ...] = wide(groups[0])
    if now != known or any(wide(group) != now for group in groups[1:]):
        for k, group in enumerate(groups):
            check_group(group, groups[:k])
    return now


def check_params(group: dict[str, Any]) -> None:
    """Raise unless parameters and projection can be served, and fit the options."""
    projection = group["projection"]
    if projection is not None and not callable(projection):
        raise TypeError(f"projection must be a callable or None, got {projection!r}")
    names = group.get("param_names")
    for i, p in enumerate(group["params"]):
        who = f"parameter {names[i]!r}" if names else f"parameter {i} of its group"
        check_tensor(p, who)
        check_momentum_dtype(group["momentum_dtype"], p, who)
        if projection is not None:
            if flat_shard(p) or (is_dtensor(p) and cut_over(p)):
                check_on_shards(projection, who)
            projected(projection, local(p).detach().clone())


def check_tensor(p: Tensor, who: str) -> None:
    """Raise unless a parameter's entries can be stepped: numbers with a fraction, each in a place of its own."""
    # Integers (quantised weights) come along in model.parameters() and can have no gradient: a step passes them by.
    if p.is_floating_point() and p.dtype not in checks.REAL_DTYPES:
        raise ValueError(
            f"{who} has dtype {p.dtype}, but ACMo steps float16, bfloat16, float32, float64 and complex ones: pass "
            f"only those"
        )
    if p.layout != torch.strided:
        raise ValueError(f"{who} has layout {p.layout}: ACMo steps dense parameters (their gradients may be sparse)")
    if p.is_conj() or p.is_neg():
        raise ValueError(f"{who} is a lazy view, {p!r}: pass its resolve_conj().resolve_neg() instead")
    if p.numel() and any(size > 1 and stride == 0 for size, stride in zip(p.shape, p.stride(), strict=True)):
        raise ValueError(
            f"{who} is expanded (shape {tuple(p.shape)}, strides {p.stride()}), so several of its entries are one "
            f"place in memory: pass the tensor that was expanded, or a clone()"
        )


def check_momentum_dtype(dtype: torch.dtype | None, p: Tensor, who: str) -> None:
    """Raise for a real moment of a complex parameter."""
    if dtype is not None and p.is_complex():
        raise ValueError(f"momentum_dtype={dtype} needs real parameters, got {who} of {p.dtype}")
