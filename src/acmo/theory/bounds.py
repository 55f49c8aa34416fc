"""Theorem 4.1: its settings and its bound, as printed and as repaired (the proof is in docs/theory.md)."""

from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

from acmo.options import check_at_least
from acmo.theory.lemmas import BETA_MAX, Array, norm
from acmo.theory.path import Path, Problem
from acmo.theory.telescoping import momentum_shares


class Bound(NamedTuple):
    """Hold an upper bound of E‖∇f(θ_o)‖² after T steps, as printed and as repaired."""

    printed: float
    repaired: float


class Constants(NamedTuple):
    """C_0 and C_1 of C_0/√T + C_1 ln(T)/√T."""

    c0: float
    c1: float


class TheoremSettings(dict[str, Any]):
    """Hold keyword arguments for ACMo, and the step sizes α_t = α_0/√t that go with them."""

    def alpha(self, t: int) -> float:
        """Return α_t, t = 1, 2, …"""
        return float(self["lr"]) / sqrt(t)

    def schedule(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        """Return a scheduler of α_t; call its ``step()`` once after every ``optimizer.step()``."""
        return LambdaLR(optimizer, inverse_sqrt)


def inverse_sqrt(step: int) -> float:
    """Return 1/√t for ``step`` = t − 1, as LambdaLR counts."""
    return 1 / sqrt(step + 1)


def theorem_settings(L: float, sigma: float) -> TheoremSettings:
    """Return the settings of Theorem 4.1: β = 1/50, δ = σ, α_t = α_0/√t with the paper's largest α_0, Ψ = sqrt.

    Args:
      L: Lipschitz constant of ∇f.
      sigma: bound of ‖∇f_i(θ) − ∇f(θ)‖ over all i and θ.

    Returns:
      A dict for ``ACMo(params, **settings)``; ``settings.schedule(optimizer)`` makes the scheduler of α_t.

    Example:
      >>> settings = theorem_settings(L=1000.0, sigma=2.0)
      >>> sorted(settings)
      ['delta', 'lr', 'momentum', 'psi']
      >>> settings.alpha(4) == settings["lr"] / 2
      True
    """
    check_at_least("L", L, strict=True)
    check_at_least("sigma", sigma)
    return TheoremSettings(lr=3 / (4 * L + 1240), momentum=BETA_MAX, delta=float(sigma), psi="sqrt")


def printed_constants(L: float, sigma: float, G: float, alpha0: float) -> Constants:
    """Return C_0' and C_1' as printed. They lack f(θ_1) − min f, so the bound cannot hold in general."""
    return Constants(
        (L / 2 + 235) * alpha0 * sigma**2 + 70 * G**2 + 1,
        (L / 2 + 3) * alpha0 * sigma**2 + 60 * G**2 + 1,
    )


def repaired_constants(L: float, sigma: float, G: float, alpha0: float, gap: float) -> Constants:
    """Return C_0 and C_1 of the repaired theorem, with the simple bound Σα_i ≥ α_0 √T."""
    noise = 5 / 4 * L * alpha0 * sigma**2
    return Constants(2 * gap / alpha0 + 8 / 5 * G**2 + noise, noise)


def convergence_bound(L: float, sigma: float, G: float, alpha0: float, T: int, gap: float = 0.0) -> Bound:
    r"""Return Theorem 4.1's bound of :math:`E\|\nabla f(\theta_o)\|^2` after T steps with α_t = α_0/√t.

    .. math::
      \text{repaired} = \frac{2\,\mathrm{gap}/\alpha_0 + \tfrac85 G^2 + \tfrac54 L\alpha_0\sigma^2 (1 + \ln T)}
      {2(\sqrt{T+1}-1)}

    holds for both ways of drawing o: θ_i with weight α_i (the paper's proof), and θ_{i+1} with weight α_i, i ≤ T (its
    Algorithm 1, :class:`acmo.IterateSampler`); for β ≤ 1/50, δ ≥ σ, Ψ = sqrt, α_0 ≤ 4/(5L) and no projection.

    Args:
      L: Lipschitz constant of ∇f.
      sigma: bound of ‖∇f_i(θ) − ∇f(θ)‖.
      G: bound of the norm of every mini-batch gradient.
      alpha0: α_1, at most 4/(5L). (The paper's 3/(4L + 1240) is less.)
      T: number of steps, at least 1.
      gap: f(θ_1) − min f, which the printed bound lacks and the repaired one needs.

    Returns:
      A :class:`Bound`.

    Example:
      >>> bound = convergence_bound(L=1000.0, sigma=1.0, G=2.0, alpha0=5e-4, T=10_000, gap=0.01)
      >>> bound.repaired < bound.printed
      True
    """
    for name, value in (("L", L), ("alpha0", alpha0)):
        check_at_least(name, value, strict=True)
    for name, value in (("sigma", sigma), ("G", G), ("gap", gap)):
        check_at_least(name, value)
    check_at_least("T", T, 1)
    if alpha0 * L > 4 / 5 * (1 + 1e-12):
        raise ValueError(f"alpha0 must be at most 4/(5 L) = {4 / (5 * L):.3g}, got {alpha0:.3g}")
    old, new = printed_constants(L, sigma, G, alpha0), repaired_constants(L, sigma, G, alpha0, gap)
    return Bound(
        (old.c0 + old.c1 * log(T)) / sqrt(T),
        (new.c0 + new.c1 * log(T)) / (2 * (sqrt(T + 1) - 1)),
    )


def r3_slack(problem: Problem, run: Path, alpha0: float, L: float | None = None, G: float | None = None) -> Array:
    """Return the slack of Lemma R.3 for each seed of ``run``. Without expectations, along *every* path of T steps,

    f(θ_{T+1}) − f(θ_1) ≤ −Σ (α_i + λ_{i−1}) ⟨∇f(θ_i), g_i⟩ + (2 + 17/200) V G² + (13/22) L Σ α_i² ‖m_i‖².

    with λ and V of Lemma R.2. L and G default to the problem's.
    """
    L, G = L or problem.smoothness, G or problem.gradient_bound
    steps = len(run.g)
    alpha = alpha0 / np.sqrt(np.arange(1, steps + 1))
    lam = momentum_shares(run.applied[1:].T, alpha0)  # [S, T + 2]
    variation = np.abs(np.diff(lam)).sum(-1)
    along = ((alpha + lam[:, :steps]) * (problem.grad(run.theta[:-1]) * run.g).sum(-1).T).sum(-1)
    right = -along + (2 + 17 / 200) * variation * G**2 + 13 / 22 * L * (alpha[:, None] ** 2 * norm(run.m) ** 2).sum(0)
    return np.asarray(right - (problem.value(run.theta[-1]) - problem.value(run.theta[0])))
