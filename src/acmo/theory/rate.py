"""Theorem 4.1 measured: E‖∇f(θ_o)‖² of ACMo under the theorem's settings, against the bound, and the rate's exponent.

The seeds of a shard share one optimizer: one tensor per seed, with ``norm_scope="tensor"``, so that every seed has its
own θ. Each shard is one process. There are always two, so that the figures are the same on every machine.
Plain SGD runs beside it with the same draws: under the theorem's settings the two hardly differ.
``python -m acmo.theory.rate`` prints the table of docs/theory.md.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from acmo.iterate_sampler import IterateSampler
from acmo.optimizer import ACMo
from acmo.theory.bounds import convergence_bound, theorem_settings
from acmo.theory.lemmas import Array, norm
from acmo.theory.problems import CosineSum, cosine_sum

Tick = Callable[[int], None]
SHARDS = 2


class Shard(NamedTuple):
    """‖∇f‖² at every T = 2^k, for some of the seeds."""

    sampled: Array  # [k, draws, seeds], at the iterates that the IterateSamplers drew
    averaged: Array  # [k, seeds], Σ_{s≤T} α_s ‖∇f(θ_{s+1})‖²/Σα_s: the exact mean over o
    gap: Array  # [seeds]
    sgd: Array  # [k, seeds], as ``averaged``, of SGD (β = 0) from the same starts with the same draws


class Rate(NamedTuple):
    """The measured means and the bounds at every T = 2^k."""

    T: Array
    sampled: Array
    averaged: Array
    stderr: Array  # of ``averaged``, over seeds
    printed: Array
    repaired: Array
    seeds: int
    sgd: Array  # as ``averaged``, of SGD

    def exponent(self, first: int = 64, log_corrected: bool = False) -> float:
        """Return the slope of ln E over ln T from T = ``first`` on; of ln(E/(1 + ln T)) if ``log_corrected``."""
        use = first <= self.T
        y = self.averaged[use] / ((1 + np.log(self.T[use])) if log_corrected else 1)
        return float(np.polyfit(np.log(self.T[use]), np.log(y), 1)[0])

    def slack(self) -> float:
        """Return the smallest (repaired bound − measured)/bound of both measurements."""
        worst = np.maximum(self.sampled, self.averaged)
        return float(((self.repaired - worst) / self.repaired).min())


def run_shard(
    problem: CosineSum, steps: int, seeds: int, draws: int, seed: tuple[int, int], tick: Tick | None = None
) -> Shard:
    """Run independent trainings with batches of one, from points drawn over a whole period of the problem.

    Args:
      problem: a finite sum with known constants.
      steps: the largest T.
      seeds: number of trainings.
      draws: number of `IterateSampler`s; each draws its own o.
      seed: the seed of all draws, and the number of the shard.
      tick: called with the number of steps done, every 64 steps.
    """
    settings = theorem_settings(problem.smoothness, problem.sigma)
    rng = np.random.default_rng(seed)
    n, d = problem.phases.shape
    theta = rng.uniform(-np.pi, np.pi, (seeds, d)) / problem.omega
    gap = problem.gap(theta)
    g = np.zeros_like(theta)
    # Parameters and gradients are views of two NumPy arrays: the problem is evaluated for all seeds at once.
    params = [torch.nn.Parameter(row) for row in torch.from_numpy(theta)]
    for p, row in zip(params, torch.from_numpy(g), strict=True):
        p.grad = row
    opt = ACMo(params, **settings, norm_scope="tensor", nonfinite="propagate")  # nothing here can overflow
    schedule = settings.schedule(opt)
    samplers = [
        IterateSampler(opt, seed=int(s)) for s in np.random.default_rng((*seed, draws)).integers(2**31, size=draws)
    ]
    weighted, total = np.zeros(seeds), 0.0
    plain, plain_weighted = theta.copy(), np.zeros(seeds)
    sampled, averaged, sgd = [], [], []
    for t in range(1, steps + 1):
        drawn = rng.integers(0, n, seeds)
        g[:] = problem.grad_of(theta, drawn)
        opt.step()
        schedule.step()
        alpha = settings.alpha(t)
        total += alpha
        weighted += alpha * (problem.grad(theta) ** 2).sum(-1)
        plain -= alpha * problem.grad_of(plain, drawn)
        plain_weighted += alpha * (problem.grad(plain) ** 2).sum(-1)
        if t & (t - 1) == 0:
            held = np.stack([torch.stack(s.sample()).numpy() for s in samplers])
            sampled.append(norm(problem.grad(held)) ** 2)
            averaged.append(weighted / total)
            sgd.append(plain_weighted / total)
        if tick and t % 64 == 0:
            tick(t)
    return Shard(np.array(sampled), np.array(averaged), gap, np.array(sgd))


def combine(problem: CosineSum, shards: list[Shard]) -> Rate:
    """Average over all seeds and add the bounds. A bound is linear in the gap, so it takes the mean gap."""
    sampled = np.concatenate([s.sampled for s in shards], axis=-1)
    averaged = np.concatenate([s.averaged for s in shards], axis=-1)
    gap = float(np.concatenate([s.gap for s in shards]).mean())
    alpha0 = theorem_settings(problem.smoothness, problem.sigma)["lr"]
    marks, seeds = 2 ** np.arange(len(averaged)), averaged.shape[-1]
    bounds = [
        convergence_bound(problem.smoothness, problem.sigma, problem.gradient_bound, alpha0, int(t), gap) for t in marks
    ]
    stderr = averaged.std(-1, ddof=1) / np.sqrt(seeds)
    promised = (np.array([b.printed for b in bounds]), np.array([b.repaired for b in bounds]))
    sgd = np.concatenate([s.sgd for s in shards], axis=-1).mean(-1)
    return Rate(marks.astype(np.float64), sampled.mean((1, 2)), averaged.mean(-1), stderr, *promised, seeds, sgd)


def markdown_table(rate: Rate, first: int = 16) -> str:
    """Return the table of docs/theory.md, every fourth T from ``first`` on."""
    lines = [
        "| T | sampled | mean over o (± standard error) | SGD, same draws | repaired bound | printed bound |",
        "|---|---|---|---|---|---|",
    ]
    for k in range(int(np.searchsorted(rate.T, first)), len(rate.T), 2):
        lines.append(
            f"| {int(rate.T[k])} | {rate.sampled[k]:.3f} | {rate.averaged[k]:.4f} ± {rate.stderr[k]:.4f} | "
            f"{rate.sgd[k]:.4f} | {rate.repaired[k]:.3g} | {rate.printed[k]:.3g} |"
        )
    return "\n".join(lines)


def describe_slopes(rate: Rate) -> str:
    """Return the exponent of T with and without the logarithm, in one line."""
    return f"exponent of T: {rate.exponent():.3f}; of E/(1 + ln T): {rate.exponent(log_corrected=True):.3f} (T ≥ 64)"


class Measurement:
    """The trainings, run in the background: ``with Measurement() as m: …; rate = m.result()``."""

    def __init__(self, steps: int = 2**14, seeds: int = 200, draws: int = 50, seed: int = 0) -> None:
        self.problem = cosine_sum()
        self.steps = steps
        # Not forked, because torch has threads already. The progress bar reads the counters.
        context = multiprocessing.get_context("spawn")
        self._steps_done: Any = context.Array("q", SHARDS)
        self._pool = ProcessPoolExecutor(SHARDS, context, initializer=partial(_init_worker, self._steps_done))
        sizes = [seeds // SHARDS + (k < seeds % SHARDS) for k in range(SHARDS)]
        self._futures: list[Future[Shard]] = [
            self._pool.submit(_run_in_worker, self.problem, steps, size, draws, (seed, k))
            for k, size in enumerate(sizes)
        ]

    def __enter__(self) -> "Measurement":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    @property
    def progress(self) -> float:
        """The share of all steps that is done, between 0 and 1."""
        return float(sum(self._steps_done[:])) / (self.steps * SHARDS)

    @property
    def finished(self) -> bool:
        """Whether every shard is finished."""
        return all(f.done() for f in self._futures)

    def result(self) -> Rate:
        """Wait for the shards and combine them."""
        return combine(self.problem, [f.result() for f in self._futures])


_progress_counters: list[Any] = []


def _init_worker(done: Any) -> None:
    _progress_counters.append(done)
    torch.set_num_threads(1)


def _run_in_worker(problem: CosineSum, steps: int, seeds: int, draws: int, seed: tuple[int, int]) -> Shard:
    def tick(t: int) -> None:
        _progress_counters[0][seed[1]] = t

    return run_shard(problem, steps, seeds, draws, seed, tick)


if __name__ == "__main__":
    with Measurement() as measurement:
        measured = measurement.result()
    print(markdown_table(measured))
    print(describe_slopes(measured))
