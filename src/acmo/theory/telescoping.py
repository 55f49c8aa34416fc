"""Lemmas B.1 to B.4 (sums that telescope), and the two lemmas that carry the repaired proof.

``i`` and the β̂ are arrays that broadcast. The hypotheses, which the paper states only in part, are β̂ ≤ 1/12 (Corollary
A.5, not β ≤ 1/50 alone) and, for B.3 and B.4, that the β̂ are the *applied* ones, those that Ψ returned.
"""

import numpy as np

from acmo.theory.lemmas import BETA_HAT_MAX, Array, Real, gradient_factor, shift_factor

ZETA_3_2 = 2.6123753486854883  # Σ i^{-3/2}


def apply_psi(raw: Array) -> Array:
    """Apply Ψ of Theorem 4.1 along the last axis: β̂_t = min(raw_t, √(t/(t−1)) β̂_{t−1}). The first entry is t = 2.

    So β̂_t/√t never grows: it is the running minimum of raw_t/√t.
    """
    root = np.sqrt(np.arange(2, raw.shape[-1] + 2))
    return np.asarray(root * np.minimum.accumulate(raw / root, axis=-1))


def apply_printed_psi(raw: Array) -> Array:
    """Apply Ψ as the paper prints it, with the *raw* β̂_{t−1} in the minimum."""
    t = np.arange(3, raw.shape[-1] + 2)
    later = np.minimum(raw[..., 1:], np.sqrt(t / (t - 1)) * raw[..., :-1])
    return np.concatenate([raw[..., :1], later], axis=-1)


def b1(i: Real, beta_hat: Real) -> Array:
    """Return the slack of Lemma B.1, i ≥ 2: w_i + 6/√(i+1) + 1 ≥ (1/√i + 1)/(1 − β̂_i)."""
    i = np.asarray(i, dtype=np.float64)
    return np.asarray(shift_factor(i, beta_hat) + 6 / np.sqrt(i + 1) + 1 - gradient_factor(i, beta_hat))


def b2(i: Real, beta_hat: Real) -> Array:
    """Return the slack of Corollary B.2, i ≥ 2: α_{i−1} w_i ≥ α_i c_i β̂_i for α_i ∝ 1/√i."""
    i = np.asarray(i, dtype=np.float64)
    return np.asarray(shift_factor(i, beta_hat) / np.sqrt(i - 1) - gradient_factor(i, beta_hat) * beta_hat / np.sqrt(i))


def b3(i: Real, beta_hat: Real, beta_hat_next: Real) -> Array:
    """Return the slack of Lemma B.3: w_{i+1} − c_i β̂_i ≤ 1/√i, when β̂_{i+1} ≤ √((i+1)/i) β̂_i."""
    i = np.asarray(i, dtype=np.float64)
    return np.asarray(1 / np.sqrt(i) - shift_factor(i + 1, beta_hat_next) + gradient_factor(i, beta_hat) * beta_hat)


def b4(i: Real, beta_hat: Real, beta_hat_next: Real) -> Array:
    """Return the slack of Corollary B.4: w_{i+1} − c_i + 1 ≤ 0, which is B.3 in another form."""
    return gradient_factor(i, beta_hat) - 1 - shift_factor(np.asarray(i) + 1, beta_hat_next)


def momentum_shares(beta_hat: Array, alpha0: float = 1.0) -> Array:
    """Return λ, the momentum's share of the step: λ_0 = λ_1 = λ_{T+1} = 0, else λ_i = α_i β̂_i/(1 − β̂_i).

    ``beta_hat`` [..., T−1] holds the applied β̂_2 … β̂_T; the result has T + 2 entries.
    """
    i = np.arange(2, beta_hat.shape[-1] + 2)
    inner = alpha0 / np.sqrt(i) * beta_hat / (1 - beta_hat)
    edge = np.zeros((*inner.shape[:-1], 1))
    return np.concatenate([edge, edge, inner, edge], axis=-1)


def r1_monotone(beta_hat: Array, alpha0: float = 1.0) -> Array:
    """Return the slack of Lemma R.1: with Ψ, α_i β̂_i never grows (i ≥ 2). It is the smallest decrease."""
    i = np.arange(2, beta_hat.shape[-1] + 2)
    return np.asarray((-np.diff(alpha0 * beta_hat / np.sqrt(i), axis=-1)).min(-1))


def r2_variation(beta_hat: Array, alpha0: float = 1.0) -> Array:
    """Return the slack of Lemma R.2: V = Σ_i |λ_{i+1} − λ_i| ≤ α_0/7 for every T.

    V bounds what the dependence of β̂_i on g_i can cost.
    """
    return np.asarray(alpha0 / 7 - np.abs(np.diff(momentum_shares(beta_hat, alpha0), axis=-1)).sum(-1))


def variation_constant() -> float:
    """Return the constant in the proof of Lemma R.2: 2 (1/(11√2) + (ζ(3/2) − 1)/242) = 0.14189 < 1/7."""
    b = BETA_HAT_MAX
    return float(2 * (b / (1 - b) / np.sqrt(2) + (ZETA_3_2 - 1) * b**2 / (1 - b) ** 2 / 2))
