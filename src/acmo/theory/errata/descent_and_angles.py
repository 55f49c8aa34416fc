"""Errata of section 3.2: the descent of the current batch, and the acute angles."""

import numpy as np

from acmo.theory import auxiliary, lemmas
from acmo.theory.errata.erratum import Slacks, erratum


@erratum(
    "batch-smoothness", "3.2, ① of the descent", printed="① follows from Assumption 1",
    reason="Assumption 1 is of f, ① needs f_A: f_1 = 5θ², f_2 = −4θ² have L = 1 together; one step of 1/L from θ = 1 "
    "raises f_1 from 5 to 405",
    repaired="L_t is the batch's own constant, α ≤ 1/L_t",
)  # fmt: skip
def batch_smoothness() -> Slacks:
    """−(change of the batch's loss), step 1/L of the sum and step 1/L of the batch."""
    g = 10.0
    return Slacks(5 - 5 * (1 - g / 1) ** 2, 5 - 5 * (1 - g / 10) ** 2)


@erratum(
    "sufficient", "3.2, ③ of the descent", printed="≤ 0, called a sufficient descent",
    reason="for β = 1, δ = 0 the change may be exactly 0 although g ≠ 0: f_A = ‖θ‖²/2 with m ⟂ g",
    repaired="≤ −(α/2)(1−β²)‖g‖², for β < 1 and α ≤ 1/L_A",
)  # fmt: skip
def sufficient() -> Slacks:
    """What is left of the descent on a bowl, beyond a millionth of ‖g‖²."""
    g, m = np.array([1.0, 0.0]), np.array([0.0, 3.0])

    def change(beta: float) -> float:
        beta_hat = float(auxiliary.compute_beta_hat(g, m, beta))
        after = g + auxiliary.acmo_minimiser(g, m, beta_hat, 1.0)  # θ = g on this bowl
        return float((after @ after - g @ g) / 2)

    repaired = lemmas.descent(g, m, 0.9, 0.0, 1.0, np.asarray(change(0.9)))
    return Slacks(-change(1.0) - 1e-6, float(repaired) + 1e-12)


@erratum(
    "acute-moment", "1 and 3.2", printed="the step is at acute angles with g_t and the moment",
    reason="with m_{t−1} only while cos(g, m) ≥ −β‖m‖/(‖m‖+δ); at the default β = 0.9, cos = −0.95 it is obtuse",
    repaired="β = 1 and δ = 0",
)  # fmt: skip
def acute_moment() -> Slacks:
    """⟨m_t, m_{t−1}⟩ for a gradient almost opposite to the moment."""
    g, m = np.array([-0.95, np.sqrt(1 - 0.95**2)]), np.array([1.0, 0.0])
    return Slacks(float(lemmas.acute_with_moment(g, m, 0.9, 0.0)), float(lemmas.acute_with_moment(g, m, 1.0, 0.0)))


@erratum(
    "acute-history", "1 and 3.2, (i)", printed="acute angles with the directions of previous mini-batches",
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
