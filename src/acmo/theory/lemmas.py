"""Lemmas A.1 to A.6 and the descent inequality of section 3.2, each as a slack: ≥ 0 exactly when the statement holds.

Vectors lie along the last axis; the axes before it are a batch of cases. A docstring names what was changed to make a
statement true; docs/theory.md has the counter-example.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Real = float | npt.NDArray[Any]  # integers too: an index i

BETA_MAX = 1 / 50  # what Theorem 4.1 allows
BETA_HAT_MAX = 1 / 12  # Corollary A.5


def norm(x: Array) -> Array:
    """Return the Euclidean norm over the last axis."""
    return np.asarray(np.linalg.norm(x, axis=-1))


def a1_moment(g: Array, m_prev: Array, beta: Real, delta: Real, shrink: Real = 1.0) -> Array:
    """Return the slack of Lemma A.1, (1−β)‖g‖ ≤ ‖m‖ ≤ (1+β)‖g‖: the smaller of the two.

    ``shrink`` ≤ 1 multiplies β̂, as Ψ may do; the lemma still holds.
    """
    m_norm = norm(m_prev)
    beta_hat = np.asarray(shrink * beta * norm(g) / np.where(m_norm == 0, 1.0, m_norm + delta))
    m = norm(g + beta_hat[..., None] * m_prev)
    return np.asarray(np.minimum(m - (1 - beta) * norm(g), (1 + beta) * norm(g) - m))


def a2_minibatch(grads: Array, members: npt.NDArray[np.int64]) -> Array:
    """Return the slack of Lemma A.2: ‖∇f_A − ∇f‖ ≤ σ = max_i ‖∇f_i − ∇f‖; ``grads`` is [n, d], ``members`` [..., B]."""
    full = grads.mean(0)
    return np.asarray(norm(grads - full).max() - norm(grads[members].mean(-2) - full))


def a3_second_moment(grads: Array, beta: Real = 0.0, factor: float = 1.0) -> Array:
    """Return the slack of Lemma A.3, E‖m_t‖² ≤ (1+β)² E‖g_t‖² ≤ factor (1+β)² (σ² + ‖∇f‖²): of the second.

    ``grads`` [..., n, d] are the equally likely values of g_t. The paper's factor ½ is false; 1 is right
    because the noise has mean zero, and 2 holds for every single g_t.
    """
    full = grads.mean(-2)
    sigma_sq = (norm(grads - full[..., None, :]) ** 2).max(-1)
    return np.asarray((1 + beta) ** 2 * (factor * (sigma_sq + norm(full) ** 2) - (norm(grads) ** 2).mean(-1)))


def a4_ratio(g: Array, m_prev: Array, delta: Real, smoothness: Real, alpha_prev: Real, beta_prev: Real) -> Array:
    """Return the slack of Lemma A.4, t ≥ 2: ‖g_t‖/(‖m_{t−1}‖ + δ) ≤ 2 + Lα_{t−1} + 1/(1−β_{t−1}) when δ ≥ σ.

    The paper says t ≥ 1, but m_0 = 0 and ‖g_1‖/δ has no bound.
    """
    return 2 + smoothness * alpha_prev + 1 / (1 - beta_prev) - norm(g) / (norm(m_prev) + delta)


def a5_beta_hat(beta_hat: Real) -> Array:
    """Return the slack of Corollary A.5, t ≥ 2: β̂ ≤ 1/12 when α ≤ 1/L, β ≤ 1/50 and δ ≥ σ."""
    return np.asarray(BETA_HAT_MAX - np.asarray(beta_hat))


def a6_constructed(theta: Array, g: Array, m: Array, beta_hat: Array, alpha: Array, i: int, tol: float = 1e-9) -> float:
    """Return the slack of Lemma A.6, the recursion of θ'_i: tol minus the relative error of this identity.

    The arrays are indexed as in the paper (row 0 is θ_0 = θ_1, m_0 = 0), i ≥ 2. The paper's "m_{t−1}" is m_{i−1}.
    """

    def primed(k: int) -> Array:
        return np.asarray(theta[k] + shift_factor(k, beta_hat[k]) * (theta[k] - theta[k - 1]))

    c, b = gradient_factor(i, beta_hat[i]), beta_hat[i]
    right = (
        primed(i)
        - alpha[i] * c * g[i]
        - (alpha[i] * c * b - alpha[i - 1] * shift_factor(i, b)) * m[i - 1]
        + (shift_factor(i + 1, beta_hat[i + 1]) - (c - 1)) * (theta[i + 1] - theta[i])
    )
    scale = max(float(norm(theta[i + 1] - theta[i])), float(norm(theta[i] - theta[i - 1])), 1e-300)
    return tol - float(norm(primed(i + 1) - right)) / scale


def shift_factor(i: Real, beta_hat: Real) -> Array:
    """Return w_i = (6/√(i+1) + 1) β̂_i/(√(i/(i−1)) − β̂_i): how far θ'_i lies beyond θ_i, i ≥ 2."""
    i = np.asarray(i, dtype=np.float64)
    return np.asarray((6 / np.sqrt(i + 1) + 1) * beta_hat / (np.sqrt(i / (i - 1)) - beta_hat))


def gradient_factor(i: Real, beta_hat: Real) -> Array:
    """Return c_i = (√(1/i) + 1)/(1 − β̂_i), the paper's factor of α_i g_i."""
    return np.asarray((np.sqrt(1 / np.asarray(i, dtype=np.float64)) + 1) / (1 - beta_hat))


def descent(g: Array, m_prev: Array, beta: Real, delta: Real, alpha: Real, change: Array) -> Array:
    """Return the slack of section 3.2, repaired: f_A(θ_{t+1}) − f_A(θ_t) ≤ −(α/2)(1−β²)‖g‖² if α ≤ 1/L_A.

    ``change`` is the left side, L_A the smoothness of *the batch*. The paper ends at ≤ 0 and takes L from f.
    """
    return -alpha / 2 * (1 - np.asarray(beta) ** 2) * norm(g) ** 2 - change


def acute_with_moment(g: Array, m_prev: Array, beta: Real, delta: Real) -> Array:
    """Return ⟨m_t, m_{t−1}⟩, ≥ 0 for the acute angle of section 3.2, which is certain only for β = 1 and δ = 0."""
    beta_hat = np.asarray(beta * norm(g) / (norm(m_prev) + delta))
    return np.asarray(((g + beta_hat[..., None] * m_prev) * m_prev).sum(-1))
