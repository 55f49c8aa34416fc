"""Every backend computes what docs/how.md says: ACMo against the float64 oracle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import acmo
from tests.support.backends import BACKENDS, REFERENCE, Backend, every_backend
from tests.support.oracle import Oracle
from tests.support.scenario import GROUPS, SHAPES, Scenario, as_array, decayed

STEPS = 60
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
SCOPES, PSIS, DECAYS = ("global", "group", "tensor"), ("identity", "sqrt"), ("none", "coupled", "decoupled")

every_precision = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def assert_agrees(scenario: Scenario) -> None:
    tolerance = TOLERANCE[scenario.dtype]
    assert scenario.theta_error() < tolerance
    assert scenario.moment_error() < tolerance


@pytest.mark.combinations(3)
@every_backend
@every_precision
@pytest.mark.parametrize("maximize", [False, True], ids=["minimize", "maximize"])
@pytest.mark.parametrize("clip", [None, 2.0], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("psi", PSIS)
@pytest.mark.parametrize("scope", SCOPES)
def test_sixty_steps_agree_with_the_oracle(
    scope: str, psi: str, decay: str, clip: float | None, maximize: bool, dtype: torch.dtype, backend: Backend
):
    groups = [group | {"maximize": maximize} for group in decayed(GROUPS, decay)]
    wide = {"norm_scope": scope, "psi": psi, "max_grad_norm": clip}
    scenario = Scenario(SHAPES, groups, wide, backend, dtype, missing=0.15)
    for _ in range(STEPS):
        scenario.step()
    assert_agrees(scenario)


@pytest.mark.combinations
@every_backend
@every_precision
@pytest.mark.parametrize("scope", SCOPES)
def test_strongly_clipped_gradients_keep_precision_under_decay(scope: str, dtype: torch.dtype, backend: Backend):
    # ‖cg + λθ‖² made of ‖g‖², ⟨g, θ⟩ and ‖θ‖² would lose ‖g‖/C of its precision.
    groups = [group | {"weight_decay": 0.1} for group in GROUPS]
    wide = {"norm_scope": scope, "max_grad_norm": 1.0}
    scenario = Scenario([[(1000, 3), (50,)], [(67,)], [(8, 9)]], groups, wide, backend, dtype, scale=20.0)
    for _ in range(STEPS):
        scenario.step()
    assert_agrees(scenario)


@every_backend
@pytest.mark.parametrize("scope", SCOPES)
def test_groups_may_differ_in_the_kind_of_decay_and_in_maximize(scope: str, backend: Backend):
    groups = [
        GROUPS[0] | {"maximize": True},
        GROUPS[1] | {"weight_decay": 0.05, "decoupled_weight_decay": True},
        GROUPS[2] | {"maximize": True, "decoupled_weight_decay": True},
    ]
    scenario = Scenario(SHAPES, groups, {"norm_scope": scope, "max_grad_norm": 1.0}, backend)
    for _ in range(STEPS):
        scenario.step()
    assert_agrees(scenario)


@pytest.mark.combinations
@every_backend
@pytest.mark.parametrize("psi", PSIS)
@pytest.mark.parametrize("scope", SCOPES)
def test_groups_that_rest_for_long_come_back_as_the_oracle_says(scope: str, psi: str, backend: Backend):
    # Group 1 sleeps for steps 5 to 20, group 2 wakes first at step 10: t and β̂_prev are then those of the scope.
    scenario = Scenario(SHAPES, decayed(GROUPS, "none"), {"norm_scope": scope, "psi": psi}, backend)
    for t in range(40):
        grads = scenario.draw_grads()
        if 5 <= t < 20:
            grads[1] = [None for _ in grads[1]]
        if t < 10:
            grads[2] = [None for _ in grads[2]]
        scenario.step(grads)
    assert_agrees(scenario)


@pytest.mark.combinations
@every_backend
@pytest.mark.parametrize("psi", PSIS)
@pytest.mark.parametrize("scope", SCOPES)
def test_zero_gradients_in_between_do_not_kill_the_momentum(scope: str, psi: str, backend: Backend):
    scenario = Scenario(SHAPES, decayed(GROUPS, "none"), {"norm_scope": scope, "psi": psi}, backend)
    for t in range(30):
        grads = scenario.draw_grads()
        if t in (0, 7, 8, 15):
            grads = [[torch.zeros_like(g) for g in row if g is not None] for row in grads]
        if t == 15:  # the others rest with their m: the next step's norm is not 0, and Ψ compares with what was kept
            grads[1:] = [[None for _ in row] for row in grads[1:]]
        scenario.step(grads)
    assert_agrees(scenario)


@every_backend
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
def test_complex_parameters_agree_with_the_oracle(scope: str, backend: Backend):
    wide = {"norm_scope": scope, "max_grad_norm": 3.0}
    scenario = Scenario(SHAPES, decayed(GROUPS, "coupled"), wide, backend, torch.complex128)
    for _ in range(STEPS):
        scenario.step()
    assert scenario.theta_error() < 1e-12
    assert scenario.moment_error() < 1e-12


@every_backend
def test_layouts_other_than_contiguous_agree_with_the_oracle(backend: Backend):
    torch.manual_seed(0)
    bases = [torch.randn(6, 8, dtype=torch.float64), torch.randn(2, 3, 4, 5, dtype=torch.float64)]
    views = [bases[0].t(), bases[0].clone()[:, ::2], bases[1].to(memory_format=torch.channels_last)]
    params = [v.detach().requires_grad_() for v in views]
    opt = acmo.ACMo(params, momentum=0.8, weight_decay=0.1, max_grad_norm=2.0, **backend)
    group = {"params": [as_array(p) for p in params], "momentum": 0.8, "weight_decay": 0.1}
    oracle = Oracle([group], max_grad_norm=2.0)
    for step in range(20):
        grads = [torch.randn(p.shape, dtype=p.dtype) for p in params]
        if step % 2:  # a gradient's strides need not be its parameter's
            grads = [torch.randn(p.shape[::-1], dtype=p.dtype).permute(*reversed(range(p.dim()))) for p in params]
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        opt.step()
        oracle.step([[as_array(g) for g in grads]])
    for j, p in enumerate(params):
        torch.testing.assert_close(p.detach(), torch.from_numpy(oracle.theta[0, j]), rtol=1e-12, atol=1e-12)


shapes = st.lists(
    st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), min_size=1, max_size=3), min_size=1, max_size=3
)


def group_options() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "lr": st.floats(0, 1),
            "momentum": st.floats(0, 0.99),
            "delta": st.sampled_from([0.0, 1e-12, 1e-8, 0.1, 10.0]),
            "weight_decay": st.sampled_from([0.0, 1e-4, 0.1]),
            "decoupled_weight_decay": st.booleans(),
            "maximize": st.booleans(),
        }
    )


@every_backend
@settings(max_examples=40)
@given(data=st.data())
def test_drawn_shapes_and_settings_agree_with_the_oracle(backend: Backend, data: st.DataObject):
    drawn = data.draw(shapes)
    groups = [data.draw(group_options()) for _ in drawn]
    wide = {
        "norm_scope": data.draw(st.sampled_from(SCOPES)),
        "psi": data.draw(st.sampled_from(PSIS)),
        "max_grad_norm": data.draw(st.sampled_from([None, 0.1, 10.0])),
    }
    seed, scale = data.draw(st.integers(0, 2**16)), data.draw(st.sampled_from([1e-3, 1.0, 1e3]))
    missing = data.draw(st.sampled_from([0.0, 0.3]))
    scenario = Scenario(drawn, groups, wide, backend, seed=seed, scale=scale, missing=missing)
    for _ in range(15):
        scenario.step()
    # A tensor of one or two entries can lose digits in g + β̂m (up to 1/(1-β) a step): the slack is for those.
    assert scenario.theta_error() < 1e-10
    assert scenario.moment_error() < 1e-10


@pytest.mark.parametrize("backend", [pytest.param(REFERENCE, id="reference", marks=pytest.mark.slow), *BACKENDS[1:]])
def test_the_norm_of_thirty_million_entries_is_right(backend: Backend):
    # Plain float32 sums are off by 1e-3 to 1e-2 here. The second gradient has one entry, so its norm is exact: the
    # factor that it puts on the first, β̂ = 0.9 · 2^14 / ‖g_1‖, shows how exact that norm was.
    first = torch.rand(30_000_000).add_(0.5)
    norm = math.sqrt(sum(float(np.square(x, dtype=np.float64).sum()) for x in np.array_split(first.numpy(), 100)))
    p = torch.zeros_like(first, requires_grad=True)
    opt = acmo.ACMo([p], lr=1.0, momentum=0.9, delta=0.0, **backend)
    p.grad = first
    opt.step()
    assert opt.telemetry()["grad_norm"] == pytest.approx(norm, rel=1e-6)
    p.grad = torch.zeros_like(first)
    p.grad[0] = 2.0**14
    opt.step()
    beta_hat = 0.9 * 2.0**14 / norm
    m = opt.state[p]["momentum_buffer"]
    torch.testing.assert_close(m[1:1000], beta_hat * first[1:1000], rtol=2e-6, atol=0)
    torch.testing.assert_close(m[-1000:], beta_hat * first[-1000:], rtol=2e-6, atol=0)
    assert opt.telemetry()["beta_hat"] == pytest.approx(beta_hat, rel=1e-6)
