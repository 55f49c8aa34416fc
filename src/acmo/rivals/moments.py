"""Adam's moments, which four of the rivals start from: of one tensor, and of lists; and their bias correction."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from acmo.rivals.rival import gradient, gradients, real

NAMES = ("exp_avg", "exp_avg_sq")
LARGEST = "max_exp_avg_sq"  # of v, as AMSGrad keeps it


def moments(
    p: Tensor, state: dict[str, Any], group: dict[str, Any], largest: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """g, and m and v after it; the largest v so far if ``largest``."""
    beta1, beta2 = group["betas"]
    m, v = (real(state[name]) for name in NAMES)
    g = gradient(p, group)
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    if largest:
        v_hat = real(state[LARGEST])
        v = torch.maximum(v_hat, v, out=v_hat)
    return g, m, v


def moments_of_all(
    params: Sequence[Tensor], states: Sequence[dict[str, Any]], group: dict[str, Any], largest: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """The m and v of a list. Not g: what `gradients` made is gone before the caller makes a list of its own."""
    beta1, beta2 = group["betas"]
    m, v = ([real(s[name]) for s in states] for name in NAMES)
    g = gradients(params, group)
    torch._foreach_lerp_(m, g, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, g, g, 1 - beta2)
    if largest:
        v_hat = [real(s[LARGEST]) for s in states]
        torch._foreach_maximum_(v_hat, v)
        v = v_hat
    return m, v


def bias_correction(t: int, group: dict[str, Any]) -> float:
    """√(1 − β2^t)/(1 − β1^t): what the moments' start at 0 asks of the step size at step t."""
    beta1, beta2 = group["betas"]
    return float(math.sqrt(1 - beta2**t) / (1 - beta1**t))
