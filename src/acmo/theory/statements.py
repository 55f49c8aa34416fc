"""What the paper states and what our proof adds, each tried on thousands of random cases: statement → slacks.

Slacks are relative to the size of what is compared, so that one tolerance serves all. Identities and minimisers
count as holding when they agree to `TOLERANCE`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from acmo.theory import auxiliary, lemmas, path, telescoping
from acmo.theory.bounds import r3_paths, theorem_settings
from acmo.theory.extras import extra
from acmo.theory.lemmas import BETA_HAT_MAX, Array, norm
from acmo.theory.problems import cosine_sum

TOLERANCE = 1e-9

Trial = Callable[[np.random.Generator], Array]


class Outcome(NamedTuple):
    """One line of the table."""

    statement: str
    holds: bool
    slack: float
    cases: int


def vectors(rng: np.random.Generator, *shape: int) -> Array:
    """Normal deviates, each vector scaled by its own power of ten."""
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 3, (*shape[:-1], 1))


def bound_of_adagrad(rng: np.random.Generator) -> Array:
    """f̄ ≤ f̂."""
    slacks = []
    for _ in range(200):
        history, s = vectors(rng, int(rng.integers(1, 8)), 4), vectors(rng, 25, 4)
        alpha = 10.0 ** rng.uniform(-3, 0)
        upper, lower = auxiliary.adagrad_bound(s, history, alpha), auxiliary.adagrad(s, history, alpha)
        slacks.append((upper - lower) / (np.abs(upper) + np.abs(lower) + 1e-300))
    return np.concatenate(slacks)


def minimisers(rng: np.random.Generator) -> Array:
    """The closed forms of eq. 3 to 8 against scipy: no point that it finds lies lower."""
    minimize = extra("scipy.optimize", "the check of the minimisers").minimize
    slacks = []
    for objective, ours in (pair for _ in range(4) for pair in auxiliary_problems(rng)):
        value = float(objective(ours))
        found = minimize(objective, np.zeros(len(ours)), tol=1e-12)
        slacks.append((float(found.fun) - value) / abs(value))
    return np.array(slacks)


def auxiliary_problems(rng: np.random.Generator) -> list[tuple[Callable[[Array], Array], Array]]:
    """Each objective of section 3, and its minimiser as we have it, in random circumstances."""
    history, alpha = rng.normal(size=(6, 4)), float(10.0 ** rng.uniform(-2, 0))
    g, m, past = history[-1], rng.normal(size=4), history[:2]
    beta_hat = float(auxiliary.calibrated(g, m))
    null = np.linalg.svd(past)[2][2:]  # a basis of what is orthogonal to both constraints
    margin = null @ auxiliary.hard_margin_minimiser(g, past, alpha)
    return [
        (lambda s: auxiliary.adagrad(s, history, alpha), auxiliary.adagrad_minimiser(history, alpha)),
        (lambda s: auxiliary.adagrad_bound(s, history, alpha), auxiliary.adagrad_bound_minimiser(history, alpha)),
        (lambda z: auxiliary.hard_margin(z @ null, g, alpha), margin),
        (
            lambda s: auxiliary.acmo(s, g, m, beta_hat, 1 / alpha),
            auxiliary.acmo_minimiser(g, m, beta_hat, 1 / alpha),
        ),
    ]


def a1(rng: np.random.Generator) -> Array:
    """Lemma A.1."""
    g, m = vectors(rng, 10_000, 4), vectors(rng, 10_000, 4)
    g[:1000], m[1000:2000] = m[:1000], 0  # steady gradients attain the bound; m = 0 is the first step
    beta, delta = rng.uniform(0, 1, 10_000), rng.choice([0.0, 1e-8, 1.0], 10_000)
    return lemmas.a1_moment(g, m, beta, delta, rng.choice([1.0, 0.3], 10_000)) / norm(g)


def a2(rng: np.random.Generator) -> Array:
    """Lemma A.2."""
    grads = vectors(rng, 20, 4)
    return np.asarray(lemmas.a2_minibatch(grads, rng.integers(0, 20, (10_000, 5))) / norm(grads).max())


def a3(rng: np.random.Generator) -> Array:
    """Lemma A.3 with the factor 1."""
    grads = vectors(rng, 10_000, 5, 4)
    return np.asarray(lemmas.a3_second_moment(grads, rng.uniform(0, 1, 10_000)) / (norm(grads) ** 2).max(-1))


def descends(rng: np.random.Generator) -> Array:
    """Section 3.2 on random quadratic batch losses whose largest curvature is L_A, α ≤ 1/L_A."""
    theta, m = vectors(rng, 10_000, 4), vectors(rng, 10_000, 4)
    curvature = rng.uniform(-1, 1, (10_000, 4))  # saddles too
    g = curvature * theta
    alpha = rng.uniform(0.01, 1, 10_000) / np.abs(curvature).max(-1)
    beta = rng.uniform(0, 1, 10_000)
    after = theta - alpha[:, None] * (g + auxiliary.calibrated(g, m, beta)[:, None] * m)
    change = (curvature * (after**2 - theta**2)).sum(-1) / 2
    return np.asarray(lemmas.descent(g, m, beta, 0.0, alpha, change) / (alpha * norm(g) ** 2))


def theorem_path(rng: np.random.Generator, seeds: int = 50, steps: int = 300) -> tuple[path.Path, float, float, float]:
    """ACMo as the theorem wants it on a random egg box, at our larger α_0 = 4/(5L); α_0, L, σ, G follow."""
    problem = cosine_sum(
        n=int(rng.integers(2, 10)), d=3, smoothness=10.0 ** rng.uniform(-1, 4), seed=int(rng.integers(99))
    )
    alpha0 = 0.8 / problem.smoothness
    start = rng.uniform(-np.pi, np.pi, (seeds, 3)) / problem.omega
    draws = rng.integers(0, len(problem.phases), (steps, seeds))
    delta = theorem_settings(problem.smoothness, problem.sigma)["delta"]
    return path.run(problem, start, draws, alpha0, 1 / 50, delta), alpha0, problem.smoothness, delta


def a4_a5(rng: np.random.Generator) -> tuple[Array, Array]:
    """Lemma A.4 and Corollary A.5 along real paths, t ≥ 2."""
    first, second = [], []
    for _ in range(10):
        run, alpha0, smoothness, delta = theorem_path(rng)
        alpha = alpha0 / np.sqrt(np.arange(1, len(run.g)))[:, None]
        first.append(lemmas.a4_ratio(run.g[1:], run.m[:-1], delta, smoothness, alpha, 1 / 50).ravel())
        second.append(lemmas.a5_beta_hat(run.raw[1:]).ravel())
    return np.concatenate(first), np.concatenate(second)


def a6(rng: np.random.Generator) -> Array:
    """Lemma A.6."""
    slacks = []
    for _ in range(100):
        g, beta_hat = rng.normal(size=(14, 3)), np.append(0, rng.uniform(0, 1 / 12, 13))
        theta, m, alpha = path.unrolled(g, beta_hat)
        slacks += [lemmas.a6_constructed(theta, g, m, beta_hat, alpha, i) for i in range(2, 12)]
    return np.array(slacks)


def beta_hats(rng: np.random.Generator, cases: int = 500, length: int = 400) -> Array:
    """Applied β̂_2, β̂_3, …: Ψ of raw ones up to 1/12, from noise of several kinds."""
    raw = BETA_HAT_MAX * rng.uniform(0, 1, (cases, length)) ** (10.0 ** rng.uniform(-3, 1, (cases, 1)))
    return telescoping.applied(raw)


def b1_b2(rng: np.random.Generator) -> tuple[Array, Array]:
    """B.1 and B.2 for i up to 10^6."""
    i, b = np.floor(10.0 ** rng.uniform(np.log10(2), 6, 50_000)), rng.uniform(0, BETA_HAT_MAX, 50_000)
    return telescoping.b1(i, b), telescoping.b2(i, b)


def b3_b4(rng: np.random.Generator) -> tuple[Array, Array]:
    """B.3 and B.4 along applied β̂."""
    b = beta_hats(rng)
    i = np.arange(2, b.shape[1] + 1)
    return telescoping.b3(i, b[:, :-1], b[:, 1:]).ravel(), telescoping.b4(i, b[:, :-1], b[:, 1:]).ravel()


def r3(rng: np.random.Generator) -> Array:
    """Lemma R.3 along real paths."""
    slacks = []
    for k in range(10):
        problem = cosine_sum(n=6, d=3, seed=k)
        alpha0 = 0.8 / problem.smoothness
        start = rng.uniform(-np.pi, np.pi, (20, 3)) / problem.omega
        run = path.run(problem, start, rng.integers(0, 6, (300, 20)), alpha0, 1 / 50, problem.sigma)
        slacks.append(r3_paths(problem, run, alpha0) / problem.amplitude)
    return np.concatenate(slacks)


TRIALS: dict[str, Callable[[np.random.Generator], Array | tuple[Array, Array]]] = {
    "eq. 5: f̄ ≤ f̂": bound_of_adagrad,
    "eq. 3–8: the minimisers": minimisers,
    "3.2: descent ≤ −(α/2)(1−β²)‖g‖² (repaired)": descends,
    "Lemma A.1": a1,
    "Lemma A.2": a2,
    "Lemma A.3, factor 1 (repaired)": a3,
    "Lemma A.4, t ≥ 2|Corollary A.5, t ≥ 2": a4_a5,
    "Lemma A.6": a6,
    "Lemma B.1, β̂ ≤ 1/12|Corollary B.2": b1_b2,
    "Lemma B.3, applied β̂|Corollary B.4": b3_b4,
    "Lemma R.1 (ours): α_t β̂_t never grows": lambda rng: telescoping.r1_monotone(beta_hats(rng)),
    "Lemma R.2 (ours): V ≤ α_0/7": lambda rng: telescoping.r2_variation(beta_hats(rng)),
    "Lemma R.3 (ours): every path": r3,
}


def outcomes(name: str, seed: int = 0) -> list[Outcome]:
    """Run one of `TRIALS`; a name with a bar has two statements."""
    slacks = TRIALS[name](np.random.default_rng(seed))
    parts = slacks if isinstance(slacks, tuple) else (slacks,)
    return [
        Outcome(title, bool(part.min() >= -TOLERANCE), float(part.min()), part.size)
        for title, part in zip(name.split("|"), parts, strict=True)
    ]
