"""Errata of section 3.2: the descent of the current batch, and the acute angles."""

import numpy as np

from acmo.theory import auxiliary, lemmas
from acmo.theory.errata.erratum import Erratum, Severity, Slacks, erratum

sufficient = Erratum(
    "sufficient", Severity.SLIP, "3.2 (324, 339, 342)",
    printed="the change of f_A is ≤ 0, which is called a sufficient descent",
    reason="≤ 0 is true; only the word is not. With β_t = 1, which 328 allows, and δ = 0 the change may be exactly 0 "
    "although g ≠ 0: f_A = ‖θ‖²/2 with m ⟂ g",
    repaired="≤ −(α/2)(1−β²)‖g‖² for α ≤ 1/L_A: sufficient for β < 1, so β = 1 is excluded",
    effect="none", evaluate=None,
)  # fmt: skip


@erratum(
    "acute-moment", Severity.OVERSTATES, "1 and 3.2 (160, 281)",
    printed="the step forms acute angles with both the current gradient and some moments",
    reason="with m_{t−1} only while cos(g, m) ≥ −β‖m‖/(‖m‖+δ); at the paper's β = 0.9, cos = −0.95 it is obtuse",
    repaired="never obtuse for β = 1 and δ = 0; this excludes the paper's own β = 0.9 (420)",
)  # fmt: skip
def acute_moment() -> Slacks:
    """⟨m_t, m_{t−1}⟩ for a gradient almost opposite to the moment."""
    g, m = np.array([-0.95, np.sqrt(1 - 0.95**2)]), np.array([1.0, 0.0])
    return Slacks(float(lemmas.acute_with_moment(g, m, 0.9, 0.0)), float(lemmas.acute_with_moment(g, m, 1.0, 0.0)))


@erratum(
    "acute-history", Severity.OVERSTATES, "1 and 6 (160, 499)",
    printed="acute angles with the directions of historical mini-batch updating",
    reason="the angle is with their weighted sum only: g = (1,0), (−.8,.6), (−.9,.4), β = 1, δ = 0: ⟨m_3, g_1⟩ < 0",
    repaired="acute with g_t and m_{t−1}; how often the past batches' losses fall is measured: “Descent” above",
)  # fmt: skip
def acute_history() -> Slacks:
    """⟨m_3, g_1⟩ and ⟨m_3, m_2⟩."""
    g = np.array([[1.0, 0.0], [-0.8, 0.6], [-0.9, 0.4]])
    m = [g[0]]
    for x in g[1:]:
        m.append(x + float(auxiliary.compute_beta_hat(x, m[-1], 1.0)) * m[-1])
    return Slacks(float(m[2] @ g[0]), float(m[2] @ m[1]))
