"""Checks of the parameters themselves: dtype, layout, and what their options and projection ask of them."""

from typing import Any

import torch
from torch import Tensor

from acmo.options import REAL_DTYPES
from acmo.projections import check_on_shards, project
from acmo.sharding import is_dtensor, is_flat_shard, local, sharding_groups


def check_params(group: dict[str, Any]) -> None:
    """Raise unless ACMo can step the parameters, and the projection fits them."""
    projection = group["projection"]
    if projection is not None and not callable(projection):
        raise TypeError(f"projection must be a callable or None, got {projection!r}")
    names = group.get("param_names")
    for i, p in enumerate(group["params"]):
        who = f"parameter {names[i]!r}" if names else f"parameter {i} of its group"
        check_tensor(p, who)
        check_momentum_dtype(group["momentum_dtype"], p, who)
        if projection is not None:
            if is_flat_shard(p) or (is_dtensor(p) and sharding_groups(p)):
                check_on_shards(projection, who)
            project(projection, local(p).detach().clone())


def check_tensor(p: Tensor, who: str) -> None:
    """Raise unless a parameter is a dense floating-point or complex tensor, each entry in a place of its own."""
    # Integers (quantised weights) come along in model.parameters() and can have no gradient: a step ignores them.
    if p.is_floating_point() and p.dtype not in REAL_DTYPES:
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
