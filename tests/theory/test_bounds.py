"""Theorem 4.1: settings, both bounds, and the repaired one's lemma R.3 along real paths."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import acmo
from acmo.theory import convergence_bound, path, problems, theorem_settings
from acmo.theory.bounds import printed_constants, r3_slack, repaired_constants
from acmo.theory.lemmas import norm


def test_settings_are_acmo_arguments_with_a_root_t_schedule() -> None:
    chosen = theorem_settings(L=2000.0, sigma=0.5)
    assert chosen == {"lr": 3 / 9240, "momentum": 1 / 50, "delta": 0.5, "psi": "sqrt"}
    w = torch.nn.Parameter(torch.ones(3))
    opt = acmo.ACMo([w], **chosen)
    schedule = chosen.schedule(opt)
    for t in range(1, 6):
        assert opt.param_groups[0]["lr"] == pytest.approx(chosen.alpha(t)) == pytest.approx(3 / 9240 / math.sqrt(t))
        w.grad = torch.ones(3)
        opt.step()
        schedule.step()


def test_papers_alpha0_is_below_the_repaired_theorems_limit() -> None:
    for smoothness in (1e-6, 1.0, 1e3, 1e12):
        assert theorem_settings(smoothness, 1.0)["lr"] < 4 / (5 * smoothness)


def test_the_printed_bound_is_the_papers_formula() -> None:
    c0, c1 = (10 / 2 + 235) * 0.001 * 4 + 70 * 9 + 1, (10 / 2 + 3) * 0.001 * 4 + 60 * 9 + 1
    assert printed_constants(10.0, 2.0, 3.0, 0.001) == pytest.approx((c0, c1))
    bound = convergence_bound(10.0, 2.0, 3.0, 0.001, 100)
    assert bound.printed == pytest.approx(c0 / 10 + c1 * math.log(100) / 10)


@given(
    st.floats(1, 1e4), st.floats(0, 10), st.floats(0, 10), st.floats(0.01, 0.8), st.integers(1, 10**6), st.floats(0, 10)
)
def test_the_repaired_bound_is_below_its_plain_form(
    smoothness: float, sigma: float, grad: float, share: float, steps: int, gap: float
) -> None:
    """2(√(T+1) − 1) ≥ √T from T = 2 on, and Σα_i/α_0 lies above both."""
    alpha0 = share / smoothness
    bound = convergence_bound(smoothness, sigma, grad, alpha0, steps, gap).repaired
    c0, c1 = repaired_constants(smoothness, sigma, grad, alpha0, gap)
    plain = (c0 + c1 * math.log(steps)) / math.sqrt(steps)
    assert bound <= plain * (1 + 1e-9) or steps == 1
    assert bound >= plain / 2 * (1 - 1e-9)


@given(st.floats(1e-3, 1e6), st.floats(0, 10), st.floats(1e-3, 10))
def test_repaired_constants_are_smaller_if_sigma_is_below_10_g(smoothness: float, share: float, grad: float) -> None:
    alpha0, sigma = theorem_settings(smoothness, 1.0)["lr"], share * grad
    printed = printed_constants(smoothness, sigma, grad, alpha0)
    repaired = repaired_constants(smoothness, sigma, grad, alpha0, gap=0.0)
    assert repaired.c0 < printed.c0
    assert repaired.c1 < printed.c1


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"L": 0.0}, "L must be"),
        ({"sigma": -1.0}, "sigma must be"),
        ({"G": math.inf}, "G must be"),
        ({"T": 0}, "T must be"),
        ({"gap": -0.1}, "gap must be"),
        ({"alpha0": 0.9}, r"alpha0 must be at most 4/\(5 L\) = 0.8, got 0.9"),
    ],
)
def test_a_bound_outside_the_theorem_is_refused(bad: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        convergence_bound(**{"L": 1.0, "sigma": 1.0, "G": 1.0, "alpha0": 0.1, "T": 10, **bad})


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 10), st.floats(-1, 4), st.floats(0.05, 0.8), st.integers(1, 80))
def test_r3_holds_along_every_path(seed: int, n: int, log_smoothness: float, share: float, steps: int) -> None:
    problem = problems.cosine_sum(n=n, d=3, smoothness=10.0**log_smoothness, seed=seed)
    rng = np.random.default_rng(seed)
    alpha0 = share / problem.smoothness
    start = rng.uniform(-np.pi, np.pi, (4, 3)) / problem.omega
    run = path.run(problem, start, rng.integers(0, n, (steps, 4)), alpha0, 1 / 50, problem.sigma)
    assert np.all(r3_slack(problem, run, alpha0) >= -1e-9 * problem.amplitude)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 60), st.floats(0.05, 0.8), st.floats(-2, 1), st.booleans())
def test_r3_needs_no_more_than_the_first_remark_says(
    seed: int, steps: int, alpha0: float, power: float, against: bool
) -> None:
    """Gradients that have nothing to do with f but ‖g‖ ≤ G, β̂ ≤ 1/12 as one likes, but for α_t β̂_t non-increasing."""
    problem, rng = problems.SkewedNoise(), np.random.default_rng(seed)  # f = √(1+θ²) − 1, L = 1
    shape = (steps, 20, 1)
    g, theta, m = rng.uniform(-1, 1, shape), np.zeros((steps + 1, 20, 1)), np.zeros(shape)
    raw, applied = rng.uniform(0, 1, shape[:2]) ** (10.0**power) / 12, np.zeros(shape[:2])
    theta[0] = rng.uniform(-3, 3, shape[1:])
    for k in range(steps):
        if against:  # up the hill, as hard as G = 1 allows
            g[k] = -np.sign(theta[k])
        if k:
            size = norm(m[k - 1])
            applied[k] = np.minimum(raw[k], norm(g[k]) / 50 / np.where(size == 0, 1, size))
            if k > 1:
                applied[k] = np.minimum(applied[k], np.sqrt((k + 1) / k) * applied[k - 1])
        m[k] = g[k] + applied[k][:, None] * (m[k - 1] if k else 0)
        theta[k + 1] = theta[k] - alpha0 / np.sqrt(k + 1) * m[k]
    assert np.all(r3_slack(problem, path.Path(theta, g, m, raw, applied), alpha0, G=1.0) >= -1e-12)


def test_r3_fails_for_a_step_far_above_the_theorems() -> None:
    """So the check can fail: with α_0 = 5/L a path climbs by more than R.3 allows when L is understated."""
    problem = problems.cosine_sum(n=2, d=3, seed=3)
    start = np.full((1, 3), 1.0) / problem.omega
    alpha0 = 5 / problem.smoothness
    run = path.run(problem, start, np.zeros((30, 1), dtype=np.int64), alpha0, 1 / 50, problem.sigma)
    assert r3_slack(problem, run, alpha0, problem.smoothness / 20, problem.gradient_bound / 20) < 0


def test_repaired_bound_holds_for_a_thousand_noisy_seeds() -> None:
    problem = problems.cosine_sum(n=6, d=4, seed=5)
    rng = np.random.default_rng(0)
    steps, seeds, alpha0 = 256, 1000, 0.8 / problem.smoothness
    start = rng.uniform(-np.pi, np.pi, (seeds, 4)) / problem.omega
    run = path.run(problem, start, rng.integers(0, 6, (steps, seeds)), alpha0, 1 / 50, problem.sigma)
    x = (norm(problem.grad(run.theta)) ** 2).mean(1)
    alpha = alpha0 / np.sqrt(np.arange(1, steps + 1))
    for t in (1, 2, 4, 16, 64, 256):
        gap = float(problem.gap(start).mean())
        bound = convergence_bound(problem.smoothness, problem.sigma, problem.gradient_bound, alpha0, t, gap)
        for law in (x[:t], x[1 : t + 1]):
            assert (alpha[:t] * law).sum() / alpha[:t].sum() <= bound.repaired
