"""Plain momentum with unit steps: ours without momentum, and g + βm with it."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from torch import nn

import acmo
from acmo.rivals import UnitMomentum

OURS: dict[str, Any] = {"rms": acmo.RowACMo, "spectral": acmo.SpectralACMo}


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 40))
    return net.double()


def train(optimizer: torch.optim.Optimizer, net: nn.Module, steps: int = 6) -> list[torch.Tensor]:
    torch.manual_seed(1)
    for _ in range(steps):
        tokens = torch.randint(0, 30, (12,))  # ten rows of the table never have a gradient
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(tokens), tokens.roll(1)).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("scopes", [True, False])
@pytest.mark.parametrize("unit_step", ["rms", "spectral"])
def test_without_momentum_it_is_ours(unit_step: str, scopes: bool):
    nets = network(), network()
    groups = [acmo.param_groups(net, 0.1, scopes=True) if scopes else list(net.parameters()) for net in nets]
    plain = UnitMomentum(groups[0], lr=0.02, momentum=0.0, weight_decay=0.1, unit_step=unit_step)
    calibrated = OURS[unit_step](groups[1], lr=0.02, momentum=0.0, weight_decay=0.1)
    for a, b in zip(train(plain, nets[0]), train(calibrated, nets[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_the_moment_is_g_plus_beta_m():
    p = nn.Parameter(torch.zeros(3, 5, dtype=torch.float64))
    optimizer = UnitMomentum([p], lr=0.1, momentum=0.95)
    m, theta = torch.zeros(3, 5, dtype=torch.float64), p.detach().clone()
    for t in range(5):
        p.grad = torch.randn(3, 5, dtype=torch.float64) * 10.0**t
        m = p.grad + 0.95 * m
        theta -= 0.1 * sqrt(5) * m / m.norm(dim=1, keepdim=True)
        optimizer.step()
        torch.testing.assert_close(p.detach(), theta)
        torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], m)


def test_rows_without_a_gradient_take_no_part():
    p = nn.Parameter(torch.ones(2, 3))
    optimizer = UnitMomentum([p], lr=0.1)
    for _ in range(2):
        p.grad = torch.ones(2, 3)
        optimizer.step()
    before, moment = p.detach().clone(), optimizer.state[p]["momentum_buffer"].clone()
    p.grad = torch.tensor([[0.0] * 3, [1.0] * 3])
    optimizer.step()
    assert torch.equal(p[0], before[0])
    assert torch.equal(optimizer.state[p]["momentum_buffer"][0], moment[0])
    assert (p[1] < before[1]).all()


@pytest.mark.parametrize("option", [{"unit_step": "none"}, {"norm_scope": "global"}, {"momentum": 1.0}])
def test_an_unknown_option_is_an_error(option: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(option))):
        UnitMomentum([nn.Parameter(torch.ones(2))], **option)
