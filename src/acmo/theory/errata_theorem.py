"""Errata of section 4 and Algorithm 1: the assumptions, the theorem's conditions, and what it promises."""

from collections.abc import Callable
from math import sqrt

import numpy as np

from acmo.theory import lemmas, path, problems, telescoping
from acmo.theory.bounds import convergence_bound, theorem_settings
from acmo.theory.errata import Shown, equation, row


def root(alpha0: float) -> Callable[[int], float]:
    """α_t = α_0/√t."""
    return lambda t: alpha0 / sqrt(t)


def bowl_average(steps: int, start: float, alpha: Callable[[int], float], low: float = -np.inf) -> float:
    """Σ α_i ‖∇f(θ_i)‖²/Σ α_i of ACMo (β = 1/50, δ = σ = 0, Ψ = sqrt) on f = √(1+θ²) − 1, θ kept above ``low``.

    In one dimension and without noise, plain floats: a million steps a second.
    """
    theta, m, kept, top, below = start, 0.0, float("inf"), 0.0, 0.0
    for t in range(1, steps + 1):
        g = theta / sqrt(1 + theta * theta)
        kept = min(abs(g) / (50 * abs(m)), sqrt(t / (t - 1)) * kept) if m else float("inf")
        m = g + (kept * m if m else 0.0)
        a = alpha(t)
        top, below = top + a * g * g, below + a
        theta = max(theta - a * m, low)
    return top / below


@row(
    "assumption-1", "Assumption 1", printed="‖∇f_i(θ_i) − ∇f_j(θ_j)‖ ≤ L‖θ_i − θ_j‖",
    wrong="at θ_i = θ_j it makes all f_i one function, so σ = 0: f_1 = θ²/2, f_2 = (θ−1)²/2",
    repaired="‖∇f(θ) − ∇f(θ')‖ ≤ L‖θ − θ'‖",
)  # fmt: skip
def assumption_1() -> Shown:
    """L‖θ−θ'‖ minus the difference of gradients at 0 and 0, and of f's at 0 and 1."""
    return Shown(0.0 - abs((0.0 - 0.0) - (0.0 - 1.0)), 1.0 - abs((0.0 - 0.5) - (1.0 - 0.5)))


@row(
    "shuffling", "Assumption 3 with 3.1", printed="E∇f_A = ∇f, with batches from a random shuffle",
    wrong="the proof needs it *given the past*; in a shuffled epoch the last batch is known: n = 2, g = ±1",
    repaired="batches drawn independently, or the theorem says nothing",
)  # fmt: skip
def shuffling() -> Shown:
    """−|E[g_2 | g_1 = 1] − ∇f| without and with replacement."""
    values = np.array([1.0, -1.0])
    return equation(0.0, values[1:].mean(), values.mean())


@row(
    "return-line", "Algorithm 1, return",
    printed="P(o = i) = α_{i−1}/(Σ_{τ=1}^{T−1})α_τ, 2 ≤ i ≤ T",
    wrong="the proof bounds Σα_i‖∇f(θ_i)‖²/Σα_i, i ≥ 1; if only ‖∇f(θ_2)‖ ≠ 0, the printed law gives 1.9 times "
    "that. (At T = 1 the sum is empty.)",
    repaired="either law after T steps: Σ_{i≤T} α_i x_{i+1} ≤ Σ_{i≤T} α_i x_i + α_0 G²",
    effect="C_0 grows by G² under the printed law; both are covered by 8/5 G²",
)  # fmt: skip
def return_line() -> Shown:
    """The x = ‖∇f(θ_i)‖² along a path where only θ_2 is not stationary, G = 1."""
    x, alpha = np.array([0.0, 1.0, 0.0, 0.0]), 1 / np.sqrt(np.arange(1, 5))
    proof, algorithm = (alpha[:3] * x[:3]).sum() / alpha[:3].sum(), (alpha[:2] * x[1:3]).sum() / alpha[:2].sum()
    return Shown(float(proof - algorithm), float((alpha[:3] * x[:3]).sum() + 1 - (alpha[:3] * x[1:]).sum()))


@row(
    "projection", "Algorithm 1, Π", printed="the theorem is of Algorithm 1, with Π",
    wrong="the proof has θ_{t+1} = θ_t − α m; on [1, 2], f = √(1+θ²) ends at 1, where ‖∇f‖² = ½ for ever",
    repaired="no projection (𝒳 = ℝ^d)",
)  # fmt: skip
def projection() -> Shown:
    """Bound minus measured, T = 200 from θ = 2, with α_0 = 4/(5L)."""
    bound = convergence_bound(1.0, 0.0, 1.0, 0.8, 200, gap=sqrt(5) - 1).repaired
    return Shown(bound - bowl_average(200, 2.0, root(0.8), low=1.0), bound - bowl_average(200, 2.0, root(0.8)))


@row(
    "alpha-below", "Theorem 4.1", printed="α_t ≤ 3/((4L+1240)√t)",
    wrong="α_t = α_0 2^{−t} is allowed, and goes nowhere; the proof uses α_t = α_0/√t throughout",
    repaired="α_t = α_0/√t, α_0 ≤ 4/(5L)",
)  # fmt: skip
def alpha_below() -> Shown:
    """Bound minus measured from θ = 3, T = 2000, with the steps 0.8 · 2^{−t} and 0.8/√t."""
    bound = convergence_bound(1.0, 0.0, 1.0, 0.8, 2000, gap=sqrt(10) - 1).repaired
    stuck = bowl_average(2000, 3.0, lambda t: 0.8 * 2.0 ** -min(t, 900))
    return Shown(bound - stuck, bound - bowl_average(2000, 3.0, root(0.8)))


@row(
    "psi-raw", "Theorem 4.1, Ψ", printed="Ψ = min(β̂_{t+1}, √((t+1)/t) β̂_t), β̂ = β‖g‖/(‖m‖+δ)",
    wrong="Lemma B.3 needs the ratio of *applied* β̂; with raw ones it may be 83 after one small gradient: fails at "
    "i = 400",
    repaired="β̂_t on the right is what Ψ returned at t (defined for t ≥ 2)",
    effect="without it there are no constants: T_2.1 and T_2.2 grow like √T",
)  # fmt: skip
def psi_raw() -> Shown:
    """Lemma B.3 along β̂ = 1/12 but for one step of 1/1000."""
    raw = np.full(420, 1 / 12)
    raw[397] = 1e-3  # t = 399
    t = np.arange(2, len(raw) + 1)
    both = [telescoping.b3(t, b[:-1], b[1:]) for b in (telescoping.raw_psi(raw), telescoping.applied(raw))]
    return Shown(float(both[0].min()), float(both[1].min()))


@row(
    "psi-identity", "3.2 and 5, “in practice”", printed="Ψ(β̂_t, β̂_{t−1}) = β̂_t, β = 0.9",
    wrong="outside the theorem, and not stationary in the limit: m/‖m‖ has a mean of its own where the noise is "
    "skewed. f = √(1+θ²), noise −2 (1 in 10) or 2/9: the run ends at ∇f = −0.18",
    repaired="Ψ = sqrt (even at β = 0.9 here), or β → 0, or noise that is symmetric or small",
    effect="no C_0 exists: E‖∇f‖² has a floor",
)  # fmt: skip
def psi_identity() -> Shown:
    """0.03 − |mean ∇f| after 1500 steps of 1000 seeds from the minimum."""
    problem = problems.SkewedNoise()
    draws = np.random.default_rng(0).integers(0, 10, (1500, 1000))

    def offset(psi: str) -> float:
        end = path.run(problem, np.zeros((1000, 1)), draws, 0.3, 0.9, 1e-8, psi).theta[-1]
        return 0.03 - abs(float(problem.grad(end).mean()))

    return Shown(offset("identity"), offset("sqrt"))


@row(
    "first-beta-hat", "Lemma A.4, Corollary A.5", printed="for any 1 ≤ t ≤ T; used as 2/(1−β̂_1) ≤ 3",
    wrong="m_0 = 0, so β̂_1 = β‖g_1‖/δ, which no assumption bounds: ‖g_1‖ = 100, δ = σ = 1 gives 2",
    repaired="t ≥ 2; β̂_1 multiplies m_0 = 0, so take β̂_1 = 0 in every proof",
)  # fmt: skip
def first_beta_hat() -> Shown:
    """Lemma A.4 at t = 1, and at t = 2 with the worst noise (L = 1, α_1 = 1, ∇f = 99 → 99 + ‖m_1‖)."""
    g1, g2 = np.array([98.0]), np.array([99.0 + 98.0 + 1.0])
    return Shown(
        float(lemmas.a4_ratio(np.array([100.0]), np.zeros(1), 1.0, 1.0, 1.0, 1 / 50)),
        float(lemmas.a4_ratio(g2, g1, 1.0, 1.0, 1.0, 1 / 50)),
    )


@row(
    "gap", "Theorem 4.1, C_0'", printed="E‖∇f(θ_o)‖² ≤ C_0'/√T + C_1' ln(T)/√T",
    wrong="f(θ_1) − min f is lost, so a far start breaks it: f = √(1+θ²) from θ = 1000, largest α_0, T = 2^20: "
    "0.895 promised, 1.000 measured",
    repaired="with 2 (f(θ_1) − min f)/α_0 in C_0",
    effect="C_0 grows by 2 gap/α_0",
)  # fmt: skip
def gap() -> Shown:
    """Bound minus measured; L = G = 1, σ = 0."""
    alpha0 = theorem_settings(1.0, 0.0)["lr"]
    bound = convergence_bound(1.0, 0.0, 1.0, alpha0, 2**20, gap=sqrt(1 + 1e6) - 1)
    measured = bowl_average(2**20, 1000.0, root(alpha0))
    return Shown(bound.printed - measured, bound.repaired - measured)


@row(
    "division", "eq. (final convergence)", printed="X/Σα_i ≤ X/(2α_0√t)",
    wrong="Σα_i < 2α_0√t: the wrong side; at t = 1 by a factor of 2",
    repaired="Σα_i ≥ 2α_0(√(t+1) − 1), and ≥ α_0√t",
    effect="both times √T/(√(T+1)−1), → 1 (or both doubled, with α_0√T)",
)  # fmt: skip
def division() -> Shown:
    """Σα_i minus the divisor, α_0 = 1, the worst t up to 1000."""
    t = np.arange(1, 1001)
    total = np.cumsum(1 / np.sqrt(t))
    below = np.minimum(total - 2 * (np.sqrt(t + 1) - 1), total - np.sqrt(t))
    return Shown(float((total - 2 * np.sqrt(t)).max()), float(below.min()))
