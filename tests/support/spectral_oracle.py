"""The spectral step in float64 NumPy, by singular values: what Newton–Schulz by products is compared with.

It imports neither torch nor acmo.
"""

from __future__ import annotations

import math

import numpy as np

from tests.support import row_oracle
from tests.support.row_oracle import Numbers

Array = np.ndarray
A, B, C = 3.4445, -4.7750, 2.0315  # of Muon


def norm(x: Array) -> float:
    """Return the Frobenius norm."""
    return row_oracle.norm(x.ravel())


def polynomial(sigma: Array, steps: int = 5) -> Array:
    """Return what the iterations make of singular values of a matrix with norm 1."""
    for _ in range(steps):
        sigma = A * sigma + B * sigma**3 + C * sigma**5
    return sigma


def orthogonalise(x: Array, steps: int = 5) -> Array:
    """Return a matrix with its singular values mapped by the polynomial."""
    u, sigma, v = np.linalg.svd(x / norm(x), full_matrices=False)
    return (u * polynomial(sigma, steps)) @ v


def step(theta: Array, m: Array, g: Array, x: Numbers, *, steps: int = 5, tiny: float = 1e-14) -> tuple[Array, Array]:
    """Return θ and m after one step; a zero gradient takes no part, one that is not finite is skipped."""
    if not np.isfinite(g).all():
        return theta, m
    if not g.any():
        return x.kappa * theta, m
    g = x.s * g + x.coupled_decay * theta
    size = norm(m)
    fresh = g if size == 0 else g + x.beta * norm(g) * (m / (size + x.delta))
    if norm(fresh) <= tiny * norm(g):
        return x.kappa * theta, np.zeros_like(m)
    return x.kappa * theta - x.alpha * math.sqrt(max(theta.shape)) * orthogonalise(fresh, steps), fresh
