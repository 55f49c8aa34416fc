"""Errata of section 4: the assumptions, and the conditions of Theorem 4.1 on α_t and Ψ."""

from math import sqrt

import numpy as np

from acmo.theory import path, problems, telescoping
from acmo.theory.bounds import convergence_bound
from acmo.theory.errata.erratum import Slacks, equation_slacks, erratum
from acmo.theory.errata.example_runs import average_on_bowl, inverse_sqrt_rate


@erratum(
    "assumption-1", "Assumption 1", printed="‖∇f_i(θ_i) − ∇f_j(θ_j)‖ ≤ L‖θ_i − θ_j‖",
    reason="at θ_i = θ_j it makes all f_i one function, so σ = 0: f_1 = θ²/2, f_2 = (θ−1)²/2",
    repaired="‖∇f(θ) − ∇f(θ')‖ ≤ L‖θ − θ'‖",
)  # fmt: skip
def assumption_1() -> Slacks:
    """L‖θ−θ'‖ minus the difference of gradients at 0 and 0, and of f's at 0 and 1."""
    return Slacks(0.0 - abs((0.0 - 0.0) - (0.0 - 1.0)), 1.0 - abs((0.0 - 0.5) - (1.0 - 0.5)))


@erratum(
    "shuffling", "Assumption 3 with 3.1", printed="E∇f_A = ∇f, with batches from a random shuffle",
    reason="the proof needs it *given the past*; in a shuffled epoch the last batch is known: n = 2, g = ±1",
    repaired="batches drawn independently, or the theorem says nothing",
)  # fmt: skip
def shuffling() -> Slacks:
    """−|E[g_2 | g_1 = 1] − ∇f| without and with replacement."""
    values = np.array([1.0, -1.0])
    return equation_slacks(0.0, values[1:].mean(), values.mean())


@erratum(
    "alpha-below", "Theorem 4.1", printed="α_t ≤ 3/((4L+1240)√t)",
    reason="α_t = α_0 2^{−t} is allowed, and θ stays near its start; the proof uses α_t = α_0/√t throughout",
    repaired="α_t = α_0/√t, α_0 ≤ 4/(5L)",
)  # fmt: skip
def alpha_below() -> Slacks:
    """Bound minus measured from θ = 3, T = 2000, with the steps 0.8 · 2^{−t} and 0.8/√t."""
    bound = convergence_bound(1.0, 0.0, 1.0, 0.8, 2000, gap=sqrt(10) - 1).repaired
    stuck = average_on_bowl(2000, 3.0, lambda t: 0.8 * 2.0 ** -min(t, 900))
    return Slacks(bound - stuck, bound - average_on_bowl(2000, 3.0, inverse_sqrt_rate(0.8)))


@erratum(
    "psi-raw", "Theorem 4.1, Ψ", printed="Ψ = min(β̂_{t+1}, √((t+1)/t) β̂_t), β̂ = β‖g‖/(‖m‖+δ)",
    reason="Lemma B.3 needs the ratio of *applied* β̂; with raw ones it may be 83 after one small gradient: fails at "
    "i = 400",
    repaired="β̂_t on the right is what Ψ returned at t (defined for t ≥ 2)",
    effect="without it there are no constants: T_2.1 and T_2.2 grow like √T",
)  # fmt: skip
def psi_raw() -> Slacks:
    """Lemma B.3 along β̂ = 1/12 but for one step of 1/1000."""
    raw = np.full(420, 1 / 12)
    raw[397] = 1e-3  # t = 399
    t = np.arange(2, len(raw) + 1)
    both = [telescoping.b3(t, b[:-1], b[1:]) for b in (telescoping.apply_printed_psi(raw), telescoping.apply_psi(raw))]
    return Slacks(float(both[0].min()), float(both[1].min()))


@erratum(
    "psi-identity", "3.2 and 5, “in practice”", printed="Ψ(β̂_t, β̂_{t−1}) = β̂_t, β = 0.9",
    reason="outside the theorem, and not stationary in the limit: m/‖m‖ has a mean of its own where the noise is "
    "skewed. f = √(1+θ²), noise −2 (1 in 10) or 2/9: the run ends at ∇f = −0.18",
    repaired="Ψ = sqrt (even at β = 0.9 here), or β → 0, or noise that is symmetric or small",
    effect="no C_0 exists: E‖∇f‖² has a floor",
)  # fmt: skip
def psi_identity() -> Slacks:
    """0.03 − |mean ∇f| after 1500 steps of 1000 seeds from the minimum."""
    problem = problems.SkewedNoise()
    draws = np.random.default_rng(0).integers(0, 10, (1500, 1000))

    def offset(psi: str) -> float:
        end = path.run(problem, np.zeros((1000, 1)), draws, 0.3, 0.9, 1e-8, psi).theta[-1]
        return 0.03 - abs(float(problem.grad(end).mean()))

    return Slacks(offset("identity"), offset("sqrt"))
