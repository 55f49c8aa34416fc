"""The oracle is right: small cases by hand, and a loop over one vector in torch that shares nothing with it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.support.oracle import Oracle


def one(theta: list[float], **options: object) -> Oracle:
    wide = {k: options.pop(k) for k in ("norm_scope", "psi", "max_grad_norm", "nonfinite") if k in options}
    return Oracle([{"params": [np.array(theta)], **options}], **wide)  # type: ignore[arg-type]


def test_two_steps_by_hand():
    # g1 = (3, 4): m = (3, 4), ‖m‖ = 5. g2 = (0, 10): β̂ = 0.5·10/5 = 1, m = (3, 14).
    oracle = one([1.0, 2.0], lr=0.1, momentum=0.5, delta=0.0)
    oracle.step([[np.array([3.0, 4.0])]])
    np.testing.assert_allclose(oracle.theta[0, 0], [0.7, 1.6])
    oracle.step([[np.array([0.0, 10.0])]])
    np.testing.assert_allclose(oracle.m[0, 0], [3, 14])
    np.testing.assert_allclose(oracle.theta[0, 0], [0.4, 0.2])


def test_clipping_and_coupled_decay_by_hand():
    # ‖g‖ = 5, C = 1: c = 1/(5 + 1e-6); then λθ is added to the clipped gradient; maximize turns g before that.
    oracle = one([10.0, 0.0], lr=1.0, weight_decay=0.1, max_grad_norm=1.0, maximize=True)
    oracle.step([[np.array([3.0, 4.0])]])
    c = 1 / (5 + 1e-6)
    np.testing.assert_allclose(oracle.m[0, 0], [-3 * c + 1.0, -4 * c], rtol=1e-15)


def test_decoupled_decay_shrinks_theta_but_not_the_moment():
    oracle = one([10.0], lr=0.5, weight_decay=0.1, decoupled_weight_decay=True)
    oracle.step([[np.array([1.0])]])
    np.testing.assert_allclose(oracle.theta[0, 0], [10 * 0.95 - 0.5])
    np.testing.assert_allclose(oracle.m[0, 0], [1.0])


@pytest.mark.parametrize(
    ("scope", "first", "second", "expected"),
    [
        ("global", (3, 0, 4), (6, 0, 8), (2, 2, 2)),  # 10/5 for all
        ("group", (3, 4, 4), (6, 8, 12), (2, 2, 3)),  # 10/5 for the first group's two, 12/4
        ("tensor", (2, 3, 4), (2, 6, 12), (1, 2, 3)),  # 2/2, 6/3, 12/4
    ],
)
def test_norms_are_taken_over_the_scope(scope: str, first: tuple, second: tuple, expected: tuple):
    options = {"momentum": 1.0, "delta": 0.0}
    groups = [{"params": [np.zeros(1), np.zeros(1)], **options}, {"params": [np.zeros(1)], **options}]
    oracle = Oracle(groups, norm_scope=scope)
    for a, b, c in (first, second):
        oracle.step([[np.array([a]), np.array([b])], [np.array([c])]])
    assert [oracle.trace[k]["beta_hat"] for k in oracle.theta] == pytest.approx(list(expected))


def test_sqrt_bounds_the_growth_of_beta_hat():
    # β̂: kept 1/0.5 = 2 at t = 1; t = 2: min(8/1.5, √2 · 2); t = 3 under √1.5 times what was applied.
    oracle = one([0.0], momentum=1.0, delta=0.5, psi="sqrt")
    oracle.step([[np.array([1.0])]])
    assert (oracle.kept[0, 0], oracle.trace[0, 0]["beta_hat"]) == (2, 0)
    oracle.step([[np.array([8.0])]])
    assert oracle.trace[0, 0]["beta_hat"] == pytest.approx(math.sqrt(2) * 2)
    oracle.step([[np.array([1e6])]])
    assert oracle.trace[0, 0]["beta_hat"] == pytest.approx(math.sqrt(3) * 2)


def test_a_zero_gradient_leaves_what_sqrt_keeps():
    oracle = one([0.0], momentum=1.0, delta=0.0, psi="sqrt")
    for g in (1.0, 1.0):
        oracle.step([[np.array([g])]])
    kept = oracle.kept[0, 0]
    oracle.step([[np.array([0.0])]])
    assert kept == 1
    assert (oracle.kept[0, 0], oracle.m[0, 0], oracle.step_of[0, 0]) == (kept, 0, 3)


def test_t_counts_the_parameters_that_rest():
    oracle = Oracle([{"params": [np.zeros(1), np.zeros(1)]}])
    for _ in range(3):
        oracle.step([[np.ones(1), None]])
    oracle.step([[None, np.ones(1)]])
    assert oracle.step_of == {(0, 0): 3, (0, 1): 4}


def test_a_nonfinite_gradient_is_skipped_raised_or_let_through():
    bad = [[np.array([1.0, np.nan])]]
    skip = one([1.0, 2.0])
    skip.step(bad)
    assert (skip.skipped_steps, skip.step_of[0, 0], skip.theta[0, 0].tolist()) == (1, 0, [1, 2])
    with pytest.raises(FloatingPointError, match=r"\(0, 0\)"):
        one([1.0, 2.0], nonfinite="raise").step(bad)
    through = one([1.0, 2.0], nonfinite="propagate")
    through.step(bad)
    assert np.isnan(through.theta[0, 0]).tolist() == [False, True]


@pytest.mark.parametrize("sizes", [1e-30, 1.0, 1e18, 1e200])
def test_agrees_with_a_literal_loop_over_one_vector(sizes: float):
    rng = np.random.default_rng(1)
    start = rng.standard_normal(11)
    oracle = Oracle([{"params": [start[:4], start[4:]], "lr": 0.3, "momentum": 0.95, "delta": 0.01}])
    theta, m = torch.from_numpy(start.copy()), torch.zeros(11, dtype=torch.float64)
    for _ in range(20):
        g = torch.from_numpy(rng.standard_normal(11)) * sizes
        oracle.step([[g[:4].numpy(), g[4:].numpy()]])
        scale = 1 / sizes
        beta_hat = 0.95 * (g * scale).norm() / ((m * scale).norm() + 0.01 * scale) if m.any() else 0.0
        m = g + beta_hat * m
        theta = theta - 0.3 * m
    np.testing.assert_allclose(np.concatenate([oracle.theta[0, 0], oracle.theta[0, 1]]), theta.numpy(), rtol=1e-12)
