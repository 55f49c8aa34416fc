"""Two parameters that begin alike, each with an optimizer of its own, and whether they stay alike."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close


def twins(*shape: int) -> tuple[nn.Parameter, nn.Parameter]:
    x = torch.randn(shape, dtype=torch.float64)
    return nn.Parameter(x.clone()), nn.Parameter(x.clone())


def assert_alike(
    ours: torch.optim.Optimizer,
    theirs: torch.optim.Optimizer,
    steps: int = 20,
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> None:
    """Step both with the same random gradients; their only parameters agree after every step."""
    one, two = (optimizer.param_groups[0]["params"][0] for optimizer in (ours, theirs))
    for _ in range(steps):
        one.grad = torch.randn_like(one)
        two.grad = one.grad.clone()
        ours.step()
        theirs.step()
        assert_close(one, two, rtol=rtol, atol=atol)
