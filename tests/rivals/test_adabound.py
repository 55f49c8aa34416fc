"""AdaBound: its bounds, what they follow, and a second opinion."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR
from torch.testing import assert_close

from acmo.rivals import AdaBound


def step_of(optimizer: AdaBound, p: nn.Parameter, grad: torch.Tensor) -> torch.Tensor:
    before = p.detach().clone()
    p.grad = grad.clone()
    optimizer.step()
    return before - p.detach()


def test_the_rate_of_every_entry_stays_between_the_bounds():
    p = nn.Parameter(torch.zeros(50, dtype=torch.float64))
    optimizer = AdaBound([p], lr=0.01, final_lr=0.1, gamma=0.05)
    for t in range(1, 101):
        step = step_of(optimizer, p, torch.randn(50, dtype=torch.float64) * torch.logspace(-5, 5, 50))
        rates = step / optimizer.state[p]["exp_avg"]
        assert (rates >= 0.1 * (1 - 1 / (0.05 * t + 1)) - 1e-9).all()
        assert (rates <= 0.1 * (1 + 1 / (0.05 * t)) + 1e-9).all()
    assert rates.max() - rates.min() > 0.01  # the bounds are not all there is


def test_in_the_end_it_is_sgd_with_momentum_at_final_lr():
    p = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = AdaBound([p], lr=0.01, final_lr=0.3, gamma=0.999)
    for _ in range(2000):
        step = step_of(optimizer, p, torch.randn_like(p))
    assert_close(step, 0.3 * optimizer.state[p]["exp_avg"], rtol=1e-3, atol=0)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_scheduler_scales_the_bounds_with_lr(foreach: bool):
    """Where the bound is what holds, half the lr is half the step; lr alone would change nothing."""
    halved, plain = (nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(2))
    optimizers = [AdaBound([p], lr=10.0, final_lr=0.1, gamma=0.5, foreach=foreach) for p in (halved, plain)]
    LambdaLR(optimizers[0], lambda _: 0.5)
    grad = torch.full((3,), 1e-3, dtype=torch.float64)
    assert_close(step_of(optimizers[0], halved, grad), 0.5 * step_of(optimizers[1], plain, grad), rtol=1e-12, atol=0)


def test_group_added_later_has_bounds_of_its_own_lr():
    first, late, alone = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3))
    optimizer = AdaBound([first], lr=0.1)
    step_of(optimizer, first, torch.ones_like(first))
    optimizer.add_param_group({"params": [late], "lr": 1e-3})
    first.grad = None
    grad = torch.tensor([1.0, -2.0], dtype=torch.float64)
    step = step_of(optimizer, late, grad)
    assert step.abs().min() > 0
    assert_close(step, step_of(AdaBound([alone], lr=1e-3), alone, grad), rtol=1e-12, atol=0)


def test_training_resumed_with_a_lower_lr_keeps_its_initial_lr():
    p, q = (nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(2))
    optimizer = AdaBound([p], lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    grads = torch.randn(10, 3, dtype=torch.float64)
    for grad in grads[:5]:
        step_of(optimizer, p, grad)
        scheduler.step()
    q.data.copy_(p.data)
    resumed = AdaBound([q], lr=0.003)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for grad in grads[5:]:
        assert torch.equal(step_of(optimizer, p, grad), step_of(resumed, q, grad))


@pytest.mark.slow
@pytest.mark.parametrize("decoupled", [False, True], ids=["coupled", "decoupled"])
@pytest.mark.parametrize("ams", [False, True], ids=["AdaBound", "AMSBound"])
def test_pytorch_optimizer_agrees(ams: bool, decoupled: bool):
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    x = torch.randn(4, 3, dtype=torch.float64)
    one, two = nn.Parameter(x.clone()), nn.Parameter(x.clone())
    common: dict[str, Any] = {"lr": 0.01, "gamma": 0.1, "weight_decay": 0.1}
    ours = AdaBound([one], amsbound=ams, decoupled_weight_decay=decoupled, **common)
    theirs = pytorch_optimizer.AdaBound([two], ams_bound=ams, weight_decouple=decoupled, **common)
    schedulers = [ExponentialLR(optimizer, 0.95) for optimizer in (ours, theirs)]
    for _ in range(30):
        one.grad = torch.randn_like(one)
        two.grad = one.grad.clone()
        ours.step()
        theirs.step()
        for scheduler in schedulers:
            scheduler.step()
        assert_close(one, two, rtol=1e-10, atol=1e-12)
