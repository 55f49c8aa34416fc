"""Rows and unit steps: U.1 to U.4 over their own hypotheses, their constants, and what does not hold."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from acmo import RowACMo
from acmo.theory import problems, rows
from acmo.theory.lemmas import Array, norm

R, N = 3, 4
LENGTHS = np.array([4, 2, 1])  # rows of unequal length, padded with zeros
MASK = np.arange(N) < LENGTHS[:, None]

numbers = st.floats(-1e3, 1e3, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-3 else x)
matrices = hnp.arrays(np.float64, (R, N), elements=numbers).map(lambda x: x * MASK)
betas = st.floats(0, 0.9999) | st.just(1.0)  # between them what is left of m_t may be rounding
positive = hnp.arrays(np.float64, R, elements=st.floats(1e-3, 1e3))


def tolerance(*sizes: Array) -> float:
    """Return what rounding may cost in sums of products of these sizes."""
    return 1e-12 * (1 + max(float(np.sum(size**2)) for size in sizes))


@given(matrices, matrices, betas, st.floats(0, 10), st.floats(-1, 1))
def test_u1_holds_in_every_row_for_every_psi_that_shrinks(
    g: Array, m: Array, beta: float, delta: float, shrink: float
) -> None:
    assert np.all(rows.u1_angle(g, m, beta, delta, shrink) >= -tolerance(g))
    assert np.all(rows.u1_consequences(g, m, beta, delta, shrink) >= -tolerance(g))


@given(matrices, matrices, st.floats(0, 0.999), st.floats(0, 10), positive)
def test_u1_survives_every_positive_row_factor(
    g: Array, m_prev: Array, beta: float, delta: float, factors: Array
) -> None:
    m = rows.calibrate(g, m_prev, beta, delta)
    assert rows.u1_combined(g, m, factors, beta) >= -tolerance(g) * factors.max()
    active = norm(g) > 0
    descent = (factors[:, None] * m * g)[active].sum()
    assert descent > 0 or not active.any()  # strictly, unless the gradient is 0 altogether


@given(matrices, hnp.arrays(np.int8, (R, N), elements=st.integers(-127, 127)), betas)
def test_u1_does_not_care_how_the_moment_was_stored(g: Array, stored: Array, beta: float) -> None:
    """A moment rounded to int8, or any other: the lemma is about every m_{t−1}."""
    assert np.all(rows.u1_angle(g, 0.37 * stored.astype(np.float64), beta) >= -tolerance(g))


def test_u1_is_attained_at_cosine_minus_beta_with_the_moment() -> None:
    beta = 0.9
    g, m_prev = np.array([[1.0, 0.0]]), 50 * np.array([[-beta, np.sqrt(1 - beta**2)]])
    m = rows.calibrate(g, m_prev, beta)
    assert (m * g).sum() / norm(m)[0] == pytest.approx(np.sqrt(1 - beta**2))
    assert rows.u1_consequences(g, m_prev, beta)[0] == pytest.approx(0, abs=1e-15)
    assert rows.u1_consequences(g, -g, beta)[0] == pytest.approx(0, abs=1e-15)  # ⟨m, g⟩ = (1−β)‖g‖²


def test_u1_fails_for_a_psi_that_enlarges_beta_hat() -> None:
    g = np.array([[1.0, 0.0]])
    assert rows.u1_angle(g, -g, 0.9, shrink=1.2)[0] < 0
    assert (rows.calibrate(g, -g, 0.9, shrink=1.2) * g).sum() < 0  # uphill


def test_u1_at_beta_one_has_no_lower_bound_and_may_have_no_step() -> None:
    g = np.array([[1.0, 0.0]])
    assert not rows.unit_step(g, rows.calibrate(g, -3 * g, 1.0)).any()  # m_t = 0: the row stays
    for angle in (1e-1, 1e-3, 1e-5):
        m = rows.calibrate(g, -np.array([[np.cos(angle), np.sin(angle)]]), 1.0)
        assert 0 < (m * g).sum() / norm(m)[0] < angle  # downhill all the same


def test_a_row_with_zero_gradient_takes_no_part() -> None:
    g, m_prev = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])
    m = rows.calibrate(g, m_prev, 0.9)
    assert m.tolist() == [[3, 4], [1, 0]]
    assert rows.unit_step(g, m).tolist() == [[0, 0], [np.sqrt(2), 0]]


def test_norms_over_the_tensor_do_not_allow_row_factors() -> None:
    """One β̂ for two rows: the step is downhill, and uphill once the first row is scaled down."""
    g, m_prev = np.array([[1.0, 0.0], [0.1, 0.0]]), np.array([[0.0, 0.0], [-1.0, 0.0]])
    factors = np.array([[0.01], [1.0]])
    by_tensor = rows.calibrate(g.reshape(1, 4), m_prev.reshape(1, 4), 0.9).reshape(2, 2)
    assert (by_tensor * g).sum() > 0 > (factors * by_tensor * g).sum()
    assert (factors * rows.calibrate(g, m_prev, 0.9) * g).sum() > 0


hessians = hnp.arrays(np.float64, (R * N, R * N), elements=st.floats(-2, 2)).map(lambda a: (a + a.T) / 2)


def row_smoothness(hessian: Array) -> Array:
    """Return L_r = Σ_s ‖H_rs‖ of a quadratic; entries beyond a row's length are masked out."""
    blocks = hessian.reshape(R, N, R, N) * MASK[:, :, None, None] * MASK
    return np.array([[np.linalg.norm(blocks[r, :, s], 2) for s in range(R)] for r in range(R)]).sum(1)


@given(hessians, matrices, matrices, matrices, betas, st.floats(1e-4, 10))
def test_u2_holds_on_every_quadratic_batch_loss(
    hessian: Array, linear: Array, theta: Array, m_prev: Array, beta: float, alpha: float
) -> None:
    def value(x: Array) -> float:
        return float((linear * x).sum() + x.ravel() @ hessian @ x.ravel() / 2)

    g = (linear + (hessian @ theta.ravel()).reshape(R, N)) * MASK
    u = rows.unit_step(g, rows.calibrate(g, m_prev, beta), LENGTHS)
    change = np.asarray(value(theta - alpha * u) - value(theta))
    smoothness, scale = row_smoothness(hessian), tolerance(linear, 10 * theta) + 1e-12 * alpha**2
    assert rows.u2_descent(change, g, alpha, beta, smoothness, LENGTHS) >= -scale


@given(matrices, matrices, st.floats(0, 0.99), positive, st.floats(0.01, 0.99))
def test_u2_a_step_below_the_largest_alpha_descends(
    theta: Array, m_prev: Array, beta: float, smoothness: Array, share: float
) -> None:
    assume(theta.any())
    g = smoothness[:, None] * theta  # f = Σ L_r ‖θ_r‖²/2
    alpha = share * rows.largest_alpha(g, beta, smoothness, LENGTHS)
    u = rows.unit_step(g, rows.calibrate(g, m_prev, beta), LENGTHS)
    before, after = ((smoothness[:, None] * x**2).sum() for x in (theta, theta - alpha * u))
    assert after < before


def test_u2_is_attained_so_the_largest_alpha_is_sharp() -> None:
    beta, smoothness = 0.8, np.array([3.0, 0.5])
    theta = np.array([[1.0, 0.0], [0.0, 2.0]])
    g = smoothness[:, None] * theta
    worst = np.array([[-beta, 0.6], [0.6, -beta]])  # cos(g, m_{t−1}) = −β in both rows
    u = rows.unit_step(g, rows.calibrate(g, worst, beta))
    largest = rows.largest_alpha(g, beta, smoothness)
    for alpha in (0.5 * largest, largest, 1.5 * largest):
        change = (smoothness[:, None] * ((theta - alpha * u) ** 2 - theta**2)).sum() / 2
        assert rows.u2_descent(change, g, alpha, beta, smoothness) == pytest.approx(0, abs=1e-12)
        assert (change > 1e-9) == (alpha > largest)


def test_u2_fails_with_constants_of_each_row_by_itself() -> None:
    """The loss xy is linear in each row, so such constants would be 0; L_r = Σ_s ‖H_rs‖ = 1 is right, and attained."""
    g, alpha = np.ones((2, 1)), 0.1  # at x = y = 1
    change = np.asarray((1 - alpha) ** 2 - 1)
    assert rows.u2_descent(change, g, alpha, 0.0, np.zeros(2)) < 0
    assert rows.u2_descent(change, g, alpha, 0.0, np.ones(2)) == pytest.approx(0, abs=1e-15)


@given(matrices, matrices, matrices, betas)
def test_u3_pair_holds_for_every_noise(gradient: Array, noise: Array, m_prev: Array, beta: float) -> None:
    slack = rows.u3_pair(gradient, noise, m_prev, beta)
    g = gradient + noise
    left = norm(rows.calibrate(g, m_prev, beta))  # the shorter, the less is known of its direction
    rounding = 1e-14 * norm(g) / np.where(left == 0, 1.0, left)
    assert np.all(slack >= -(1e-9 + rounding) * (1 + norm(gradient) + norm(noise)))


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_u3_pair_has_the_smallest_constant(beta: float) -> None:
    """Noise a little longer than the gradient, and opposite: ⟨∇f, u⟩ = −‖∇f‖."""
    gradient, cos = np.array([[1.0, 0.0]]), rows.floor_cosine(beta)
    slack = rows.u3_pair(gradient, -(1 + 1e-9) * gradient, np.zeros((1, 2)), beta)
    assert slack[0] == pytest.approx(0, abs=1e-8)
    assert cos - 0.99 * (1 + cos) > -1  # a constant of 0.99 (1+κ) would promise more than −‖∇f‖


paths = st.tuples(st.integers(0, 50), st.integers(1, 8), st.floats(-1, 3), st.floats(-3, 0.5), st.floats(0, 0.99))


def a_path(
    seed: int, n: int, log_smoothness: float, log_step: float, beta: float, steps: int = 40, seeds: int = 8
) -> tuple[problems.CosineSum, rows.RowPath, Array, Array, float]:
    """Unit steps on an egg box with 3 rows of 2 entries, α_t = α_0/√t; its L_r are exact."""
    problem = problems.cosine_sum(n=n, d=6, smoothness=10.0**log_smoothness, seed=seed)
    rng = np.random.default_rng(seed)
    alpha = 10.0**log_step / problem.omega / np.sqrt(np.arange(1, steps + 1))
    start = rng.uniform(-np.pi, np.pi, (seeds, 6)) / problem.omega
    path = rows.run(problem, start, rng.integers(0, n, (steps, seeds)), alpha, beta, rows=3)
    depth = np.abs(problem.mean_phasor).reshape(3, 2).max(-1)
    return problem, path, alpha, problem.amplitude * problem.omega**2 * depth, float(problem.gap(start).max())


@given(paths)
def test_u3_holds_on_every_path(case: tuple[int, int, float, float, float]) -> None:
    problem, path, alpha, smoothness, _ = a_path(*case)
    assert np.all(rows.u3_path(path, alpha, case[-1], smoothness) >= -1e-9 * problem.amplitude)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_u3_is_attained_by_noise_that_reverses_a_linear_loss(beta: float) -> None:
    """On f = θ the noise −(1 + ε) makes every g = −ε: each step of α raises f by α."""
    alpha = np.array([0.3, 0.2, 0.1])
    ones = np.ones((3, 1, 1, 1))
    path = rows.RowPath(np.array([alpha.sum()]), ones, -(1 + 1e-9) * ones)
    assert rows.u3_path(path, alpha, beta, 0.0)[0] == pytest.approx(0, abs=1e-8)


@given(paths)
def test_u3_bounds_the_mean_gradient_without_noise(case: tuple[int, int, float, float, float]) -> None:
    seed, _, log_smoothness, log_step, beta = case
    _, path, alpha, smoothness, gap = a_path(seed, 1, log_smoothness, log_step, beta)
    mean = (alpha @ rows.row_norm(path.gradients)) / alpha.sum()
    assert mean.max() <= rows.u3_bound(gap, alpha, beta, 2 * smoothness.sum()) * (1 + 1e-9)


def test_u3_bounds_the_expected_gradient_with_noise() -> None:
    """Batches of one out of 8, 400 seeds; E‖ξ_r‖ ≤ σ_r over all θ, since |sin| ≤ 1 and by Jensen's inequality."""
    beta = 0.9
    problem, path, alpha, smoothness, gap = a_path(3, 8, 1.0, -1.0, beta, steps=200, seeds=400)
    apart = np.abs(problem.phasors - problem.mean_phasor) ** 2
    sigma = problem.amplitude * problem.omega * np.sqrt(apart.mean(0).reshape(3, 2).sum(-1))
    assert np.all(norm(path.noise).mean((0, 1)) <= sigma)
    mean = float(((alpha @ rows.row_norm(path.gradients)) / alpha.sum()).mean())
    noise = float((np.sqrt(2) * sigma).sum())
    bound = rows.u3_bound(gap, alpha, beta, float(2 * smoothness.sum()), noise)
    assert mean <= bound
    floor = rows.u3_bound(0.0, np.full(1, 1e-30), beta, 0.0, noise)
    assert floor == pytest.approx((1 + 1 / np.sqrt(1 - beta**2)) * noise)  # whatever α


def test_u3_the_best_constant_alpha_gives_one_over_root_t() -> None:
    gap, curvature, steps, beta = 3.0, 7.0, 1000, 0.6
    best = np.sqrt(2 * gap / (curvature * steps))
    bounds = [rows.u3_bound(gap, np.full(steps, c * best), beta, curvature) for c in (0.9, 1.0, 1.1)]
    assert bounds[1] == pytest.approx(np.sqrt(2 * gap * curvature / steps) / 0.8)
    assert bounds[1] < min(bounds[0], bounds[2])


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_a_constant_alpha_leaves_its_floor(beta: float) -> None:
    """On Lθ²/2 from θ = α/2 each step goes to the other side, −α/2 or α/2, so |∇f| stays αH/2."""
    theta, m, alpha, smoothness = np.array([[0.05]]), np.zeros((1, 1)), 0.1, 3.0
    for _ in range(50):
        g = smoothness * theta
        m = rows.calibrate(g, m, beta)
        theta = theta - alpha * rows.unit_step(g, m)
        assert abs(smoothness * theta[0, 0]) == pytest.approx(alpha * smoothness / 2)


def test_the_mean_unit_step_may_point_uphill() -> None:
    """Skewed noise: each step descends its own batch loss, their mean ascends f. Plain SGD's mean is ∇f."""
    problem = problems.SkewedNoise()
    gradient = np.full((10, 1, 1), -0.1)
    g = gradient + problem.slopes[:, None, None]
    u = rows.unit_step(g, rows.calibrate(g, np.zeros_like(g), 0.9))
    assert np.all(u * g > 0)
    assert u.mean() * -0.1 == pytest.approx(-0.08)
    assert g.mean() * -0.1 == pytest.approx(0.01)


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_skewed_noise_leaves_a_floor_for_every_alpha_and_beta(beta: float, alpha: float) -> None:
    problem, rng = problems.SkewedNoise(), np.random.default_rng(0)
    steps = int(10 / alpha)
    start = rng.uniform(-0.3, 0.3, (200, 1))
    path = rows.run(problem, start, rng.integers(0, 10, (steps, 200)), np.full(steps, alpha), beta)
    settled = norm(path.gradients[-steps // 2 :]).mean()
    assert 2 / 9 - 5 / 8 * alpha <= settled <= 2 / 9 + 2 * alpha  # E|ξ| = 0.4; U.3's floor is 0.8 at β = 0
    assert settled <= rows.u3_bound(0.0, np.full(1, alpha), beta, 1.0, 0.4)


def test_momentum_changes_nothing_in_rows_of_one_entry() -> None:
    rng = np.random.default_rng(0)
    g, m_prev = rng.normal(size=(100, 1, 1)), rng.normal(size=(100, 1, 1))
    for beta in (0.0, 0.9, 0.999):
        np.testing.assert_allclose(rows.unit_step(g, rows.calibrate(g, m_prev, beta)), np.sign(g), rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 1.0])
def test_u4_weights_are_those_in_the_moment_of_row_acmo(beta: float) -> None:
    grads = 3 * np.linalg.qr(np.random.default_rng(0).normal(size=(8, 6)))[0].T
    theta = torch.nn.Parameter(torch.zeros(1, 8, dtype=torch.float64))
    optimizer = RowACMo([theta], momentum=beta, norm_scope="row")
    for t, g in enumerate(grads, start=1):
        theta.grad = torch.from_numpy(g)[None]
        optimizer.step()
        moment = optimizer.state[theta]["momentum_buffer"].numpy()[0]
        np.testing.assert_allclose(grads[:t] @ moment / 9, rows.u4_weights(t, beta), atol=1e-12)


def test_u4_gives_the_noise_of_moments_in_many_dimensions() -> None:
    rng, d, steps, beta = np.random.default_rng(0), 20_000, 120, 0.9
    mean = np.zeros(d)
    mean[0] = 0.05  # beside noise of length 1
    calibrated, plain, shares = np.zeros(d), np.zeros(d), []
    for t in range(steps):
        g = mean + rng.normal(size=d) / np.sqrt(d)
        calibrated, plain = rows.calibrate(g, calibrated, beta), g + beta * plain
        if t >= 40:
            shares.append([m[0] / norm(m[1:]) / mean[0] for m in (calibrated, plain)])
    averaged = np.square(np.mean(shares, axis=0))
    expected = [rows.averaged_gradients(rows.noise_decay(beta)), rows.averaged_gradients(beta)]
    np.testing.assert_allclose(averaged, expected, rtol=0.15)
