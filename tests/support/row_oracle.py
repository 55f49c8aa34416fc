"""The rule by row, by column and for a whole tensor, in float64 NumPy: what the C kernel's loops are compared with.

It imports neither torch nor acmo, and prefers being obvious to being fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


@dataclass
class Numbers:
    """s, λ, β, δ, α, κ, in the algorithm's letters."""

    s: float = 1.0
    coupled_decay: float = 0.0
    beta: float = 0.9
    delta: float = 0.0
    alpha: float = 0.1
    kappa: float = 1.0


@dataclass
class Outcome:
    """θ and m after a step, and what is reported of it. m is as computed, before it is rounded to any dtype."""

    theta: Array
    m: Array
    keeps_m: Array  # per entry: its row took no part
    scale: Array | None = None
    cosines: list[float] = field(default_factory=list)
    raw_grad_sq: float = 0.0
    grad_sq: float = 0.0
    moment_sq: float = 0.0
    new_moment_sq: float = 0.0
    rows: int = 0
    took_part: int = 0
    skipped: int = 0
    turned: int = 0


def norm(x: Array) -> float:
    """Return the Euclidean norm; scaled, so that no square can over- or underflow."""
    largest = float(np.abs(x).max(initial=0.0))
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * math.sqrt(math.fsum(np.square(x / largest)))


def step_row(
    theta: Array, m: Array, g: Array, x: Numbers, n: float, unit: bool, propagate: bool, tiny: float, out: Outcome
) -> tuple[Array, Array, bool]:
    """Return θ, m and whether m was kept, of one row."""
    out.rows += 1
    if not g.any():
        return x.kappa * theta, m, True
    raw = x.s * g
    g = raw + x.coupled_decay * theta if x.coupled_decay else raw
    if not np.isfinite(g).all() and not propagate:
        out.skipped += 1
        return theta, m, True
    big_g, big_m = norm(g), norm(m)
    along = m * 0 if big_m == 0 else m / (big_m + x.delta)
    fresh = g + x.beta * big_g * along
    new = norm(fresh)
    u = fresh
    if unit:
        if new <= tiny * big_g < math.inf:
            fresh = u = np.zeros_like(g)
            new = 0.0
        else:
            u = math.sqrt(n) * (fresh / new)
    out.took_part += 1
    out.raw_grad_sq += norm(raw) ** 2
    out.grad_sq += big_g**2
    out.moment_sq += big_m**2
    out.new_moment_sq += new**2
    out.cosines.append(0.0 if big_g == 0 or new == 0 else float(np.sum((fresh / new) * (g / big_g))))
    out.turned += bool(np.dot(g / (big_g or 1), m / (big_m or 1)) < 0)
    return x.kappa * theta - x.alpha * u, fresh, False


def step(
    theta: Array,
    m: Array,
    g: Array,
    scope: str,
    numbers: Numbers,
    *,
    unit: bool = True,
    propagate: bool = False,
    double: bool = False,
    entries_per_number: int = 1,
) -> Outcome:
    """Step a matrix by ``"row"``, ``"column"`` or ``"whole"``.

    Args:
      theta: two dimensions, as are m and g.
      double: whether the arithmetic to compare with is float64.
      entries_per_number: 2 where entries are the parts of complex numbers.
    """
    theta, m, g = (np.array(a, dtype=np.float64) for a in (theta, m, g))
    out = Outcome(theta.copy(), m.copy(), np.zeros(theta.shape, dtype=bool))
    rows, cols = theta.shape
    if theta.size == 0:
        return out
    everything = (slice(None), slice(None))
    places = {
        "row": [(i, slice(None)) for i in range(rows)],
        "column": [(slice(None), j) for j in range(cols)],
        "whole": [everything],
    }[scope]
    with np.errstate(invalid="ignore", over="ignore"):
        for at in places:
            n = theta[at].size / entries_per_number
            tiny = 1e-14 if double else 1e-6
            flat = [a[at].ravel() for a in (theta, m, g)]
            new_theta, new_m, kept = step_row(*flat, numbers, n, unit, propagate, tiny, out)
            out.theta[at] = new_theta.reshape(theta[at].shape)
            out.m[at] = new_m.reshape(theta[at].shape)
            out.keeps_m[at] = kept
    return out


def quantise(m: Array) -> tuple[Array, Array]:
    """Return int8 entries and one float32 scale per row: the largest magnitude over 127, nearest rounding."""
    largest = np.abs(m).max(axis=1, initial=0.0).astype(np.float32)
    scale = (largest / np.float32(127)).astype(np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        q = np.rint(m / scale[:, None].astype(np.float64))
    return np.where(scale[:, None] > 0, q, 0).astype(np.int8), scale


def random_bits(index: int, seed: int) -> int:
    """Return the 16 bits of an entry's stochastic rounding, with Python's integers."""
    h = (index ^ seed) & 0xFFFFFFFF
    h ^= h >> 16
    h = h * 0x7FEB352D & 0xFFFFFFFF
    h ^= h >> 15
    h = h * 0x846CA68B & 0xFFFFFFFF
    return h >> 16
