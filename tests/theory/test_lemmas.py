"""Lemmas A.1 to A.6 over their own hypotheses, drawn by hypothesis; and that they can fail outside them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from acmo.theory import lemmas, path, problems
from acmo.theory.lemmas import Array, norm

numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
vectors = hnp.arrays(np.float64, (2, 3), elements=numbers)
betas = st.floats(0, 1)


@given(vectors, vectors, betas, st.floats(0, 10), betas)
def test_a1_holds_for_every_beta_delta_and_shrunk_beta_hat(
    g: Array, m: Array, beta: float, delta: float, shrink: float
) -> None:
    assert np.all(lemmas.a1_moment(g, m, beta, delta, shrink) >= -1e-9 * (1 + norm(g)))


def test_a1_is_attained_by_steady_and_opposite_gradients() -> None:
    g = np.array([[1.0, 2.0]])
    assert lemmas.a1_moment(g, g, 0.5, 0.0)[0] == pytest.approx(0)
    assert lemmas.a1_moment(g, -g, 0.5, 0.0)[0] == pytest.approx(0)
    assert lemmas.a1_moment(g, g, 0.5, 0.0, shrink=1.1)[0] < 0  # a β̂ that is larger than the algorithm's


@given(hnp.arrays(np.float64, (5, 2), elements=numbers), hnp.arrays(np.int64, (2, 3), elements=st.integers(0, 4)))
def test_a2_holds_for_every_batch(grads: Array, members: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> None:
    assert np.all(lemmas.a2_minibatch(grads, members) >= -1e-9 * (1 + norm(grads).max()))


@given(hnp.arrays(np.float64, (2, 4, 2), elements=numbers), betas)
def test_a3_holds_with_the_factor_one(grads: Array, beta: float) -> None:
    assert np.all(lemmas.a3_second_moment(grads, beta) >= -1e-9 * (1 + (norm(grads) ** 2).max(-1)))


@given(hnp.arrays(np.float64, (2, 4, 2), elements=numbers))
def test_a3s_factor_two_holds_for_every_single_gradient(grads: Array) -> None:
    full = grads.mean(-2, keepdims=True)
    sigma_sq = (norm(grads - full) ** 2).max(-1, keepdims=True)
    assert np.all(2 * (sigma_sq + norm(full) ** 2) - norm(grads) ** 2 >= -1e-9 * (1 + norm(grads) ** 2))


runs = st.tuples(st.integers(0, 50), st.integers(2, 12), st.floats(-1, 4), st.floats(0.01, 1.0))


def a_run(
    seed: int, n: int, log_smoothness: float, step: float, beta: float = 1 / 50
) -> tuple[path.Path, float, float]:
    """ACMo with Ψ and δ = σ on an egg box, α_0 = step/L; 40 steps, 8 seeds."""
    problem = problems.cosine_sum(n=n, d=3, smoothness=10.0**log_smoothness, seed=seed)
    rng = np.random.default_rng(seed)
    start = rng.uniform(-np.pi, np.pi, (8, 3)) / problem.omega
    alpha0 = step / problem.smoothness
    return path.run(problem, start, rng.integers(0, n, (40, 8)), alpha0, beta, problem.sigma), step, problem.sigma


@given(runs, st.floats(0, 0.99))
def test_a4_holds_from_the_second_step_on(case: tuple[int, int, float, float], beta: float) -> None:
    run, step, sigma = a_run(*case, beta=beta)
    alpha_l = step / np.sqrt(np.arange(1, 40))[:, None]  # Lα_{t−1}
    assert np.all(lemmas.a4_ratio(run.g[1:], run.m[:-1], sigma, 1.0, alpha_l, beta) >= -1e-9)


@given(runs)
def test_a5_holds_from_the_second_step_on(case: tuple[int, int, float, float]) -> None:
    run, _, _ = a_run(*case)
    assert np.all(lemmas.a5_beta_hat(run.raw[1:]) >= 0)


def test_a5s_one_twelfth_is_what_a4_gives_at_one_fiftieth() -> None:
    assert pytest.approx(0.0804, abs=1e-4) == 1 / 50 * (3 + 1 / (1 - 1 / 50))
    assert lemmas.a5_beta_hat(1 / 50 * (3 + 1 / (1 - 1 / 50))) > 0


def test_a4_fails_when_delta_is_below_sigma() -> None:
    g_before, g = np.array([1e-6]), np.array([2.0])  # ∇f = 1, σ = 1, no step in between
    assert (
        lemmas.a4_ratio(g, g_before, 0.01, 1.0, 0.0, 1 / 50) < 0 <= lemmas.a4_ratio(g, g_before, 1.0, 1.0, 0.0, 1 / 50)
    )


@given(
    hnp.arrays(np.float64, (8, 3), elements=st.floats(-10, 10)),
    hnp.arrays(np.float64, 8, elements=st.floats(0, 1 / 12)),
    st.integers(2, 5),
)
def test_a6_is_an_identity(g: Array, beta_hat: Array, i: int) -> None:
    beta_hat[1] = 0
    theta, m, alpha = path.unroll(g, beta_hat)
    if norm(theta[i + 1] - theta[i]) + norm(theta[i] - theta[i - 1]) > 1e-6:
        assert lemmas.a6_constructed(theta, g, m, beta_hat, alpha, i) >= 0


@given(vectors, vectors, hnp.arrays(np.float64, (2, 3), elements=st.floats(-1, 1)), betas, st.floats(0.01, 1))
def test_the_descent_holds_on_every_quadratic_batch_loss(
    theta: Array, m: Array, curvature: Array, beta: float, share: float
) -> None:
    curvature[:, 0] = 1  # L_A = 1
    g = curvature * theta
    beta_hat = beta * norm(g) / (norm(m) + 1e-3)
    after = theta - share * (g + beta_hat[:, None] * m)
    change = (curvature * (after**2 - theta**2)).sum(-1) / 2
    slack = lemmas.descent(g, m, beta, 1e-3, share, change)
    assert np.all(slack >= -1e-9 * (1 + norm(theta) ** 2))
