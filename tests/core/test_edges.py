"""Gradients that are zero, tiny, huge or empty; and what a step must leave alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import acmo
from tests.support.backends import Backend, every_backend
from tests.support.scenario import GROUPS, SHAPES, Scenario, as_array, decayed

SCOPES = ("global", "group", "tensor")


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["f64", "f32", "bf16"])
@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
def test_gradients_are_never_modified(decay: str, dtype: torch.dtype, backend: Backend):
    groups = [group | {"maximize": True} for group in decayed(GROUPS, decay)]
    scenario = Scenario(SHAPES, groups, {"max_grad_norm": 0.1, "psi": "sqrt"}, backend, dtype)
    for _ in range(3):
        grads = scenario.draw_grads()
        for p, g in scenario.pairs(grads):
            p.grad = g.clone()
        held = [p.grad for p, _ in scenario.pairs(grads)]
        scenario.opt.step()
        for (p, g), before in zip(scenario.pairs(grads), held, strict=True):
            assert p.grad is before
            assert torch.equal(before, g)


@every_backend
@pytest.mark.parametrize("psi", ["identity", "sqrt"])
@pytest.mark.parametrize("scope", SCOPES)
def test_zero_gradients_stop_theta_and_clear_the_moment(scope: str, psi: str, backend: Backend):
    scenario = Scenario(SHAPES, decayed(GROUPS, "none"), {"norm_scope": scope, "psi": psi}, backend)
    zeros = [[torch.zeros(s, dtype=torch.float64) for s in shapes] for shapes in SHAPES]
    for first in (True, False):
        if not first:
            scenario.step()
        before = [as_array(p) for ps in scenario.params for p in ps]
        scenario.step(zeros)
        for p, theta in zip([p for ps in scenario.params for p in ps], before, strict=True):
            np.testing.assert_array_equal(as_array(p), theta)
            assert not scenario.opt.state[p]["momentum_buffer"].any()  # β̂ = 0: m = 0 + 0·m


@every_backend
def test_zero_gradients_still_decay_the_parameters(backend: Backend):
    for decoupled, expected in [(True, 2.0 * 0.99), (False, 2.0 - 0.1 * 0.1 * 2.0)]:
        p = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
        opt = acmo.ACMo([p], lr=0.1, weight_decay=0.1, decoupled_weight_decay=decoupled, **backend)
        p.grad = torch.zeros_like(p)
        opt.step()
        assert p.detach().tolist() == pytest.approx([expected] * 3, rel=1e-15)


@every_backend
def test_without_momentum_it_is_plain_sgd(backend: Backend):
    torch.manual_seed(0)
    a = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    opt = acmo.ACMo([a], lr=0.3, momentum=0.0, weight_decay=0.1, **backend)
    sgd = torch.optim.SGD([b], lr=0.3, weight_decay=0.1)
    for _ in range(10):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
        opt.step()
        sgd.step()
    torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("psi", ["identity", "sqrt"])
def test_first_step_without_delta_is_the_gradient_and_finite(psi: str, dtype: torch.dtype, backend: Backend):
    groups = [group | {"delta": 0.0} for group in decayed(GROUPS, "none")]
    scenario = Scenario(SHAPES, groups, {"psi": psi}, backend, dtype)
    grads = scenario.step()
    for p, g in scenario.pairs(grads):
        assert torch.equal(scenario.opt.state[p]["momentum_buffer"], g)
    for _ in range(20):
        scenario.step()
    assert scenario.theta_error() < (1e-12 if dtype == torch.float64 else 2e-5)


@every_backend
def test_a_moment_set_to_zero_is_not_divided_by(backend: Backend):
    p = torch.ones(3, dtype=torch.float64, requires_grad=True)
    opt = acmo.ACMo([p], lr=1.0, delta=0.0, psi="sqrt", **backend)
    for value in (1.0, 2.0):
        p.grad = torch.full_like(p, value)
        opt.step()
    opt.state[p]["momentum_buffer"].zero_()
    p.grad = torch.full_like(p, 3.0)
    before = p.detach().clone()
    opt.step()
    torch.testing.assert_close(before - p.detach(), p.grad, rtol=1e-14, atol=0.0)


def walk_at(size: float, backend: Backend, scope: str) -> Scenario:
    """Ten float32 steps with gradients of this size, and lr such that θ moves by about 1."""
    groups = [{"lr": 0.1 / size, "momentum": beta, "delta": 0.0} for beta in (0.9, 0.5)]
    shapes = [[(1000,), (3,)], [(40, 10)]]
    scenario = Scenario(shapes, groups, {"norm_scope": scope}, backend, torch.float32, scale=size)
    for _ in range(10):
        scenario.step()
    return scenario


@every_backend
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("size", [1e-30, 1e18])
def test_gradients_with_squares_beyond_float32_are_exact(size: float, scope: str, backend: Backend):
    scenario = walk_at(size, backend, scope)
    assert scenario.theta_error() < 2e-5
    assert scenario.moment_error() < 2e-5
    assert scenario.opt.telemetry()["skipped_steps"] == 0


@every_backend
@pytest.mark.parametrize("psi", ["identity", "sqrt"])
@pytest.mark.parametrize("scope", SCOPES)
def test_empty_parameters_take_part_and_harm_nothing(scope: str, psi: str, backend: Backend):
    shapes = [[(0,), (5,), (3, 0)], [(0, 2)], [(4,)]]
    wide = {"norm_scope": scope, "psi": psi, "max_grad_norm": 1.0}
    scenario = Scenario(shapes, decayed(GROUPS, "coupled"), wide, backend)
    for _ in range(20):
        scenario.step()
    assert scenario.theta_error() < 1e-12
    assert all(np.isfinite(v) for k, v in scenario.opt.telemetry().items() if k.endswith("norm"))


@every_backend
def test_nothing_but_empty_parameters_is_a_step_too(backend: Backend):
    p = torch.zeros(0, requires_grad=True)
    opt = acmo.ACMo([p], **backend)
    for _ in range(3):
        p.grad = torch.zeros(0)
        opt.step()
    assert p.shape == (0,)


@every_backend
def test_a_step_without_any_gradient_changes_nothing(backend: Backend):
    scenario = Scenario(SHAPES, GROUPS, {}, backend)
    scenario.step()
    before, state = [as_array(p) for ps in scenario.params for p in ps], scenario.opt.state_dict()
    steps = {k: v["step"].clone() for k, v in state["state"].items()}
    scenario.step([[None for _ in shapes] for shapes in SHAPES])
    for p, theta in zip([p for ps in scenario.params for p in ps], before, strict=True):
        np.testing.assert_array_equal(as_array(p), theta)
    assert {k: v["step"] for k, v in scenario.opt.state_dict()["state"].items()} == steps
