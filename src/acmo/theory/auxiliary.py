"""The iteration auxiliary problems of the paper's section 3: what each method minimises at a step, and the minimiser.

All functions use the move ``s = θ − θ_t``, so that θ_t need not be known. ``history`` holds the gradients g_1 … g_t as
rows; the last row is the current gradient.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def second_moments(history: Array) -> Array:
    """Return G_t = Σ_{τ≤t} g_τ g_τᵀ."""
    return history.T @ history


def symmetric_power(matrix: Array, power: float) -> Array:
    """Return a power of a symmetric positive semi-definite matrix; for a negative power, of the pseudo-inverse."""
    values, vectors = np.linalg.eigh(matrix)
    floor = np.finfo(np.float64).eps * len(values) * max(float(values[-1]), 0.0)
    powers = np.zeros_like(values)
    powers[values > floor] = values[values > floor] ** power
    return np.asarray((vectors * powers) @ vectors.T)


def adagrad(s: Array, history: Array, alpha: float) -> Array:
    """Return Adagrad's f̄ (eq. 4): sᵀg_t + sᵀ G_t^{1/2} s / (2α). ``s`` may be a stack of moves."""
    root = symmetric_power(second_moments(history), 0.5)
    return np.asarray(s @ history[-1] + np.einsum("...i,ij,...j->...", s, root, s) / (2 * alpha))


def adagrad_minimiser(history: Array, alpha: float) -> Array:
    """Return −α G_t^{-1/2} g_t (eq. 3). G_t is singular until t ≥ d: this is the shortest of the minimisers."""
    return np.asarray(-alpha * symmetric_power(second_moments(history), -0.5) @ history[-1])


def adagrad_bound(s: Array, history: Array, alpha: float) -> Array:
    """Return f̂ (eq. 5): sᵀg_t + ‖s‖²/(2α) + Σ_τ (sᵀg_τ)²/(8α). It bounds f̄, because G^{1/2} ⪯ I + G/4."""
    return np.asarray(s @ history[-1] + (s * s).sum(-1) / (2 * alpha) + ((s @ history.T) ** 2).sum(-1) / (8 * alpha))


def adagrad_bound_minimiser(history: Array, alpha: float) -> Array:
    """Return −α (I + G_t/4)^{-1} g_t."""
    d = history.shape[1]
    return -alpha * np.linalg.solve(np.eye(d) + second_moments(history) / 4, history[-1])


def hard_margin(s: Array, g: Array, alpha: float) -> Array:
    """Return the objective of eq. 6, sᵀg_t + ‖s‖²/(2α), which is minimised over s ⟂ every constraint."""
    return np.asarray(s @ g + (s * s).sum(-1) / (2 * alpha))


def hard_margin_minimiser(g: Array, constraints: Array, alpha: float) -> Array:
    """Return −α times the part of g that is orthogonal to the rows of ``constraints``.

    The paper prints τ ≤ t, which makes g itself a constraint and forbids any move; τ < t is meant.
    """
    if not len(constraints):
        return -alpha * g
    return -alpha * (g - np.linalg.pinv(constraints) @ (constraints @ g))


def acmo(s: Array, g: Array, m_prev: Array, beta_hat: float, smoothness: float) -> Array:
    """Return ACMo's f̃ (eq. 7, with the sum to t − 1): sᵀg + L‖s‖²/2 + β̂ sᵀm_{t−1}."""
    return np.asarray(s @ g + smoothness / 2 * (s * s).sum(-1) + beta_hat * (s @ m_prev))


def acmo_minimiser(g: Array, m_prev: Array, beta_hat: float, smoothness: float) -> Array:
    """Return −(g + β̂ m_{t−1})/L, ACMo's step with α = 1/L (eq. 8)."""
    return -(g + beta_hat * m_prev) / smoothness


def compute_beta_hat(g: Array, m_prev: Array, beta: float | Array = 0.9, delta: float = 0.0) -> Array:
    """Compute β̂ = β‖g‖/(‖m‖ + δ) over the last axis, 0 where m = 0 (it multiplies m there)."""
    m_norm = np.linalg.norm(m_prev, axis=-1)
    below = np.where(m_norm == 0, 1.0, m_norm + delta)
    return np.asarray(np.where(m_norm == 0, 0.0, beta * np.linalg.norm(g, axis=-1) / below))
