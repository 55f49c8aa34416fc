"""The options of ACMo: what may be chosen, and whether a group's choice is valid."""

from collections.abc import Sequence
from typing import Any

from acmo import checks
from acmo.projections import Projection, projected

SCOPES = ("global", "group", "tensor")
PSIS = ("identity", "sqrt")
POLICIES = ("skip", "raise", "propagate")
# What cannot differ between the groups of one optimizer.
OPTIMIZER_WIDE = ("norm_scope", "psi", "max_grad_norm", "nonfinite", "foreach", "fused", "differentiable")


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
    if group["max_grad_norm"] is not None:
        checks.at_least("max_grad_norm", group["max_grad_norm"], strict=True, finite=False)
    checks.exclusive(group, ("differentiable", "foreach"), ("differentiable", "fused"), ("foreach", "fused"))
    for other in others:
        for key in OPTIMIZER_WIDE:
            if group[key] != other[key]:
                raise ValueError(
                    f"{key} is one for the whole optimizer, got {group[key]!r} in one group, {other[key]!r} in another"
                )


def check_params(group: dict[str, Any], projection: Projection | None) -> None:
    """Raise unless the options fit the parameters."""
    if projection is not None and not callable(projection):
        raise TypeError(f"projection must be a callable or None, got {projection!r}")
    for p in group["params"]:
        if p.is_conj() or p.is_neg():
            raise ValueError(f"a parameter is a lazy view, {p!r}: pass its resolve_conj().resolve_neg() instead")
        if hasattr(p, "placements"):  # a DTensor, without importing torch.distributed
            raise ValueError(f"sharded parameters are not served yet, got a DTensor placed {p.placements}")
        if group["momentum_dtype"] is not None and p.is_complex():
            raise ValueError(f"momentum_dtype={group['momentum_dtype']} needs real parameters, got one of {p.dtype}")
        if projection is not None:
            projected(projection, p.detach().clone())
