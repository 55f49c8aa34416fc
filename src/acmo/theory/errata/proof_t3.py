"""Errata of the proof of Theorem 4.1: T_3.

The paper's own route with all rows of the table, `alpha0_on_the_papers_route`, ends at α_0 ≤ 3/(3837 L). The proof in
docs/theory.md is another one.
"""

import numpy as np
import numpy.typing as npt

from acmo.theory import telescoping
from acmo.theory.errata.erratum import Severity, Slacks, equation_slacks, erratum
from acmo.theory.errata.example_runs import STEADY_BETA_HAT, construct_theta_prime, run_steady_gradient
from acmo.theory.lemmas import Array, gradient_factor, shift_factor


@erratum(
    "T3-L", Severity.CONSTANT, "T_3, second line on (993)",
    printed="L is there in the first line and nowhere after",
    reason="the bound does not know L: a steady unit gradient, L = 1000, 50 steps: T_3 = 4714 against 697",
    repaired="T_3 ≤ 246 L Σα_i²(σ² + ‖∇f(θ_i)‖²)",
    effect="(L/2+235), (L/2+3) → multiples of L; α_0 ≤ 3/(4L+1240) → 3/(1972L) by this row's bound, which moves σ² "
    "from C_0 to C_1",
)  # fmt: skip
def t3_l() -> Slacks:
    """The bound of T_3 minus T_3 for a steady gradient, σ = 0, L = 1000, 50 steps."""
    theta, _, alpha, b = run_steady_gradient(50)
    ahead = construct_theta_prime(theta, b)
    t3 = 1000 * float(((ahead[2:] - ahead[1:-1]) ** 2).sum())
    weighted = float((alpha[1:51] ** 2).sum())
    return Slacks(155 * weighted - t3, 246 * 1000 * weighted - t3)


@erratum(
    "T3.1-square", Severity.CONSTANT, "T_3.1 (1005)",
    printed="3 c_i² ≤ 6", reason="c_1 = 2, and c_i² > 2 up to i = 5: 12 at i = 1, β̂ = 0",
    repaired="c_i ≤ 24/11, so 3 c_i² ≤ 15", effect="3 → 15 in T_3.1 (with A.3's factor)",
)  # fmt: skip
def t31_square() -> Slacks:
    """Bound minus 3c² at i = 1, β̂ = 0, and at β̂ = 1/12."""
    return Slacks(6 - 3 * float(gradient_factor(1, 0.0)) ** 2, 15 - 3 * float(gradient_factor(1, 1 / 12)) ** 2)


@erratum(
    "T3.2-dependence", Severity.CONSTANT, "T_3.2 ② (1017), T_3.3 ② (1067)",
    printed="E[κ_i‖m_i‖²] ≤ (1+β)²/2 · E[κ_i](σ² + ‖∇f‖²)",
    reason="κ_i = c_i − 1 − w_{i+1} depends on β̂_i, so on ‖g_i‖, and Lemma A.3 is not about products: given the past "
    "not even the factor 1 holds. g = 1 ± 1, i = 100, after 99 times g = 2",
    repaired="‖g_i‖² ≤ 2(σ² + ‖∇f‖²) before expectations are taken",
    effect="15/2 → 30 and 11 → 44 in T_3.2, T_3.3; with all other rows α_0 ≤ 3/(3837L)",
)  # fmt: skip
def t32_dependence() -> Slacks:
    """(1+β)² E[κ](σ²+‖∇f‖²) − E[κ‖m‖²] given the past, δ = σ = ‖∇f‖ = 1, and with twice the left side."""
    i, before, kept = 100, 2.0, np.inf
    for _ in range(i - 2):  # m_{i−1} and β̂_{i−1}: by then they are steady
        kept = 2 / 50 / (before + 1)
        before = 2 + kept * before
    g, after = np.meshgrid([2.0, 0.0], [2.0, 0.0], indexing="ij")  # g_i, g_{i+1}
    beta_hat = np.minimum(g / 50 / (before + 1), np.sqrt(i / (i - 1)) * kept)
    m = g + beta_hat * before
    later = np.minimum(after / 50 / (m + 1), np.sqrt((i + 1) / i) * beta_hat)
    kappa = gradient_factor(i, beta_hat) - 1 - shift_factor(i + 1, later)
    left, right = float((kappa * m**2).mean()), 1.02**2 * float(kappa.mean()) * 2.0
    return Slacks(right - left, 2 * right - left)


@erratum(
    "T3.3.2-index", Severity.SLIP, "T_3.3.2 (1091–1092)",
    printed="−11α_{i+1}(√(1/i)+1)… and −11α_t(…)",
    reason="regrouping gives α_{i−1} and α_{t−1}; from the printed line the next one (α_i) does not follow",
    repaired="α_{i−1}, α_{t−1}",
)  # fmt: skip
def t332_index() -> Slacks:
    """−|sum − regrouped sum|, α_0 = σ = 1, t = 50, β̂ = 1/51."""
    t = 50
    alpha = np.append(0, 1 / np.sqrt(np.arange(1, t + 1)))
    i, j = np.arange(2, t + 1), np.arange(2, t)

    def plus(k: npt.NDArray[np.int64]) -> Array:
        return np.asarray(shift_factor(k, STEADY_BETA_HAT) * alpha[k - 1])

    def minus(k: npt.NDArray[np.int64]) -> Array:
        return np.asarray(gradient_factor(k, STEADY_BETA_HAT) * alpha[k] * STEADY_BETA_HAT)

    whole = float((alpha[i - 1] * (plus(i) - minus(i))).sum())

    def regrouped(inner: Array, last: float) -> float:
        head = alpha[1] * plus(i[:1])[0] + (alpha[j] * plus(j + 1)).sum()
        return float(head - (inner * minus(j)).sum() - last * minus(i[-1:])[0])

    return equation_slacks(whole, regrouped(alpha[j + 1], alpha[t]), regrouped(alpha[j - 1], alpha[t - 1]))


@erratum(
    "T3.3.2-series", Severity.CONSTANT, "T_3.3.2 ③ (1094)",
    printed="Σ i^{−3/2} ≤ 2, by the integral from 1",
    reason="the integral leaves out i = 1; the sum is ζ(3/2) = 2.612. (For 1/(i√(i+2)), where it is used first, 2 is "
    "right: 1.9615.)",
    repaired="ζ(3/2)", effect="22 α_0²σ² → 29 α_0²σ² in C_0",
)  # fmt: skip
def t332_series() -> Slacks:
    """2 and ζ(3/2) minus the sum of 1000 terms."""
    total = float((np.arange(1, 1001) ** -1.5).sum())
    return Slacks(2 - total, telescoping.ZETA_3_2 - total)


def alpha0_on_the_papers_route() -> float:
    """Return the largest α_0 L of the paper's proof with every row of the table repaired: 3/(4 + 8K) = 3/3836.5.

    T_1 and T_3 may take 3/8 of α_i‖∇f(θ_i)‖² (1113 to 1124), so α_0 (L/2 + K L) ≤ 3/8, with K L in the place of 155:
    K = 15 (T3.1-square) + 30 · 5 · (51/50)² + 44 · 7 (T3.2-dependence, with the paper's own 5 and 7).
    """
    return 3 / (4 + 8 * (15 + 30 * 5 * 1.02**2 + 44 * 7))
