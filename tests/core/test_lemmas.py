"""What the paper proves of one step holds of ours, whatever is drawn: Lemma A.1 and the angle of m_t with g_t."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import acmo
from tests.support.backends import Backend, every_backend
from tests.support.oracle import Array, norm
from tests.support.scenario import Scenario


def vector(arrays: list[Array]) -> Array:
    return np.concatenate([a.ravel() for a in arrays]) if arrays else np.zeros(0)


def assert_lemmas(scenario: Scenario, rounding: float) -> None:
    """(1-β)‖g‖ ≤ ‖m‖ ≤ (1+β)‖g‖ and ⟨m, g⟩ ≥ (1-β)‖g‖² over each scope, β being the scope's largest.

    g is line 4's, from the oracle's trace (it depends on θ only by coupled decay); m is ACMo's own.
    """
    for scope in scenario.oracle.scopes():
        active = [k for k in scope if k in scenario.oracle.trace]
        g = vector([scenario.oracle.trace[k]["g"] for k in active])
        m = vector([scenario.moment(*k) for k in active])
        beta = max(scenario.groups[k[0]]["momentum"] for k in scope)
        g_norm, m_norm = norm([g]), norm([m])
        slack = rounding * g_norm
        assert (1 - beta) * g_norm - slack <= m_norm <= (1 + beta) * g_norm + slack
        assert float(m @ g) >= ((1 - beta) * g_norm - slack) * g_norm


betas = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.9, 1.0]))
sizes = st.sampled_from([0.0, 1e-6, 1.0, 1.0, 1.0, 1e6])


@every_backend
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["f64", "f32"])
@settings(max_examples=30)
@given(data=st.data())
def test_lemma_a1_and_the_descent_angle_hold_at_every_step(
    backend: Backend, dtype: torch.dtype, rounding: float, data: st.DataObject
):
    shapes = data.draw(st.lists(st.lists(st.sampled_from([(), (1,), (2,), (3, 5), (40,)]), min_size=1, max_size=2),
                                min_size=1, max_size=3))  # fmt: skip
    groups = [
        {
            "momentum": data.draw(betas),
            "delta": data.draw(st.sampled_from([0.0, 1e-8, 0.1, 10.0])),
            "weight_decay": data.draw(st.sampled_from([0.0, 0.1])),
            "lr": 0.01,
        }
        for _ in shapes
    ]
    wide = {
        "norm_scope": data.draw(st.sampled_from(["global", "group", "tensor"])),
        "psi": data.draw(st.sampled_from(["identity", "sqrt"])),
        "max_grad_norm": data.draw(st.sampled_from([None, 1.0])),
    }
    scenario = Scenario(shapes, groups, wide, backend, dtype, seed=data.draw(st.integers(0, 999)), missing=0.1)
    for size in data.draw(st.lists(sizes, min_size=2, max_size=12)):
        scenario.oracle.trace = {}  # a step without any gradient leaves nothing to check
        scenario.step([[None if g is None else g * size for g in row] for row in scenario.draw_grads()])
        assert_lemmas(scenario, rounding)


@every_backend
@settings(max_examples=50)
@given(
    m=st.lists(st.floats(-100, 100), min_size=5, max_size=5),
    g=st.lists(st.floats(-100, 100), min_size=5, max_size=5),
)
def test_with_beta_one_and_no_delta_the_moment_bisects_the_angle(backend: Backend, m: list[float], g: list[float]):
    before, gradient = torch.tensor(m, dtype=torch.float64), torch.tensor(g, dtype=torch.float64)
    p = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    opt = acmo.ACMo([p], momentum=1.0, delta=0.0, **backend)
    for p.grad in (before.clone(), gradient.clone()):
        opt.step()
    now = opt.state[p]["momentum_buffer"]
    lengths = [float(v.norm()) for v in (before, gradient, now)]
    # Opposite directions have no bisector: m_t vanishes, and what is left of it is rounding.
    if min(lengths[:2]) < 1e-100 or lengths[2] < 1e-6 * lengths[1]:
        return
    cos = torch.nn.functional.cosine_similarity
    unit_before, unit_gradient = before / lengths[0], gradient / lengths[1]
    assert float(cos(now, unit_gradient, dim=0)) == pytest.approx(float(cos(now, unit_before, dim=0)), abs=1e-9)
    assert float(now @ gradient) >= 0
