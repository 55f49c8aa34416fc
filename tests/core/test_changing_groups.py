"""Parameters that come late, rest, freeze and come back, against the oracle."""

from __future__ import annotations

import pytest
import torch

import acmo
from tests.support.backends import Backend, every_backend
from tests.support.scenario import GROUPS, SHAPES, Scenario, as_array, decayed

every_case = pytest.mark.parametrize("scope", ["global", "group", "tensor"])
every_psi = pytest.mark.parametrize("psi", ["identity", "sqrt"])


def start(scope: str, psi: str, backend: Backend) -> Scenario:
    return Scenario(SHAPES, decayed(GROUPS, "coupled"), {"norm_scope": scope, "psi": psi}, backend)


@every_backend
@every_psi
@every_case
def test_a_group_added_later_joins_the_scope(scope: str, psi: str, backend: Backend):
    scenario = start(scope, psi, backend)
    for _ in range(6):
        scenario.step()
    late = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    options = {"lr": 0.03, "momentum": 0.7, "delta": 1e-3, "weight_decay": 0.02}
    scenario.opt.add_param_group({"params": [late], **options})
    scenario.oracle.add_group({"params": [as_array(late)], **options})
    scenario.params.append([late])
    scenario.shapes = [*scenario.shapes, [(5, 3)]]
    for _ in range(10):
        scenario.step()
    assert scenario.theta_error() < 1e-12
    assert scenario.moment_error() < 1e-12


@every_backend
@every_psi
@every_case
def test_gradients_that_appear_late_and_go_away_again(scope: str, psi: str, backend: Backend):
    scenario = start(scope, psi, backend)
    for t in range(24):
        grads = scenario.draw_grads()
        if t < 5:
            grads[0][1] = grads[2][0] = None
        if 9 <= t < 15:
            grads[0][0] = grads[1][0] = None
        scenario.step(grads)
        assert scenario.theta_error() < 1e-12
    assert scenario.moment_error() < 1e-12


@every_backend
def test_frozen_parameter_stays_and_resumes_with_its_moment(backend: Backend):
    torch.manual_seed(0)
    a, b = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    opt = acmo.ACMo([a, b], weight_decay=0.1, **backend)

    def step() -> None:
        opt.zero_grad()
        (a.square().sum() + (b.square().sum() if b.requires_grad else 0.0)).backward()
        opt.step()

    step()
    step()
    b.requires_grad_(False)
    theta, m = b.clone(), opt.state[b]["momentum_buffer"].clone()
    for _ in range(3):
        step()
    assert torch.equal(b, theta)
    assert torch.equal(opt.state[b]["momentum_buffer"], m)
    b.requires_grad_(True)
    m_norm = torch.cat([opt.state[p]["momentum_buffer"] for p in (a, b)]).norm()
    opt.zero_grad()
    (a.square().sum() + b.square().sum()).backward()
    g = {p: (p.grad + 0.1 * p).detach() for p in (a, b)}
    expected = g[b] + 0.9 * torch.cat([g[a], g[b]]).norm() / (m_norm + 1e-8) * m
    opt.step()
    torch.testing.assert_close(opt.state[b]["momentum_buffer"], expected, rtol=1e-13, atol=1e-13)
    assert float(opt.state[a]["step"]) == float(opt.state[b]["step"]) == 6


@every_backend
def test_hyper_parameters_changed_between_steps_count_at_once(backend: Backend):
    scenario = start("global", "identity", backend)
    for t in range(20):
        for i, group in enumerate(scenario.opt.param_groups):
            change = {"lr": 0.1 / (1 + t + i), "momentum": 0.9 - 0.02 * t, "weight_decay": 0.01 * t}
            group.update(change)
            scenario.oracle.groups[i].update(change)
        scenario.step()
    assert scenario.theta_error() < 1e-12
