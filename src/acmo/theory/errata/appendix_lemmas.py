"""Errata of the appendix's lemmas, A.1 to B.4."""

import numpy as np

from acmo.theory import lemmas, telescoping
from acmo.theory.errata.erratum import Severity, Slacks, erratum
from acmo.theory.lemmas import gradient_factor
from acmo.theory.path import unroll


@erratum(
    "first-beta-hat", Severity.SLIP, "Lemma A.4, Corollary A.5 (757–765, 1043)",
    printed="for any 1 ≤ t ≤ T; used as 2/(1−β̂_1) ≤ 3",
    reason="m_0 = 0, so β̂_1 = β‖g_1‖/δ, which no assumption bounds: ‖g_1‖ = 100, δ = σ = 1 gives 2",
    repaired="t ≥ 2; β̂_1 multiplies m_0 = 0, so take β̂_1 = 0 in every proof",
)  # fmt: skip
def first_beta_hat() -> Slacks:
    """Lemma A.4 at t = 1, and at t = 2 with the worst noise (L = 1, α_1 = 1, ∇f = 99 → 99 + ‖m_1‖)."""
    g1, g2 = np.array([98.0]), np.array([99.0 + 98.0 + 1.0])
    return Slacks(
        float(lemmas.a4_ratio(np.array([100.0]), np.zeros(1), 1.0, 1.0, 1.0, 1 / 50)),
        float(lemmas.a4_ratio(g2, g1, 1.0, 1.0, 1.0, 1 / 50)),
    )


@erratum(
    "A.3-half", Severity.BREAKS, "Lemma A.3 (680, 692), and T_1, T_3.1, T_3.2, T_3.3",
    printed="E‖g‖² ≤ ½(σ² + E‖∇f‖²)",
    reason="σ = 0 makes it ‖∇f‖² ≤ ½‖∇f‖²",
    repaired="E‖g‖² ≤ σ² + E‖∇f‖²; and ‖g‖² ≤ 2(σ² + ‖∇f‖²) always",
    effect="every constant from T_3 times 2 at least; T_1 survives, ① there having 11 times to spare",
)  # fmt: skip
def a3_half() -> Slacks:
    """One gradient, no noise."""
    g = np.ones((1, 3))
    return Slacks(float(lemmas.a3_second_moment(g, factor=0.5)), float(lemmas.a3_second_moment(g)))


@erratum(
    "A.6-index", Severity.SLIP, "Lemma A.6 (779, 783)",
    printed="… · m̂_{t−1}, “when t ≥ 2”",
    reason="with the last moment instead of the i-th step's the identity fails", repaired="m̂_{i−1}, when i ≥ 2",
)  # fmt: skip
def a6_index() -> Slacks:
    """The identity on ten random steps, at i = 5."""
    rng = np.random.default_rng(0)
    g, beta_hat = rng.normal(size=(12, 3)), np.append(0, rng.uniform(0, 1 / 12, 11))
    theta, m, alpha = unroll(g, beta_hat)
    wrong = m.copy()
    wrong[4] = m[10]
    return Slacks(*(lemmas.a6_constructed(theta, g, x, beta_hat, alpha, 5) for x in (wrong, m)))


@erratum(
    "first-factor", Severity.SLIP, "Lemma A.6 at i = 1 (787), T_3 (995)",
    printed="√2 + 1 at i = 1",
    reason="T_2.2 and T_3.1 continue with √(1/1) + 1 = 2 < √2 + 1 for the same term",
    repaired="2: at i = 1 the identity holds with any factor, as m_1 = g_1",
)  # fmt: skip
def first_factor() -> Slacks:
    """What T_3.1 has at i = 1 minus what the line before it has; β̂_1 = 0."""
    return Slacks(2.0**2 - (2.0**0.5 + 1) ** 2, float(gradient_factor(1, 0.0)) ** 2 - 2.0**2)


@erratum(
    "B-hypotheses", Severity.SLIP, "Lemmas B.1 to B.4 (1156)",
    printed="β_t ≤ 1/50 is the only hypothesis",
    reason="β̂ = β‖g‖/(‖m‖+δ) may still be anything: B.1 fails at i = 2, β̂ = 0.9",
    repaired="β̂ ≤ 1/12 (Corollary A.5), for B.3, B.4 applied β̂ as well",
)  # fmt: skip
def b_hypotheses() -> Slacks:
    """Lemma B.1 at i = 2."""
    return Slacks(float(telescoping.b1(2, 0.9)), float(telescoping.b1(2, 1 / 12)))
