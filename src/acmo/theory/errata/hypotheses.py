"""Errata of section 4: the assumptions, and the conditions of Theorem 4.1 on α_t and Ψ."""

from math import sqrt

import numpy as np

from acmo.theory import telescoping
from acmo.theory.bounds import convergence_bound, theorem_settings
from acmo.theory.errata.erratum import Severity, Slacks, equation_slacks, erratum
from acmo.theory.errata.example_runs import average_on_bowl, inverse_sqrt_rate


@erratum(
    "assumption-1", Severity.SLIP, "Assumption 1 (375)",
    printed="‖∇f_i(θ_i) − ∇f_j(θ_j)‖ ≤ L‖θ_i − θ_j‖",
    reason="at θ_i = θ_j it makes all f_i one function, so σ = 0: f_1 = θ²/2, f_2 = (θ−1)²/2",
    repaired="‖∇f(θ) − ∇f(θ')‖ ≤ L‖θ − θ'‖",
)  # fmt: skip
def assumption_1() -> Slacks:
    """L‖θ−θ'‖ minus the difference of gradients at 0 and 0, and of f's at 0 and 1."""
    return Slacks(0.0 - abs((0.0 - 0.0) - (0.0 - 1.0)), 1.0 - abs((0.0 - 0.5) - (1.0 - 0.5)))


@erratum(
    "shuffling", Severity.SLIP, "3.1 beside Assumption 3 (269–271, 386)",
    printed="E∇f_A = ∇f, where batches come from a random shuffle",
    reason="the proof needs it *given the past*; in a shuffled epoch the last batch is known: n = 2, g = ±1. The "
    "appendix has it right: “we sample each mini-batch independently” (727)",
    repaired="batches drawn independently; of shuffled epochs the theorem says nothing",
)  # fmt: skip
def shuffling() -> Slacks:
    """−|E[g_2 | g_1 = 1] − ∇f| without and with replacement."""
    values = np.array([1.0, -1.0])
    return equation_slacks(0.0, values[1:].mean(), values.mean())


@erratum(
    "alpha-below", Severity.BREAKS, "Theorem 4.1 (395)",
    printed="α_t ≤ 3/((4L+1240)√t)",
    reason="α_t = α_0 2^{−t} is allowed, and θ stays near its start: f = √(1+θ²) from θ = 3, largest α_0, T = 2^20: "
    "0.8952 promised, 0.89995 measured. The proof uses α_t = α_0/√t throughout (1137)",
    repaired="α_t = α_0/√t, α_0 ≤ 4/(5L)",
)  # fmt: skip
def alpha_below() -> Slacks:
    """Printed and repaired bound minus measured from θ = 3, with the steps α_0 2^{−t} and α_0/√t; L = G = 1, σ = 0."""
    alpha0, steps = theorem_settings(1.0, 0.0)["lr"], 2**20
    bound = convergence_bound(1.0, 0.0, 1.0, alpha0, steps, gap=sqrt(10) - 1)
    stuck = average_on_bowl(900, 3.0, lambda t: alpha0 * 2.0**-t)  # all later weights together are below 2^{−900}
    return Slacks(bound.printed - stuck, bound.repaired - average_on_bowl(steps, 3.0, inverse_sqrt_rate(alpha0)))


@erratum(
    "psi-raw", Severity.BREAKS, "Theorem 4.1, Ψ (299, 300, 395)",
    printed="Ψ = min(β̂_{t+1}, √((t+1)/t) β̂_t), β̂ = β‖g‖/(‖m‖+δ)",
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
