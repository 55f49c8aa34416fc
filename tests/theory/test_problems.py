"""The problems' constants are what they say: attained, and never exceeded."""

import numpy as np
import pytest

from acmo.theory import problems
from acmo.theory.lemmas import norm


@pytest.fixture
def egg() -> problems.CosineSum:
    return problems.cosine_sum(n=5, d=2, seed=1)


def grid(problem: problems.CosineSum) -> problems.Array:
    x = np.linspace(0, 2 * np.pi, 181) / problem.omega
    return np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)


def test_the_mean_of_the_parts_is_the_whole(egg: problems.CosineSum) -> None:
    theta = grid(egg)[::97]
    parts = np.mean([egg.grad_of(theta, np.full(len(theta), i)) for i in range(5)], axis=0)
    np.testing.assert_allclose(parts, egg.grad(theta), atol=1e-12)
    h = 1e-7 / egg.omega
    for j in range(2):
        e = np.eye(2)[j] * h
        slope = (egg.value(theta + e) - egg.value(theta - e)) / (2 * h)
        np.testing.assert_allclose(slope, egg.grad(theta)[:, j], atol=1e-6)


def test_sigma_g_and_l_are_attained_to_a_thousandth(egg: problems.CosineSum) -> None:
    theta = grid(egg)
    each = np.stack([egg.grad_of(theta, np.full(len(theta), i)) for i in range(5)])
    sigma = norm(each - egg.grad(theta)).max()
    assert 0.999 * egg.sigma <= sigma <= egg.sigma * (1 + 1e-12)
    assert 0.999 * egg.gradient_bound <= norm(each).max() <= egg.gradient_bound * (1 + 1e-12)
    h = 1e-6 / egg.omega
    steepest = max(np.abs(egg.grad(theta + h * e) - egg.grad(theta)).max() / h for e in np.eye(2))
    assert steepest == pytest.approx(egg.smoothness, rel=1e-3)
    assert egg.smoothness == pytest.approx(1000)


def test_the_gap_is_zero_at_the_minimum_and_nowhere_negative(egg: problems.CosineSum) -> None:
    gap = egg.gap(grid(egg))
    assert gap.min() >= -1e-15
    assert gap.min() < 1e-3 * gap.max()


def test_the_egg_box_is_not_convex(egg: problems.CosineSum) -> None:
    theta, e = grid(egg), np.array([1.0, 0.0]) / egg.omega * 1e-3
    bend = egg.value(theta + e) + egg.value(theta - e) - 2 * egg.value(theta)
    assert bend.min() < 0 < bend.max()


def test_the_skewed_noise_has_mean_zero_and_its_constants() -> None:
    problem = problems.SkewedNoise()
    theta = np.linspace(-1e3, 1e3, 2001)[:, None]
    each = np.stack([problem.grad_of(theta, np.full(len(theta), i)) for i in range(10)])
    np.testing.assert_allclose(each.mean(0), problem.grad(theta), atol=1e-12)
    assert norm(each - problem.grad(theta)).max() == pytest.approx(problem.sigma)
    assert norm(each).max() <= problem.gradient_bound
