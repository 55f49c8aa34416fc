"""The options of ACMo: what may be chosen, and whether a group's choice is valid."""

from collections.abc import Sequence
from typing import Any

from acmo import checks

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
