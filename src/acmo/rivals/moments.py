"""Adam's moments, which four of the rivals use, for one tensor and for lists; and their bias correction."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from acmo.rivals.rival import Group, State, as_real, gradient, gradients

MOMENTS = ("exp_avg", "exp_avg_sq")
MAX_EXP_AVG_SQ = "max_exp_avg_sq"  # AMSGrad's largest v so far


def update_moments(p: Tensor, state: State, group: Group, largest: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Update m and v, and return g, m and v; if ``largest``, v is the largest so far."""
    beta1, beta2 = group["betas"]
    m, v = (as_real(state[name]) for name in MOMENTS)
    g = gradient(p, group)
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    if largest:
        v_hat = as_real(state[MAX_EXP_AVG_SQ])
        v = torch.maximum(v_hat, v, out=v_hat)
    return g, m, v


def update_moments_foreach(
    params: Sequence[Tensor], states: Sequence[State], group: Group, largest: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Update and return the m and v of a list. Not g: its memory is free before the caller allocates its own list."""
    beta1, beta2 = group["betas"]
    m, v = ([as_real(s[name]) for s in states] for name in MOMENTS)
    g = gradients(params, group)
    torch._foreach_lerp_(m, g, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, g, g, 1 - beta2)
    if largest:
        v_hat = [as_real(s[MAX_EXP_AVG_SQ]) for s in states]
        torch._foreach_maximum_(v_hat, v)
        v = v_hat
    return m, v


def bias_correction(t: int, group: Group) -> float:
    """Return √(1 − β2^t)/(1 − β1^t), which corrects the step size for moments that start at 0."""
    beta1, beta2 = group["betas"]
    return float(math.sqrt(1 - beta2**t) / (1 - beta1**t))
