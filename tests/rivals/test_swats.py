"""SWATS: when it switches, at what rate, and that all parameters decide together."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from acmo.rivals import SWATS
from tests.support.rival_twins import assert_alike, twins


def vector(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def test_constant_gradient_switches_at_step_2_to_adams_rate():
    p = vector(0.0)
    optimizer = SWATS([p], lr=0.01, eps=0.0)
    p.grad = torch.tensor([4.0], dtype=torch.float64)
    optimizer.step()
    assert optimizer.switch_step is None
    optimizer.step()
    assert optimizer.switch_step == 2
    assert optimizer.sgd_lr == pytest.approx(0.01 / 4.0, rel=1e-12)
    before = p.item()
    optimizer.step()  # v = g, so (1 − β1) Λ g
    assert before - p.item() == pytest.approx(0.1 * 0.01, rel=1e-9)
    assert optimizer.switch_step == 2


def test_one_tensor_that_has_settled_does_not_switch_the_others():
    settled, noisy = vector(0.0), vector(0.0, 0.0)
    optimizer = SWATS([{"params": [settled]}, {"params": [noisy]}])
    for _ in range(10):
        settled.grad, noisy.grad = torch.ones_like(settled), 1 + 0.5 * torch.randn_like(noisy)
        optimizer.step()
    assert optimizer.switch_step is None


def test_an_uphill_rate_never_becomes_the_rate_of_sgd():
    """The gradient turns, Adam's momentum goes on: p and g agree, and γ is negative."""
    p = vector(0.0)
    optimizer = SWATS([p], lr=0.01, betas=(0.9, 0.0), tolerance=1.0)
    for value in (1.0, -0.5):  # with β2 = 0 the average is γ itself
        p.grad = torch.full_like(p, value)
        optimizer.step()
    assert optimizer.param_groups[0]["rate_average"] < 0
    assert optimizer.switch_step is None


def test_switch_frees_adams_moments_and_holds_for_every_group():
    one, two, idle = vector(1.0), vector(1.0, 2.0), vector(3.0)
    optimizer = SWATS([{"params": [one]}, {"params": [two, idle], "lr": 0.5}], tolerance=1e9)
    for _ in range(3):
        one.grad, two.grad = torch.ones_like(one), torch.ones_like(two)
        optimizer.step()
    assert [set(optimizer.state[p]) for p in (one, two)] == [{"step", "momentum_buffer"}] * 2
    assert idle not in optimizer.state
    assert len({group["sgd_lr"] for group in optimizer.param_groups}) == 1


def test_a_group_that_is_added_after_the_switch_starts_with_sgd():
    one, late = vector(1.0), vector(1.0)
    optimizer = SWATS([one], lr=0.01, eps=0.0)
    for _ in range(2):
        one.grad = torch.full_like(one, 4.0)
        optimizer.step()
    optimizer.add_param_group({"params": [late], "lr": 0.7})
    late.grad = torch.full_like(late, 2.0)
    optimizer.step()
    assert late.item() == pytest.approx(1 - 0.1 * optimizer.sgd_lr * 2.0, rel=1e-9)


def test_a_saved_training_knows_that_it_has_switched():
    one = vector(1.0, 2.0)
    optimizer = SWATS([one], lr=0.01, tolerance=1e9)
    for _ in range(4):
        one.grad = torch.randn_like(one).abs()
        optimizer.step()
    two = nn.Parameter(one.detach().clone())
    loaded = SWATS([two], lr=0.3, tolerance=1e9)
    loaded.load_state_dict(deepcopy(optimizer.state_dict()))
    assert loaded.switch_step == 2
    for _ in range(3):
        one.grad = torch.randn_like(one)
        two.grad = one.grad.clone()
        optimizer.step()
        loaded.step()
        assert torch.equal(one, two)


@pytest.mark.parametrize("option", [{"tolerance": 0.5}, {"betas": (0.9, 0.5)}], ids=str)
def test_groups_cannot_differ_in_how_they_decide(option: dict[str, object]):
    with pytest.raises(ValueError, match=r"one for the whole optimizer.*0\.5"):
        SWATS([{"params": [vector(1.0)]}, {"params": [vector(1.0)], **option}])


@pytest.mark.slow
def test_one_tensor_before_the_switch_equals_pytorch_optimizer():
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    one, two = twins(4, 3)
    ours = SWATS([one], lr=0.01, eps=1e-6, weight_decay=0.1)
    theirs = pytorch_optimizer.SWATS([two], lr=0.01, eps=1e-6, weight_decay=0.1, weight_decouple=False)
    assert_alike(ours, theirs)
    assert ours.param_groups[0]["rate_average"] == pytest.approx(theirs.state[two]["exp_avg2"].item(), rel=1e-9)
