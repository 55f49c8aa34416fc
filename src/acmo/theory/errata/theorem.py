"""Errata of Algorithm 1's last lines and of Theorem 4.1: what is promised, and of which iterate."""

from math import sqrt

import numpy as np

from acmo.theory.bounds import convergence_bound, theorem_settings
from acmo.theory.errata.erratum import Severity, Slacks, erratum
from acmo.theory.errata.example_runs import average_on_bowl, inverse_sqrt_rate


@erratum(
    "return-line", Severity.CONSTANT, "Algorithm 1, return (303)",
    printed="P(o = i) = α_{i−1}/(Σ_{τ=1}^{T−1})α_τ, 2 ≤ i ≤ T",
    reason="the proof bounds Σα_i‖∇f(θ_i)‖²/Σα_i, i ≥ 1; if only ‖∇f(θ_2)‖ ≠ 0, the printed law gives 1.9 times "
    "that. (At T = 1 the sum is empty.)",
    repaired="either law after T steps: Σ_{i≤T} α_i x_{i+1} ≤ Σ_{i≤T} α_i x_i + α_0 G²",
    effect="C_0 grows by G² under the printed law; both are covered by 8/5 G²",
)  # fmt: skip
def return_line() -> Slacks:
    """The x = ‖∇f(θ_i)‖² along a path where only θ_2 is not stationary, G = 1."""
    x, alpha = np.array([0.0, 1.0, 0.0, 0.0]), 1 / np.sqrt(np.arange(1, 5))
    proof, algorithm = (alpha[:3] * x[:3]).sum() / alpha[:3].sum(), (alpha[:2] * x[1:3]).sum() / alpha[:2].sum()
    return Slacks(float(proof - algorithm), float((alpha[:3] * x[:3]).sum() + 1 - (alpha[:3] * x[1:]).sum()))


@erratum(
    "projection", Severity.BREAKS, "Algorithm 1, Π (301)",
    printed="the theorem is of Algorithm 1, with Π",
    reason="the proof has θ_{t+1} = θ_t − α m (803). On 𝒳 = [5, ∞), f = √(1+θ²) stays at 5, where ‖∇f‖² = 25/26: at "
    "T = 2^20 with the largest α_0, 0.8952 promised, 0.9615 measured",
    repaired="no projection (𝒳 = ℝ^d)",
)  # fmt: skip
def projection() -> Slacks:
    """Printed bound minus measured from θ = 5 with Π, and repaired bound minus measured without; L = G = 1, σ = 0."""
    alpha0, steps = theorem_settings(1.0, 0.0)["lr"], 2**20
    bound = convergence_bound(1.0, 0.0, 1.0, alpha0, steps, gap=sqrt(26) - 1)
    held = average_on_bowl(1000, 5.0, inverse_sqrt_rate(alpha0), low=5.0)  # θ never moves: the same for every T
    return Slacks(bound.printed - held, bound.repaired - average_on_bowl(steps, 5.0, inverse_sqrt_rate(alpha0)))


@erratum(
    "gap", Severity.BREAKS, "Theorem 4.1, C_0' (1124, 1137–1144)",
    printed="E‖∇f(θ_o)‖² ≤ C_0'/√T + C_1' ln(T)/√T",
    reason="f(θ_1) − min f is lost, so a far start breaks it: f = √(1+θ²) from θ = 1000, largest α_0, T = 2^20: "
    "0.895 promised, 1.000 measured",
    repaired="with 2 (f(θ_1) − min f)/α_0 in C_0",
    effect="C_0 grows by 2 gap/α_0",
)  # fmt: skip
def gap() -> Slacks:
    """Bound minus measured; L = G = 1, σ = 0."""
    alpha0 = theorem_settings(1.0, 0.0)["lr"]
    bound = convergence_bound(1.0, 0.0, 1.0, alpha0, 2**20, gap=sqrt(1 + 1e6) - 1)
    measured = average_on_bowl(2**20, 1000.0, inverse_sqrt_rate(alpha0))
    return Slacks(bound.printed - measured, bound.repaired - measured)


@erratum(
    "division", Severity.CONSTANT, "eq. (final convergence) (1137)",
    printed="X/Σα_i ≤ X/(2α_0√t)",
    reason="Σα_i < 2α_0√t: the wrong side; at t = 1 by a factor of 2",
    repaired="Σα_i ≥ 2α_0(√(t+1) − 1), and ≥ α_0√t",
    effect="both times √T/(√(T+1)−1), → 1 (or both doubled, with α_0√T)",
)  # fmt: skip
def division() -> Slacks:
    """Σα_i minus the divisor, α_0 = 1, the worst t up to 1000."""
    t = np.arange(1, 1001)
    total = np.cumsum(1 / np.sqrt(t))
    below = np.minimum(total - 2 * (np.sqrt(t + 1) - 1), total - np.sqrt(t))
    return Slacks(float((total - 2 * np.sqrt(t)).max()), float(below.min()))
