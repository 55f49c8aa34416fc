"""The statements of the paper and of our proof, each checked on thousands of random cases: statement → slacks.

Slacks are relative to the size of what is compared, so that one tolerance is enough. Identities and minimisers hold if
they agree to `TOLERANCE`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from acmo.theory import auxiliary, floor, lemmas, path, rows, telescoping
from acmo.theory.bounds import r3_slack, theorem_settings
from acmo.theory.extras import import_extra
from acmo.theory.lemmas import BETA_HAT_MAX, Array, norm
from acmo.theory.problems import cosine_sum

TOLERANCE = 1e-9


class Outcome(NamedTuple):
    """One row of the table: whether a statement held, and how closely."""

    statement: str
    holds: bool
    slack: float
    cases: int


def random_vectors(rng: np.random.Generator, *shape: int) -> Array:
    """Return normal vectors, each scaled by its own power of ten."""
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 3, (*shape[:-1], 1))


def bound_of_adagrad(rng: np.random.Generator) -> Array:
    """Check f̄ ≤ f̂."""
    slacks = []
    for _ in range(200):
        history, s = random_vectors(rng, int(rng.integers(1, 8)), 4), random_vectors(rng, 25, 4)
        alpha = 10.0 ** rng.uniform(-3, 0)
        upper, lower = auxiliary.adagrad_bound(s, history, alpha), auxiliary.adagrad(s, history, alpha)
        slacks.append((upper - lower) / (np.abs(upper) + np.abs(lower) + 1e-300))
    return np.concatenate(slacks)


def minimisers(rng: np.random.Generator) -> Array:
    """Check the closed forms of eq. 3 to 8: scipy finds no lower point."""
    minimize = import_extra("scipy.optimize", "the check of the minimisers").minimize
    slacks = []
    for objective, ours in (pair for _ in range(4) for pair in auxiliary_problems(rng)):
        value = float(objective(ours))
        found = minimize(objective, np.zeros(len(ours)), tol=1e-12)
        slacks.append((float(found.fun) - value) / abs(value))
    return np.array(slacks)


def auxiliary_problems(rng: np.random.Generator) -> list[tuple[Callable[[Array], Array], Array]]:
    """Return the objectives of section 3 with our minimisers, for random gradients."""
    history, alpha = rng.normal(size=(6, 4)), float(10.0 ** rng.uniform(-2, 0))
    g, m, past = history[-1], rng.normal(size=4), history[:2]
    beta_hat = float(auxiliary.compute_beta_hat(g, m))
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
    """Check Lemma A.1."""
    g, m = random_vectors(rng, 10_000, 4), random_vectors(rng, 10_000, 4)
    g[:1000], m[1000:2000] = m[:1000], 0  # steady gradients attain the bound; m = 0 is the first step
    beta, delta = rng.uniform(0, 1, 10_000), rng.choice([0.0, 1e-8, 1.0], 10_000)
    return lemmas.a1_moment(g, m, beta, delta, rng.choice([1.0, 0.3], 10_000)) / norm(g)


def a2(rng: np.random.Generator) -> Array:
    """Check Lemma A.2."""
    grads = random_vectors(rng, 20, 4)
    return np.asarray(lemmas.a2_minibatch(grads, rng.integers(0, 20, (10_000, 5))) / norm(grads).max())


def a3(rng: np.random.Generator) -> Array:
    """Check Lemma A.3 with the factor 1."""
    grads = random_vectors(rng, 10_000, 5, 4)
    return np.asarray(lemmas.a3_second_moment(grads, rng.uniform(0, 1, 10_000)) / (norm(grads) ** 2).max(-1))


def descent(rng: np.random.Generator) -> Array:
    """Check section 3.2 on random quadratic batch losses whose largest curvature is L_A, α ≤ 1/L_A."""
    theta, m = random_vectors(rng, 10_000, 4), random_vectors(rng, 10_000, 4)
    curvature = rng.uniform(-1, 1, (10_000, 4))  # saddles too
    g = curvature * theta
    alpha = rng.uniform(0.01, 1, 10_000) / np.abs(curvature).max(-1)
    beta = rng.uniform(0, 1, 10_000)
    after = theta - alpha[:, None] * (g + auxiliary.compute_beta_hat(g, m, beta)[:, None] * m)
    change = (curvature * (after**2 - theta**2)).sum(-1) / 2
    return np.asarray(lemmas.descent(g, m, beta, 0.0, alpha, change) / (alpha * norm(g) ** 2))


def theorem_path(rng: np.random.Generator, seeds: int = 50, steps: int = 300) -> tuple[path.Path, float, float, float]:
    """Run ACMo with the theorem's settings, but α_0 = 4/(5L), on a random egg box; return the path, α_0, L and δ."""
    problem = cosine_sum(
        n=int(rng.integers(2, 10)), d=3, smoothness=10.0 ** rng.uniform(-1, 4), seed=int(rng.integers(99))
    )
    alpha0 = 0.8 / problem.smoothness
    start = rng.uniform(-np.pi, np.pi, (seeds, 3)) / problem.omega
    draws = rng.integers(0, len(problem.phases), (steps, seeds))
    delta = theorem_settings(problem.smoothness, problem.sigma)["delta"]
    return path.run(problem, start, draws, alpha0, 1 / 50, delta), alpha0, problem.smoothness, delta


def a4_a5(rng: np.random.Generator) -> tuple[Array, Array]:
    """Check Lemma A.4 and Corollary A.5 along paths of ACMo, t ≥ 2."""
    first, second = [], []
    for _ in range(10):
        run, alpha0, smoothness, delta = theorem_path(rng)
        alpha = alpha0 / np.sqrt(np.arange(1, len(run.g)))[:, None]
        first.append(lemmas.a4_ratio(run.g[1:], run.m[:-1], delta, smoothness, alpha, 1 / 50).ravel())
        second.append(lemmas.a5_beta_hat(run.raw[1:]).ravel())
    return np.concatenate(first), np.concatenate(second)


def a6(rng: np.random.Generator) -> Array:
    """Check Lemma A.6."""
    slacks = []
    for _ in range(100):
        g, beta_hat = rng.normal(size=(14, 3)), np.append(0, rng.uniform(0, 1 / 12, 13))
        theta, m, alpha = path.unroll(g, beta_hat)
        slacks += [lemmas.a6_constructed(theta, g, m, beta_hat, alpha, i) for i in range(2, 12)]
    return np.array(slacks)


def random_beta_hats(rng: np.random.Generator, cases: int = 500, length: int = 400) -> Array:
    """Return applied β̂_2, β̂_3, …: Ψ of random raw ones up to 1/12."""
    raw = BETA_HAT_MAX * rng.uniform(0, 1, (cases, length)) ** (10.0 ** rng.uniform(-3, 1, (cases, 1)))
    return telescoping.apply_psi(raw)


def b1_b2(rng: np.random.Generator) -> tuple[Array, Array]:
    """Check B.1 and B.2 for i up to 10^6."""
    i, b = np.floor(10.0 ** rng.uniform(np.log10(2), 6, 50_000)), rng.uniform(0, BETA_HAT_MAX, 50_000)
    return telescoping.b1(i, b), telescoping.b2(i, b)


def b3_b4(rng: np.random.Generator) -> tuple[Array, Array]:
    """Check B.3 and B.4 along applied β̂."""
    b = random_beta_hats(rng)
    i = np.arange(2, b.shape[1] + 1)
    return telescoping.b3(i, b[:, :-1], b[:, 1:]).ravel(), telescoping.b4(i, b[:, :-1], b[:, 1:]).ravel()


def r3(rng: np.random.Generator) -> Array:
    """Check Lemma R.3 along paths of ACMo."""
    slacks = []
    for k in range(10):
        problem = cosine_sum(n=6, d=3, seed=k)
        alpha0 = 0.8 / problem.smoothness
        start = rng.uniform(-np.pi, np.pi, (20, 3)) / problem.omega
        run = path.run(problem, start, rng.integers(0, 6, (300, 20)), alpha0, 1 / 50, problem.sigma)
        slacks.append(r3_slack(problem, run, alpha0) / problem.amplitude)
    return np.concatenate(slacks)


def f1(rng: np.random.Generator) -> Array:
    """Check Lemma F.1 on quadratics with L = 1, for moments of every direction and the worst one."""
    gradient, g, v = (random_vectors(rng, 10_000, 4) for _ in range(3))
    gradient[:5000] = rng.uniform(0, 2, (5000, 1)) * g[:5000]  # near ∇f = (a + β) g, where it is attained
    beta, a = rng.uniform(0, 1, 10_000), rng.uniform(0, 1, 10_000)
    curvature = np.where(np.arange(10_000)[:, None] < 5000, 1.0, rng.uniform(-1, 1, (10_000, 4)))
    v[:5000] = (a[:, None] * g - gradient)[:5000]
    v *= (beta * norm(g) / norm(v))[:, None]
    m = g + v
    change = (-a[:, None] * gradient * m + curvature * (a[:, None] * m) ** 2 / 2).sum(-1)
    return np.asarray(floor.f1_step(change, gradient, g, a, beta, 1.0) / (norm(g) ** 2 + norm(gradient) ** 2))


def u1_u2(rng: np.random.Generator) -> tuple[Array, Array]:
    """Check Lemmas U.1 and U.2 on quadratic batch losses that couple their three rows of four entries."""
    cases = 10_000
    theta, m_prev = random_vectors(rng, cases, 3, 4), random_vectors(rng, cases, 3, 4)
    hessian = rng.uniform(-1, 1, (cases, 12, 12))
    hessian += hessian.swapaxes(-1, -2)
    g = np.einsum("kij,kj->ki", hessian, theta.reshape(cases, 12)).reshape(theta.shape)
    beta, alpha = rng.uniform(0, 1, cases), 10.0 ** rng.uniform(-2, 1, cases)
    u = rows.unit_step(g, rows.calibrate(g, m_prev, beta[:, None]))
    blocks = hessian.reshape(cases, 3, 4, 3, 4).swapaxes(2, 3)
    smoothness = np.linalg.norm(blocks, 2, axis=(-2, -1)).sum(-1)
    d = (alpha[:, None, None] * u).reshape(cases, 12)
    change = -(d * g.reshape(cases, 12)).sum(-1) + np.einsum("ki,kij,kj->k", d, hessian, d) / 2
    size = alpha * rows.row_norm(g) + alpha**2 * rows.curvature(smoothness, g)
    angle = rows.u1_angle(g, m_prev, beta[:, None]) / norm(g) ** 2
    return angle.ravel(), np.asarray(rows.u2_descent(change, g, alpha, beta, smoothness) / size)


def u3(rng: np.random.Generator) -> Array:
    """Check Theorem U.3 along paths of unit steps with three rows of two entries."""
    slacks = []
    for k in range(10):
        problem, beta = cosine_sum(n=6, d=6, seed=k), float(rng.uniform(0, 1))
        alpha = 10.0 ** rng.uniform(-3, 0) / problem.omega / np.sqrt(np.arange(1, 201))
        start = rng.uniform(-np.pi, np.pi, (20, 6)) / problem.omega
        run = rows.run(problem, start, rng.integers(0, 6, (200, 20)), alpha, beta, rows=3)
        depth = np.abs(problem.mean_phasor).reshape(3, 2).max(-1)
        smoothness = problem.amplitude * problem.omega**2 * depth
        slacks.append(rows.u3_path(run, alpha, beta, smoothness) / problem.amplitude)
    return np.concatenate(slacks)


def u4(rng: np.random.Generator) -> Array:
    """Check Lemma U.4 on orthogonal gradients of one length, in random directions."""
    slacks = []
    for _ in range(100):
        steps, beta = int(rng.integers(1, 12)), float(rng.uniform(0, 1))
        grads = np.linalg.qr(rng.normal(size=(16, steps)))[0].T * 10.0 ** rng.uniform(-3, 3)
        m = np.zeros(16)
        for g in grads:
            m = rows.calibrate(g, m, beta)
        slacks.append(-norm(m - rows.u4_weights(steps, beta) @ grads) / norm(grads[0]))
    return np.array(slacks)


TRIALS: dict[str, Callable[[np.random.Generator], Array | tuple[Array, Array]]] = {
    "eq. 5: f̄ ≤ f̂": bound_of_adagrad,
    "eq. 3–8: the minimisers": minimisers,
    "3.2: descent ≤ −(α/2)(1−β²)‖g‖² (repaired)": descent,
    "Lemma A.1": a1,
    "Lemma A.2": a2,
    "Lemma A.3, factor 1 (repaired)": a3,
    "Lemma A.4, t ≥ 2|Corollary A.5, t ≥ 2": a4_a5,
    "Lemma A.6": a6,
    "Lemma B.1, β̂ ≤ 1/12|Corollary B.2": b1_b2,
    "Lemma B.3, applied β̂|Corollary B.4": b3_b4,
    "Lemma R.1 (ours): α_t β̂_t never grows": lambda rng: telescoping.r1_monotone(random_beta_hats(rng)),
    "Lemma R.2 (ours): V ≤ α_0/7": lambda rng: telescoping.r2_variation(random_beta_hats(rng)),
    "Lemma R.3 (ours): every path": r3,
    "Lemma F.1 (ours): every step": f1,
    "Lemma U.1 (ours): every row|Lemma U.2 (ours): unit steps": u1_u2,
    "Theorem U.3 (ours): every path": u3,
    "Lemma U.4 (ours): weights under noise": u4,
}


def run_trial(name: str, seed: int = 0) -> list[Outcome]:
    """Run one of `TRIALS`. A name with a bar holds two statements, with one outcome each."""
    slacks = TRIALS[name](np.random.default_rng(seed))
    parts = slacks if isinstance(slacks, tuple) else (slacks,)
    return [
        Outcome(title, bool(part.min() >= -TOLERANCE), float(part.min()), part.size)
        for title, part in zip(name.split("|"), parts, strict=True)
    ]
