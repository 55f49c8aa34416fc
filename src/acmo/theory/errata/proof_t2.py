"""Errata of the proof of Theorem 4.1: its main inequality, and T_2."""

from math import log

import numpy as np

from acmo.theory.errata.erratum import Severity, Slacks, equation_slacks, erratum
from acmo.theory.errata.example_runs import STEADY_BETA_HAT, construct_theta_prime, run_steady_gradient
from acmo.theory.lemmas import Array, gradient_factor, shift_factor


@erratum(
    "T2-prime", Severity.SLIP, "main inequality, T_2 (876, 981)",
    printed="∇f(θ_i)ᵀ(θ'_{i+1} − θ_i)",
    reason="for a linear f, T_1 = T_3 = 0 and T_2 must be f(θ'_{t+1}) − f(θ'_1); it is less",
    repaired="∇f(θ_i)ᵀ(θ'_{i+1} − θ'_i)",
)  # fmt: skip
def t2_prime() -> Slacks:
    """T_2 − (f(θ'_{t+1}) − f(θ'_1)) for f = θ, 50 steps."""
    theta, _, _, beta_hat = run_steady_gradient(50)
    ahead = construct_theta_prime(theta, beta_hat)
    total = ahead[-1] - ahead[1]
    return Slacks(
        float((ahead[2:] - theta[1:-1]).sum() - total[0]), 1e-12 + float((ahead[2:] - ahead[1:-1]).sum() - total[0])
    )


@erratum(
    "T2.1-moment", Severity.CONSTANT, "T_2.1 ② (909), T_2.3.1 ① (953)",
    printed="‖m̂‖ ≤ G",
    reason="Lemma A.1 gives (1+β)G, attained by a steady gradient", repaired="‖m̂‖ ≤ (1+β)G",
    effect="60 G², 70 G² times (1+β)² = 1.0404",
)  # fmt: skip
def t21_moment() -> Slacks:
    """The bound minus ‖m_50‖ under a steady gradient, G = 1."""
    top = float(run_steady_gradient(50)[1][50, 0])
    return Slacks(1 - top, 51 / 50 - top)


@erratum(
    "T2.1-G", Severity.CONSTANT, "eq. (T_2.1 final) (925–926)",
    printed="T_2.1 ≤ α_0(ln t + 1)",
    reason="G² is lost from the line before; not even the units agree. G = 10, steady gradient, t = 100",
    repaired="(1+β)G²α_0(ln t + 1)", effect="the “+1” of C_0 and C_1 is 1.02 G²",
)  # fmt: skip
def t21_g() -> Slacks:
    """The bound minus T_2.1."""
    t, g = 100, 10.0
    _, m, alpha, b = run_steady_gradient(t, g)
    i = np.arange(2, t + 1)
    weight = shift_factor(i, b[i]) * alpha[i - 1] - gradient_factor(i, b[i]) * alpha[i] * b[i]
    t21 = float((weight * g * m[i - 1, 0]).sum())
    return Slacks(log(t) + 1 - t21, 1.02 * g**2 * (log(t) + 1) - t21)


@erratum(
    "T2.2-dependence", Severity.BREAKS, "eq. (T_2 final) (982–984)",
    printed="−E[c_i ∇fᵀg_i] + ⅛E[c_i]‖∇f‖² ≤ −⅞‖∇f‖²",
    reason="c_i = (√(1/i)+1)/(1−β̂_i), and β̂_i depends on ‖g_i‖: the expectation does not factor. Skewed noise "
    "(−2 once in ten, else 2/9), ∇f = 0.0003, i = 2, Ψ as printed, all draws counted: the left side is positive",
    repaired="the weight from β̂_{i−1}, known before g_i, and the difference paid with Σ|λ_{i+1}−λ_{i−1}| G² ≤ "
    "2/7 α_0 G²: Lemma R.2, by Ψ",
    effect="the proof's one real hole: no C_0 without Ψ; with it a further 3/5 G²",
)  # fmt: skip
def t22_dependence() -> Slacks:
    """E[c ∇f g_2] − ⅛E[c]∇f² − ⅞∇f² over all (g_1, g_2), c from β̂_2, and from β̂_1 = 0."""
    full, sigma = 0.0003, 2.0
    values = full + np.array([-2.0] + [2 / 9] * 9)
    g1, g2 = values[:, None], values[None, :]  # m_1 = g_1, δ = σ
    beta_hat = np.minimum(np.abs(g2) / 50 / (np.abs(g1) + sigma), np.sqrt(2) * np.abs(g1) / 50 / sigma)

    def slack(c: Array) -> float:
        return float((c * full * g2).mean() - c.mean() * full**2 / 8 - 7 / 8 * full**2)

    return Slacks(slack(gradient_factor(2, beta_hat)), slack(gradient_factor(2, np.zeros_like(beta_hat))))


@erratum(
    "T2.3-index", Severity.SLIP, "T_2.3 (900, 933)",
    printed="[…](θ_i − θ_{i−1})", reason="Lemma A.6 has θ_{i+1} − θ_i; the sum is not T_2's",
    repaired="(θ_{i+1} − θ_i) = −α_i m̂_i", effect="20 α_0 → 10 α_0 in T_2.3.1, which repairs the next row",
)  # fmt: skip
def t23_index() -> Slacks:
    """−|T_2 − (T_2.1 − T_2.2 + T_2.3)| under a steady unit gradient."""
    theta, m, alpha, b = run_steady_gradient(50)
    ahead = construct_theta_prime(theta, b)
    i = np.arange(1, 51)
    w = np.zeros(52)
    w[2:] = shift_factor(np.arange(2, 52), b[2:])
    c = gradient_factor(i, b[i])
    rest = ((alpha[i - 1] * w[i] - alpha[i] * c * b[i]) * m[i - 1, 0] - alpha[i] * c).sum()
    bracket = w[i + 1] - c + 1
    parts = [rest + (bracket * (theta[j] - theta[j - 1])[:, 0]).sum() for j in (i, i + 1)]
    return equation_slacks((ahead[2:] - ahead[1:-1]).sum(), *parts)


@erratum(
    "T2.3.1-half", Severity.SLIP, "T_2.3.1, last line (955)",
    printed="20(1−β̂_i)/(√(1/i)+1) ≤ 10",
    reason="true at i = 1 only; the left side tends to 20(1−β̂)", repaired="≤ 20 (and 10 → 10 after the row above)",
    effect="none, the two errors cancel",
)  # fmt: skip
def t231_half() -> Slacks:
    """Right minus left at i = 100, β̂ = 1/51."""
    left = 1 / float(gradient_factor(100, STEADY_BETA_HAT))
    return Slacks(10 - 20 * left, 10 - 10 * left)
