"""Theorem F of docs/theory.md: ACMo as it is used (Ψ = identity, β = 0.9) falls at a rate to a floor.

Lemma F.1 is about one step and every noise, Theorem F about its expectation. Both need no more of the moment than
‖β̂_t m_{t−1}‖ ≤ β‖g_t‖, so they hold for every Ψ that does not enlarge β̂, every δ ≥ 0 and every norm scope.
``python -m acmo.theory.floor`` prints the tables of docs/theory.md.
"""

from typing import NamedTuple

import numpy as np
import torch

from acmo.optimizer import ACMo
from acmo.options import check_at_least
from acmo.theory import path
from acmo.theory.lemmas import Array, Real, norm
from acmo.theory.problems import CosineSum, SkewedNoise, cosine_sum


def f1_step(change: Array, gradient: Array, g: Array, alpha: Real, beta: Real, smoothness: Real) -> Array:
    """Return the slack of Lemma F.1, with a = Lα: f(θ−αm) − f(θ) ≤ (α/2)(‖∇f‖² − (1+a)(2⟨∇f, g⟩ − (a+β²)‖g‖²)).

    ``change`` is the left side; m = g + v with any v that is not longer than β‖g‖.
    """
    a, alpha = np.asarray(smoothness) * alpha, np.asarray(alpha)
    inner = (gradient * g).sum(-1)
    bracket = 2 * inner - (a + np.asarray(beta) ** 2) * norm(g) ** 2
    return np.asarray(alpha / 2 * (norm(gradient) ** 2 - (1 + a) * bracket) - change)


def expected_change(gradient_sq: Real, noise_sq: Real, alpha: Real, beta: Real, smoothness: Real) -> Array:
    """Return the mean of Lemma F.1's right side over noise of mean zero: what one step may change f by on average.

    It is −(α/2)((1−β²)(1+a) − a²)‖∇f‖² + (α/2)(1+a)(a+β²) s², s² = E‖ξ‖².
    """
    a, b = np.asarray(smoothness) * alpha, np.asarray(beta) ** 2
    return np.asarray(alpha / 2 * (((1 + a) * (a + b)) * noise_sq - ((1 - b) * (1 + a) - a**2) * gradient_sq))


def floor(noise_sq: float, beta: float = 0.9) -> float:
    """Return β² s²/(1−β²), what is left of Theorem F's bound for small steps and many of them."""
    return beta**2 / (1 - beta**2) * noise_sq


def floor_bound(gap: float, alpha: Array, beta: float, smoothness: float, noise_sq: float) -> float:
    """Return Theorem F's bound of the mean of E‖∇f(θ_t)‖² with weights α_t: rate plus floor.

    [2 gap/Σα_t + (β² + 2L Σα_t²/Σα_t) s²]/(1−β²), for 0 ≤ β < 1 and 0 < α_t ≤ (1−β²)/L.

    Args:
      gap: f(θ_1) − inf f.
      alpha: the step sizes α_1 … α_T.
      beta: β.
      smoothness: L.
      noise_sq: s², a bound of E[‖g_t − ∇f(θ_t)‖² | the past].

    Example:
      >>> round(floor_bound(gap=0.0, alpha=np.full(10, 1e-9), beta=0.9, smoothness=1.0, noise_sq=1.0), 3)
      4.263
    """
    check_at_least("gap", gap)
    check_at_least("noise_sq", noise_sq)
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta}")
    largest = float(np.max(alpha))
    if not 0 < float(np.min(alpha)) <= largest <= (1 - beta**2) / smoothness * (1 + 1e-12):
        raise ValueError(f"alpha must be in (0, (1 - beta²)/L = {(1 - beta**2) / smoothness:.3g}], got {largest:.3g}")
    total = float(np.sum(alpha))
    noise = (beta**2 + 2 * smoothness * float(np.sum(alpha**2)) / total) * noise_sq
    return (2 * gap / total + noise) / (1 - beta**2)


class Equilibrium(NamedTuple):
    """Hold where ACMo settles for α → 0 in one dimension under two-valued noise, in units of E|ξ|² = 1."""

    gradient: float  # ∇f there
    noise_sq: float

    @property
    def share(self) -> float:
        """Return ‖∇f‖²/s², to be compared with β²/(1−β²)."""
        return self.gradient**2 / self.noise_sq


def equilibrium(p: float, beta: float = 0.9) -> Equilibrium:
    """Return the point where E[m_t] = 0 if g is negative with probability p, in one dimension, δ = 0.

    There m_t = g_t + β|g_t| sign(g_{t−1}), so that E[m] = E[g] + β E|g| (1 − 2p). With A = E[g⁺] and B = E[g⁻] = 1 this
    is 0 for A = (1 − βq)/(1 + βq), q = 1 − 2p; then ∇f = A − B and s² = A²/(1−p) + B²/p − ∇f².
    """
    q = 1 - 2 * p
    up = (1 - beta * q) / (1 + beta * q)
    gradient = up - 1
    return Equilibrium(gradient, up**2 / (1 - p) + 1 / p - gradient**2)


class FloorRow(NamedTuple):
    """Hold one setting on the egg box: the mean of ‖∇f(θ_t)‖² over steps and seeds, and its bound."""

    batch: int
    step: float  # α L
    steps: int
    measured: float
    stderr: float
    rate: float  # the bound's parts: 2 gap/((1−β²) Σα)
    steps_noise: float  # 2 L α s²/(1−β²)
    floor: float  # β² s²/(1−β²)

    @property
    def bound(self) -> float:
        """Return the sum of the three."""
        return self.rate + self.steps_noise + self.floor


def measure_box(batch: int, step: float, steps: int, seeds: int = 100, beta: float = 0.9, seed: int = 0) -> FloorRow:
    """Run `acmo.ACMo` with Ψ = identity, δ = 1e-8 and constant α = step/L on `cosine_sum`, batches with replacement."""
    problem: CosineSum = cosine_sum()
    rng = np.random.default_rng(seed)
    n, d = problem.phases.shape
    alpha = step / problem.smoothness
    theta = rng.uniform(-np.pi, np.pi, (seeds, d)) / problem.omega
    gap, g, total = float(problem.gap(theta).mean()), np.zeros_like(theta), np.zeros(seeds)
    params = [torch.nn.Parameter(row) for row in torch.from_numpy(theta)]
    for p, row in zip(params, torch.from_numpy(g), strict=True):
        p.grad = row
    opt = ACMo(params, lr=alpha, momentum=beta, norm_scope="tensor")
    for _ in range(steps):
        total += norm(problem.grad(theta)) ** 2
        g[:] = problem.grad_of(theta[:, None], rng.integers(0, n, (seeds, batch))).mean(1)
        opt.step()
    noise_sq, scale = problem.noise_bound**2 / batch, 1 - beta**2
    mean = total / steps
    stderr = float(mean.std(ddof=1) / np.sqrt(seeds))
    parts = (2 * gap / (scale * alpha * steps), 2 * step * noise_sq / scale, floor(noise_sq, beta))
    return FloorRow(batch, step, steps, float(mean.mean()), stderr, *parts)


def best_equilibrium(beta: float = 0.9) -> tuple[float, Equilibrium]:
    """Return the p in (0, ½) for which two-valued noise leaves the largest ‖∇f‖²/s², and that equilibrium."""
    p = max(np.linspace(0.001, 0.499, 499), key=lambda p: equilibrium(float(p), beta).share)
    return float(p), equilibrium(float(p), beta)


def skewed_offset(psi: str, beta: float = 0.9, delta: float = 1e-8) -> float:
    """Return the mean of ∇f after 1500 steps of 1000 seeds from the minimum under `SkewedNoise`, α_t = 0.3/√t."""
    problem = SkewedNoise()
    draws = np.random.default_rng(0).integers(0, 10, (1500, 1000))
    end = path.run(problem, np.zeros((1000, 1)), draws, 0.3, beta, delta, psi).theta[-1]
    return float(problem.grad(end).mean())


def _print_tables() -> None:
    """Print the tables and figures of docs/theory.md."""
    print("| batch | αL | T | measured (± standard error) | bound = rate + α's noise + floor |\n|---|---|---|---|---|")
    for batch, step, steps in ((1, 0.19, 4096), (1, 0.019, 4096), (64, 0.19, 256), (64, 0.19, 4096), (64, 0.019, 4096)):
        r = measure_box(batch, step, steps)
        parts = f"{r.bound:.3g} = {r.rate:.3g} + {r.steps_noise:.3g} + {r.floor:.3g}"
        print(f"| {batch} | {step:g} | {steps} | {r.measured:.4f} ± {r.stderr:.4f} | {parts} |")
    print(f"no gradient of f is longer than √{cosine_sum().steepest ** 2:.3g}")
    print("\n| β | largest ‖∇f‖²/s² of two-valued noise, at p | β²/(1−β²) |\n|---|---|---|")
    for beta in (0.1, 0.5, 0.9, 0.99):
        p, found = best_equilibrium(beta)
        print(f"| {beta:g} | {found.share:.4f}, p = {p:.3f} | {floor(1.0, beta):.4f} |")
    offsets = {psi: skewed_offset(psi) for psi in ("identity", "sqrt")}
    print("\nmean ∇f under skewed noise:", ", ".join(f"Ψ = {psi} {value:.4f}" for psi, value in offsets.items()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    _print_tables()
