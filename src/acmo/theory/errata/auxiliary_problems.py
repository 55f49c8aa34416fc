"""Errata of section 3, up to eq. 9: the auxiliary problems and the steps that they give."""

import numpy as np

from acmo.theory import auxiliary, lemmas
from acmo.theory.errata.erratum import Severity, Slacks, equation_slacks, erratum


@erratum(
    "sgd-alpha", Severity.SLIP, "3.1, SGD's step (tex 274)",
    printed="(θ_{t+1}−θ_t)ᵀ∇f = −‖∇f‖²", reason="the step size is missing: α = 0.1, ∇f = 2 gives −0.4, not −4",
    repaired="−α‖∇f‖²",
)  # fmt: skip
def sgd_alpha() -> Slacks:
    """The product of one SGD step with its gradient."""
    alpha, g = 0.1, 2.0
    return equation_slacks((-alpha * g) * g, -(g**2), -alpha * g**2)


@erratum(
    "taylor", Severity.SLIP, "3.1, after eq. 5 (257)",
    printed="T_1 + T_3 is the second-order Taylor polynomial of f_A",
    reason="T_3 has I/α where the Hessian belongs, and f_A(θ_t) is missing: f = 3θ²/2, α = 0.1",
    repaired="f_A(θ) − f_A(θ_t) ≤ T_1 + T_3 for α ≤ 1/L_A: a majoriser",
)  # fmt: skip
def taylor() -> Slacks:
    """The model of a parabola whose curvature is not 1/α."""
    h, alpha, theta, s = 3.0, 0.1, 1.0, 0.5
    change = h / 2 * ((theta + s) ** 2 - theta**2)  # a parabola's second-order polynomial is itself
    model = s * h * theta + s**2 / (2 * alpha)
    return Slacks(-abs(change - model), model - change)


@erratum(
    "eq6-tau", Severity.SLIP, "eq. 6 (264)",
    printed="(θ−θ_t)ᵀ∇f_{A_τ}(θ_t) = 0 for τ ≤ t",
    reason="τ = t is g_t itself: the objective is then ‖θ−θ_t‖²/(2α), the minimiser θ_t, no move at all",
    repaired="τ < t",
)  # fmt: skip
def eq6_tau() -> Slacks:
    """How far the objective falls, with and without g among the constraints."""
    g, past = np.array([1.0, 2.0, 0.5]), np.array([[1.0, 0.0, 0.0]])
    least = 1e-9  # a move worth the name lowers the objective

    def lowered(constraints: auxiliary.Array) -> float:
        s = auxiliary.hard_margin_minimiser(g, constraints, 0.1)
        return float(-auxiliary.hard_margin(s, g, 0.1)) - least

    return Slacks(lowered(np.vstack([past, g])), lowered(past))


@erratum(
    "eq7-sum", Severity.SLIP, "eq. 7 (313)",
    printed="ĝ_t = β̂_t Σ_{τ=1}^{t} w_τ g_τ",
    reason="then ĝ_t has g_t in it, eq. 9 (sum to t−1) no longer gives ‖ĝ_t‖ ≤ ‖g_t‖, and the step is not ACMo's",
    repaired="the sum ends at t−1",
)  # fmt: skip
def eq7_sum() -> Slacks:
    """‖g‖ − ‖ĝ‖ for a gradient that points where the moment points."""
    g, m = np.array([1.0, 0.0]), np.array([2.0, 0.0])
    beta_hat = float(auxiliary.compute_beta_hat(g, m, 1.0))
    return Slacks(1 - float(lemmas.norm(beta_hat * (m + g))), 1 - float(lemmas.norm(beta_hat * m)))


@erratum(
    "sgd-momentum", Severity.SLIP, "3.2, after eq. 8 (322)",
    printed="β̂_t = 1, w_τ = β_0^τ is SGD-momentum",
    reason="those weights grow old gradients' share, not the new ones'",
    repaired="w_τ = β_0^{t−τ}, sum to t−1",
)  # fmt: skip
def sgd_momentum() -> Slacks:
    """The step of eq. 8 against the buffer that SGD-momentum keeps."""
    g, beta = np.array([1.0, -2.0, 0.5, 3.0]), 0.9
    buffer = 0.0
    for x in g:
        buffer = beta * buffer + x
    tau, t = np.arange(1, 5), 4
    printed = g[-1] + (beta**tau * g).sum()
    repaired = g[-1] + (beta ** (t - tau[:-1]) * g[:-1]).sum()
    return equation_slacks(buffer, printed, repaired)
