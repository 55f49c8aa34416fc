"""Runs that several counter-examples share: a bowl, and a steady gradient."""

from collections.abc import Callable
from math import sqrt

import numpy as np

from acmo.theory.lemmas import Array, shift_factor
from acmo.theory.path import unroll

STEADY_BETA_HAT = 1 / 51  # β̂ of a steady gradient with β = 1/50, δ = 0: β‖g‖/‖m‖, ‖m‖ = (1+β)‖g‖


def inverse_sqrt_rate(alpha0: float) -> Callable[[int], float]:
    """Return the function t ↦ α_0/√t."""
    return lambda t: alpha0 / sqrt(t)


def average_on_bowl(steps: int, start: float, alpha: Callable[[int], float], low: float = -np.inf) -> float:
    """Return Σ α_i ‖∇f(θ_i)‖²/Σ α_i of ACMo on f = √(1+θ²) − 1, with θ projected onto θ ≥ ``low``.

    β = 1/50, δ = σ = 0, Ψ = sqrt. One dimension and no noise, so plain floats do: a million steps per second.
    """
    theta, m, kept, top, below = start, 0.0, float("inf"), 0.0, 0.0
    for t in range(1, steps + 1):
        g = theta / sqrt(1 + theta * theta)
        kept = min(abs(g) / (50 * abs(m)), sqrt(t / (t - 1)) * kept) if m else float("inf")
        m = g + (kept * m if m else 0.0)
        a = alpha(t)
        top, below = top + a * g * g, below + a
        theta = max(theta - a * m, low)
    return top / below


def run_steady_gradient(steps: int, g: float = 1.0) -> tuple[Array, Array, Array, Array]:
    """Return θ, m, α, β̂ under the constant gradient g, in one dimension, rows as in the paper (θ_0 = θ_1, m_0 = 0)."""
    beta_hat = np.full(steps + 2, STEADY_BETA_HAT)
    beta_hat[1], beta_hat[2] = 0.0, 1 / 50
    return *unroll(np.full((steps + 2, 1), g), beta_hat), beta_hat


def construct_theta_prime(theta: Array, beta_hat: Array) -> Array:
    """Return θ'_i for i ≥ 1, with θ'_1 = θ_1."""
    out = theta.copy()
    i = np.arange(2, len(theta))
    out[2:] = theta[2:] + shift_factor(i, beta_hat[2:])[:, None] * (theta[2:] - theta[1:-1])
    return out
