"""Rows and unit steps: Lemmas U.1, U.2 and U.4 and Theorem U.3 of docs/theory.md, as slacks (≥ 0: holds) and bounds.

A case is an array [..., R, n] of R rows. Pad shorter rows with zeros and pass their lengths as ``n`` [R]: a row's unit
step is √n long. Nothing here uses the optimizer.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from acmo.theory.lemmas import Array, Real, norm
from acmo.theory.path import Problem

ROUNDING = 1e-14  # below this share of ‖g‖ what is left of m_t is rounding (β = 1 and m_{t−1} opposite to g)


def floor_cosine(beta: Real) -> Array:
    """Return κ = √(1−β²), Lemma U.1's lower bound of cos(m_t, g) in every row."""
    return np.asarray(np.sqrt(1 - np.asarray(beta, dtype=np.float64) ** 2))


def calibrate(g: Array, m_prev: Array, beta: Real, delta: Real = 0.0, shrink: Real = 1.0) -> Array:
    """Return m_t = g + β̂ m_{t−1} with β̂ = shrink · β‖g‖/(‖m_{t−1}‖ + δ) in each row; a row with g = 0 keeps m_{t−1}.

    ``shrink`` in [−1, 1] is what a callable Ψ may do without breaking Lemma U.1.
    """
    length, previous = norm(g), norm(m_prev)
    share = np.asarray(shrink * beta * length / np.where(previous == 0, 1.0, previous + delta))
    m = g + share[..., None] * m_prev
    m = np.where((norm(m) <= ROUNDING * length)[..., None], 0.0, m)
    return np.where((length == 0)[..., None], m_prev, m)


def unit_step(g: Array, m: Array, n: Real | None = None) -> Array:
    """Return u = √n m_t/‖m_t‖ in each row, and 0 where g = 0 (the row takes no part) or m_t = 0."""
    length = norm(m)
    factor = np.sqrt(g.shape[-1] if n is None else n) / np.where(length == 0, 1.0, length)
    return np.where((norm(g) == 0)[..., None], 0.0, factor[..., None] * m)


def row_norm(x: Array, n: Real | None = None) -> Array:
    """Return S(x) = Σ_r √n_r ‖x_r‖, the size of a gradient that unit steps see."""
    return np.asarray((np.sqrt(x.shape[-1] if n is None else n) * norm(x)).sum(-1))


def u1_angle(g: Array, m_prev: Array, beta: Real, delta: Real = 0.0, shrink: Real = 1.0) -> Array:
    """Return the slack of Lemma U.1 in each row, 2⟨m, g⟩ ≥ ‖m‖² + (1−β²)‖g‖²; 0 where g = 0.

    It implies ⟨m, g⟩ ≥ (1−β)‖g‖² and ⟨m, g⟩ ≥ √(1−β²) ‖m‖‖g‖: `u1_consequences`.
    """
    m = calibrate(g, m_prev, beta, delta, shrink)
    slack = 2 * (m * g).sum(-1) - norm(m) ** 2 - (1 - np.asarray(beta) ** 2) * norm(g) ** 2
    return np.where(norm(g) == 0, 0.0, slack)


def u1_consequences(g: Array, m_prev: Array, beta: Real, delta: Real = 0.0, shrink: Real = 1.0) -> Array:
    """Return the smaller slack of ⟨m, g⟩ ≥ (1−β)‖g‖² and ⟨m, g⟩ ≥ √(1−β²) ‖m‖‖g‖ in each row."""
    m = calibrate(g, m_prev, beta, delta, shrink)
    inner = (m * g).sum(-1)
    return np.asarray(
        np.minimum(inner - (1 - np.asarray(beta)) * norm(g) ** 2, inner - floor_cosine(beta) * norm(m) * norm(g))
    )


def u1_combined(g: Array, m: Array, factors: Real, beta: Real) -> Array:
    """Return the slack of ⟨Σ c_r m_r, g⟩ ≥ √(1−β²) Σ c_r ‖m_r‖‖g_r‖ for positive row factors c_r, [..., R]."""
    weights = np.asarray(factors)
    return np.asarray((weights * ((m * g).sum(-1) - floor_cosine(beta) * norm(m) * norm(g))).sum(-1))


def u2_descent(change: Array, g: Array, alpha: Real, beta: Real, smoothness: Real, n: Real | None = None) -> Array:
    """Return the slack of Lemma U.2: f(θ−αu) − f(θ) ≤ −α√(1−β²) Σ √n_r ‖g_r‖ + (α²/2) Σ L_r n_r.

    ``change`` is the left side and ``smoothness`` has L_r [..., R]. Both sums are over the rows with g_r ≠ 0.
    """
    alpha = np.asarray(alpha)
    return -alpha * floor_cosine(beta) * row_norm(g, n) + alpha**2 / 2 * curvature(smoothness, g, n) - change


def largest_alpha(g: Array, beta: Real, smoothness: Real, n: Real | None = None) -> Array:
    """Return 2√(1−β²) Σ √n_r ‖g_r‖ / Σ L_r n_r: every smaller α > 0 lowers the batch loss; half of it is best."""
    with np.errstate(divide="ignore"):
        return np.asarray(2 * floor_cosine(beta) * row_norm(g, n) / curvature(smoothness, g, n))


def curvature(smoothness: Real, g: Array, n: Real | None = None) -> Array:
    """Return H = Σ L_r n_r over the rows with g_r ≠ 0."""
    return np.asarray(np.where(norm(g) == 0, 0.0, smoothness * np.asarray(g.shape[-1] if n is None else n)).sum(-1))


def u3_pair(gradient: Array, noise: Array, m_prev: Array, beta: Real) -> Array:
    """Return the slack of ⟨∇f, u⟩ ≥ κ‖∇f‖ − (1+κ)‖ξ‖ in each row, u = m_t/‖m_t‖ made of g = ∇f + ξ, κ = √(1−β²)."""
    g = gradient + noise
    u = unit_step(g, calibrate(g, m_prev, beta), 1)
    cos = floor_cosine(beta)
    return np.asarray((gradient * u).sum(-1) - cos * norm(gradient) + (1 + cos) * norm(noise))


class RowPath(NamedTuple):
    """Hold T unit steps of S seeds: f(θ_{T+1}) − f(θ_1) [S]; ∇f(θ_t) and g_t − ∇f(θ_t) as [T, S, R, n]."""

    change: Array
    gradients: Array
    noise: Array


def run(
    problem: Problem, start: Array, draws: npt.NDArray[np.int64], alpha: Array, beta: float, rows: int = 1
) -> RowPath:
    """Run unit steps from ``start`` [S, d], cut into ``rows`` equal rows, with drawn indices [T, S] and α_t [T]."""
    theta, m = start, np.zeros((len(start), rows, start.shape[1] // rows))
    gradients, noise = np.empty((len(draws), *m.shape)), np.empty((len(draws), *m.shape))
    for t, i in enumerate(draws):
        gradients[t] = problem.grad(theta).reshape(m.shape)
        g = problem.grad_of(theta, i).reshape(m.shape)
        noise[t] = g - gradients[t]
        m = calibrate(g, m, beta)
        theta = theta - alpha[t] * unit_step(g, m).reshape(start.shape)
    return RowPath(problem.value(theta) - problem.value(start), gradients, noise)


def u3_path(path: RowPath, alpha: Array, beta: float, smoothness: Real) -> Array:
    """Return the slack of Theorem U.3 on every path, before expectations are taken.

    f(θ_{T+1}) − f(θ_1) ≤ −κ Σ α_t S(∇f(θ_t)) + (1+κ) Σ α_t S(ξ_t) + (H/2) Σ α_t², with H = Σ_r L_r n_r over all rows.
    """
    cos, n = floor_cosine(beta), path.noise.shape[-1]
    total = (np.asarray(smoothness) * np.full(path.noise.shape[-2], n)).sum()
    seen = alpha @ (cos * row_norm(path.gradients) - (1 + cos) * row_norm(path.noise))
    return np.asarray(total / 2 * (alpha**2).sum() - seen - path.change)


def u3_bound(gap: float, alpha: Array, beta: float, total_curvature: float, noise: float = 0.0) -> float:
    """Return Theorem U.3's bound of the mean of E S(∇f(θ_t)) with weights α_t.

    [gap/Σα_t + (H/2) Σα_t²/Σα_t + (1+κ) N]/κ, where H = Σ L_r n_r, N = Σ √n_r σ_r, E‖ξ_r‖ ≤ σ_r, κ = √(1−β²), β < 1.

    Example:
      >>> round(u3_bound(gap=2.0, alpha=np.full(100, 0.1), beta=0.0, total_curvature=4.0), 9)  # 0.2 + 0.2
      0.4
    """
    cos, total = float(floor_cosine(beta)), float(alpha.sum())
    return (gap / total + total_curvature / 2 * float((alpha**2).sum()) / total + (1 + cos) * noise) / cos


def noise_decay(beta: Real) -> Array:
    """Return ρ = β/√(1+β²) of Lemma U.4: where gradients are noise, a gradient k steps old has the weight ρ^k."""
    beta = np.asarray(beta, dtype=np.float64)
    return np.asarray(beta / np.sqrt(1 + beta**2))


def u4_weights(steps: int, beta: float) -> Array:
    """Return Lemma U.4's weights of g_1 … g_t in m_t, for orthogonal gradients of one length, m_0 = 0 and δ = 0."""
    weights = noise_decay(beta) ** np.arange(steps - 1, -1, -1)
    if steps > 1:
        weights[0] = beta * noise_decay(beta) ** (steps - 2)  # m_1 = g_1 is shorter than the later moments
    return np.asarray(weights)


def averaged_gradients(decay: Real) -> Array:
    """Return (Σ w)²/Σ w² for weights w = decay^k: the gradients whose mean has as much noise as the moment.

    Example:
      >>> [round(float(averaged_gradients(x)), 1) for x in (noise_decay(0.9), noise_decay(1.0), 0.9, 0.95)]
      [5.0, 5.8, 19.0, 39.0]
    """
    decay = np.asarray(decay, dtype=np.float64)
    return np.asarray((1 + decay) / (1 - decay))
