"""Errata of section 3: the auxiliary problems, and the intuition."""

import numpy as np

from acmo.theory import auxiliary, lemmas
from acmo.theory.errata import Shown, equation, row


@row(
    "sgd-alpha", "3.1, SGD's step",
    printed="(θ_{t+1}−θ_t)ᵀ∇f = −‖∇f‖²", wrong="the step size is missing: α = 0.1, ∇f = 2 gives −0.4, not −4",
    repaired="−α‖∇f‖²",
)  # fmt: skip
def sgd_alpha() -> Shown:
    """The product of one SGD step with its gradient."""
    alpha, g = 0.1, 2.0
    return equation((-alpha * g) * g, -(g**2), -alpha * g**2)


@row(
    "taylor", "3.1, after eq. 5",
    printed="T_1 + T_3 is the second-order Taylor polynomial of f_A",
    wrong="T_3 has I/α where the Hessian belongs, and f_A(θ_t) is missing: f = 3θ²/2, α = 0.1",
    repaired="f_A(θ) − f_A(θ_t) ≤ T_1 + T_3 for α ≤ 1/L_A: a majoriser",
)  # fmt: skip
def taylor() -> Shown:
    """The model of a parabola whose curvature is not 1/α."""
    h, alpha, theta, s = 3.0, 0.1, 1.0, 0.5
    change = h / 2 * ((theta + s) ** 2 - theta**2)  # a parabola's second-order polynomial is itself
    model = s * h * theta + s**2 / (2 * alpha)
    return Shown(-abs(change - model), model - change)


@row(
    "eq6-tau", "eq. 6", printed="(θ−θ_t)ᵀ∇f_{A_τ}(θ_t) = 0 for τ ≤ t",
    wrong="τ = t is g_t itself: the objective is then ‖θ−θ_t‖²/(2α), the minimiser θ_t, no move at all",
    repaired="τ < t",
)  # fmt: skip
def eq6_tau() -> Shown:
    """How far the objective falls, with and without g among the constraints."""
    g, past = np.array([1.0, 2.0, 0.5]), np.array([[1.0, 0.0, 0.0]])
    least = 1e-9  # a move worth the name lowers the objective

    def lowered(constraints: auxiliary.Array) -> float:
        s = auxiliary.hard_margin_minimiser(g, constraints, 0.1)
        return float(-auxiliary.hard_margin(s, g, 0.1)) - least

    return Shown(lowered(np.vstack([past, g])), lowered(past))


@row(
    "eq7-sum", "eq. 7", printed="ĝ_t = β̂_t Σ_{τ=1}^{t} w_τ g_τ",
    wrong="then ĝ_t has g_t in it, eq. 9 (sum to t−1) no longer gives ‖ĝ_t‖ ≤ ‖g_t‖, and the step is not ACMo's",
    repaired="the sum ends at t−1",
)  # fmt: skip
def eq7_sum() -> Shown:
    """‖g‖ − ‖ĝ‖ for a gradient that points where the moment points."""
    g, m = np.array([1.0, 0.0]), np.array([2.0, 0.0])
    beta_hat = float(auxiliary.calibrated(g, m, 1.0))
    return Shown(1 - float(lemmas.norm(beta_hat * (m + g))), 1 - float(lemmas.norm(beta_hat * m)))


@row(
    "sgd-momentum", "3.2, after eq. 8", printed="β̂_t = 1, w_τ = β_0^τ is SGD-momentum",
    wrong="those weights grow old gradients' share, not the new ones'",
    repaired="w_τ = β_0^{t−τ}, sum to t−1",
)  # fmt: skip
def sgd_momentum() -> Shown:
    """The step of eq. 8 against the buffer that SGD-momentum keeps."""
    g, beta = np.array([1.0, -2.0, 0.5, 3.0]), 0.9
    buffer = 0.0
    for x in g:
        buffer = beta * buffer + x
    tau, t = np.arange(1, 5), 4
    printed = g[-1] + (beta**tau * g).sum()
    repaired = g[-1] + (beta ** (t - tau[:-1]) * g[:-1]).sum()
    return equation(buffer, printed, repaired)


@row(
    "batch-smoothness", "3.2, ① of the descent", printed="① follows from Assumption 1",
    wrong="Assumption 1 is of f, ① needs f_A: f_1 = 5θ², f_2 = −4θ² have L = 1 together; one step of 1/L from θ = 1 "
    "raises f_1 from 5 to 405",
    repaired="L_t is the batch's own constant, α ≤ 1/L_t",
)  # fmt: skip
def batch_smoothness() -> Shown:
    """−(change of the batch's loss), step 1/L of the sum and step 1/L of the batch."""
    g = 10.0
    return Shown(5 - 5 * (1 - g / 1) ** 2, 5 - 5 * (1 - g / 10) ** 2)


@row(
    "sufficient", "3.2, ③ of the descent", printed="≤ 0, called a sufficient descent",
    wrong="for β = 1, δ = 0 the change may be exactly 0 although g ≠ 0: f_A = ‖θ‖²/2 with m ⟂ g",
    repaired="≤ −(α/2)(1−β²)‖g‖², for β < 1 and α ≤ 1/L_A",
)  # fmt: skip
def sufficient() -> Shown:
    """What is left of the descent on a bowl, beyond a millionth of ‖g‖²."""
    g, m = np.array([1.0, 0.0]), np.array([0.0, 3.0])

    def change(beta: float) -> float:
        after = g + auxiliary.acmo_minimiser(g, m, float(auxiliary.calibrated(g, m, beta)), 1.0)  # θ = g on this bowl
        return float((after @ after - g @ g) / 2)

    repaired = lemmas.descent(g, m, 0.9, 0.0, 1.0, np.asarray(change(0.9)))
    return Shown(-change(1.0) - 1e-6, float(repaired) + 1e-12)


@row(
    "acute-moment", "1 and 3.2", printed="the step is at acute angles with g_t and the moment",
    wrong="with m_{t−1} only while cos(g, m) ≥ −β‖m‖/(‖m‖+δ); at the default β = 0.9, cos = −0.95 it is obtuse",
    repaired="β = 1 and δ = 0",
)  # fmt: skip
def acute_moment() -> Shown:
    """⟨m_t, m_{t−1}⟩ for a gradient almost opposite to the moment."""
    g, m = np.array([-0.95, np.sqrt(1 - 0.95**2)]), np.array([1.0, 0.0])
    return Shown(float(lemmas.acute_with_moment(g, m, 0.9, 0.0)), float(lemmas.acute_with_moment(g, m, 1.0, 0.0)))


@row(
    "acute-history", "1 and 3.2, (i)", printed="acute angles with the directions of previous mini-batches",
    wrong="the angle is with their weighted sum only: g = (1,0), (−.8,.6), (−.9,.4), β = 1, δ = 0: ⟨m_3, g_1⟩ < 0",
    repaired="acute with g_t and m_{t−1}; how often the past batches' losses fall is measured: “Descent” above",
)  # fmt: skip
def acute_history() -> Shown:
    """⟨m_3, g_1⟩ and ⟨m_3, m_2⟩."""
    g = np.array([[1.0, 0.0], [-0.8, 0.6], [-0.9, 0.4]])
    m = [g[0]]
    for x in g[1:]:
        m.append(x + float(auxiliary.calibrated(x, m[-1], 1.0)) * m[-1])
    return Shown(float(m[2] @ g[0]), float(m[2] @ m[1]))
