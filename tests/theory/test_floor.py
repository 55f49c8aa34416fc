"""Theorem F, rate plus floor for ACMo as it is used: every noise, every moment, and that the constants can fail."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import acmo
from acmo.theory import floor, problems
from acmo.theory.lemmas import Array, norm

entries = st.floats(-10, 10, allow_subnormal=False)
vectors = hnp.arrays(np.float64, (4, 3), elements=entries)
betas = st.floats(0, 0.999)


def worst_addition(gradient: Array, g: Array, beta: float, a: float) -> Array:
    """The v of length β‖g‖ that is worst for f: opposite to ∇f − a g."""
    against = gradient - a * g
    size = norm(against)[..., None]
    return np.asarray(-beta * norm(g)[..., None] * against / np.where(size == 0, 1, size))


def change_of_quadratic(gradient: Array, m: Array, alpha: float, curvature: Array) -> Array:
    """f(θ − αm) − f(θ) of a quadratic with this gradient at θ."""
    return np.asarray((-alpha * gradient * m + curvature * (alpha * m) ** 2 / 2).sum(-1))


@given(vectors, vectors, vectors, st.floats(0, 1), betas, st.floats(0, 3), st.booleans())
def test_f1_holds_for_every_gradient_noise_and_moment(
    gradient: Array, g: Array, direction: Array, share: float, beta: float, a: float, worst: bool
) -> None:
    """L = 1, saddles too; m_{t−1} is drawn, or its worst direction is taken."""
    size = norm(direction)[:, None]
    v = share * beta * norm(g)[:, None] * direction / np.where(size == 0, 1, size)
    if worst:
        v = worst_addition(gradient, g, beta, a)
    curvature = np.ones(3) if worst else np.clip(direction, -1, 1)
    change = change_of_quadratic(gradient, g + v, a, curvature)
    assert np.all(floor.f1_step(change, gradient, g, a, beta, 1.0) >= -1e-9 * (1 + norm(g) ** 2 + norm(gradient) ** 2))


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("a", [0.0, 0.19, 0.7])
def test_f1_is_attained_so_no_constant_can_be_smaller(beta: float, a: float) -> None:
    """∇f = (a + β) g makes ‖∇f − ag‖ = β‖g‖, where Young's inequality is an equality."""
    g, alpha = np.array([[1.0]]), a or 1e-3
    smoothness = a / alpha
    gradient = (a + beta) * g
    m = g + worst_addition(gradient, g, beta, a)
    change = change_of_quadratic(gradient, m, alpha, np.array([smoothness]))
    assert floor.f1_step(change, gradient, g, alpha, beta, smoothness)[0] == pytest.approx(0, abs=1e-12)
    assert floor.f1_step(change, gradient, g, alpha, 0.99 * beta, smoothness)[0] < 0


@given(
    hnp.arrays(np.float64, (1, 3), elements=entries),
    hnp.arrays(np.float64, (5, 3), elements=entries),
    hnp.arrays(np.float64, 5, elements=st.floats(0.01, 1)),
    betas,
    st.floats(0, 3),
)
def test_expected_change_bounds_adversarial_noise_of_mean_zero(
    gradient: Array, noise: Array, weights: Array, beta: float, a: float
) -> None:
    """Five values of the noise, every one met by its own worst v; the mean over them, exactly."""
    weights = weights / weights.sum()
    noise = noise - weights @ noise
    g = gradient + noise
    change = change_of_quadratic(gradient, g + worst_addition(gradient, g, beta, a), a, np.ones(3))
    bound = floor.expected_change(float(norm(gradient)[0] ** 2), float(weights @ norm(noise) ** 2), a, beta, 1.0)
    assert float(weights @ change) <= float(bound) + 1e-9 * (1 + (norm(g) ** 2).max() + (norm(noise) ** 2).max())


@given(st.floats(0, 10), st.floats(0, 10), betas, st.floats(0.001, 1))
def test_the_theorems_two_simplifications_only_loosen(x: float, s: float, beta: float, share: float) -> None:
    """For a ≤ 1 − β²: (1−β²)(1+a) − a² ≥ 1 − β², and (1+a)(a+β²) ≤ β² + 2a."""
    a = share * (1 - beta**2)
    plain = a / 2 * ((beta**2 + 2 * a) * s - (1 - beta**2) * x)
    assert floor.expected_change(x, s, a, beta, 1.0) <= plain + 1e-12 * (1 + x + s)


def run_against_state_dependent_noise(
    alpha: Array, beta: float, ups: tuple[float, float], chances: tuple[float, float], seeds: int = 400
) -> tuple[float, float]:
    """Run ACMo's rule on f = √(1+θ²) − 1 with two-valued noise whose law depends on the moment's sign.

    Returns the weighted mean of ‖∇f‖² and the largest s² of both laws. The noise is +up·p/(1−p) … of mean zero.
    """
    rng, problem = np.random.default_rng(0), problems.SkewedNoise()
    theta, m, total = np.zeros((seeds, 1)), np.zeros((seeds, 1)), 0.0
    for step in alpha:
        gradient = problem.grad(theta)
        total += step * float((gradient**2).mean())
        bad = (m[:, 0] > 0).astype(int)
        p, up = np.array(chances)[bad], np.array(ups)[bad]
        noise = np.where(rng.uniform(size=seeds) < p, -up * (1 - p) / p, up)[:, None]
        g = gradient + noise
        m = g + beta * np.abs(g) * np.sign(m)
        theta = theta - step * m
    variances = [u**2 * (1 - p) / p for u, p in zip(ups, chances, strict=True)]
    return total / float(alpha.sum()), max(variances)


@settings(max_examples=15)
@given(st.floats(0.05, 2), st.floats(0.05, 2), st.floats(0.05, 0.9), st.floats(0.05, 0.9), st.sampled_from([0.5, 0.9]))
def test_the_theorem_holds_when_noise_depends_on_the_moment(
    up0: float, up1: float, p0: float, p1: float, beta: float
) -> None:
    """Start at the minimum, so gap = 0 and all that is seen is floor. No standard error is needed: it is far below."""
    alpha = np.full(300, 0.5 * (1 - beta**2))
    mean, noise_sq = run_against_state_dependent_noise(alpha, beta, (up0, up1), (p0, p1))
    assert mean <= floor.floor_bound(0.0, alpha, beta, 1.0, noise_sq)


def test_the_floor_is_real_and_where_the_closed_form_says() -> None:
    """Two-valued noise at the worst p, scaled so that ∇f = −0.3 there: ACMo itself ends at it, whatever the start."""
    p, point = floor.best_equilibrium(0.9)
    assert 0.1 < point.share < floor.floor(1.0, 0.9)
    size = 0.3 / abs(point.gradient)
    down = size / p + point.gradient * size  # g = −size/p with probability p, so ξ = g − ∇f
    up = down * p / (1 - p)
    rng = np.random.default_rng(0)
    problem = problems.SkewedNoise()  # for its f alone
    theta = np.zeros((100, 1))
    params = [torch.nn.Parameter(row) for row in torch.from_numpy(theta)]
    opt = acmo.ACMo(params, lr=0.01, delta=0.0, norm_scope="tensor")
    seen = []
    for _ in range(600):
        noise = np.where(rng.uniform(size=100) < p, -down, up)[:, None]
        for param, row in zip(params, torch.from_numpy(problem.grad(theta) + noise), strict=True):
            param.grad = row
        opt.step()
        seen.append(float(problem.grad(theta).mean()))
    assert np.mean(seen[300:]) == pytest.approx(-0.3, abs=0.03)


def test_measured_means_on_the_egg_box_stay_below_the_bound() -> None:
    row = floor.measure_box(64, 0.19, 64, seeds=10)
    assert row.measured < row.bound
    long = floor.measure_box(64, 0.19, 256, seeds=10)
    assert long.rate == pytest.approx(row.rate / 4)
    assert long.measured < row.measured
    assert long.floor == pytest.approx(floor.measure_box(1, 0.19, 1, seeds=10).floor / 64)


def test_noise_bound_is_attained_to_a_thousandth() -> None:
    egg = problems.cosine_sum(n=5, d=2, seed=1)
    x = np.linspace(0, 2 * np.pi, 181) / egg.omega
    theta = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    each = np.stack([egg.grad_of(theta, np.full(len(theta), i)) for i in range(5)])
    largest = float(np.sqrt((norm(each - egg.grad(theta)) ** 2).mean(0).max()))
    assert 0.999 * egg.noise_bound <= largest <= egg.noise_bound * (1 + 1e-12)
    assert 0.999 * egg.steepest <= norm(egg.grad(theta)).max() <= egg.steepest * (1 + 1e-12)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"beta": 1.0}, r"beta must be in \[0, 1\), got 1.0"),
        ({"alpha": np.array([0.3])}, r"alpha must be in \(0, \(1 - beta²\)/L = 0.19\], got 0.3"),
        ({"alpha": np.array([0.0, 0.1])}, "alpha must be in"),
        ({"gap": -1.0}, "gap must be"),
        ({"noise_sq": -1.0}, "noise_sq must be"),
    ],
)
def test_a_floor_bound_outside_the_theorem_is_refused(bad: dict[str, object], says: str) -> None:
    usual = {"gap": 1.0, "alpha": np.array([0.1]), "beta": 0.9, "smoothness": 1.0, "noise_sq": 1.0}
    with pytest.raises(ValueError, match=says):
        floor.floor_bound(**{**usual, **bad})  # type: ignore[arg-type]


def test_the_tables_of_the_docs_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = floor.FloorRow(64, 0.19, 256, 0.5, 0.1, 1.0, 2.0, 3.0)
    monkeypatch.setattr(floor, "measure_box", lambda batch, step, steps: row)
    monkeypatch.setattr(floor, "skewed_offset", lambda psi: -0.25)
    floor._print_tables()
    out = capsys.readouterr().out
    assert "| 64 | 0.19 | 256 | 0.5000 ± 0.1000 | 6 = 1 + 2 + 3 |" in out
    assert "| 0.9 | 0.1066, p = 0.206 | 4.2632 |" in out
    assert "Ψ = identity -0.2500, Ψ = sqrt -0.2500" in out


def test_psi_sqrt_has_no_offset_under_skewed_noise() -> None:
    assert floor.skewed_offset("identity") < -0.15
    assert abs(floor.skewed_offset("sqrt")) < 0.03
