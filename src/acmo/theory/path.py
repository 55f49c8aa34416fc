"""Algorithm 1 in NumPy on a batch of seeds, with the whole path kept for the checks of the lemmas."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from acmo.theory.auxiliary import compute_beta_hat
from acmo.theory.lemmas import Array, norm


class Problem(Protocol):
    """A finite sum of functions whose constants are known."""

    @property
    def smoothness(self) -> float:
        """The Lipschitz constant L of ∇f."""

    @property
    def gradient_bound(self) -> float:
        """The bound G of every gradient's norm."""

    def value(self, theta: Array) -> Array:
        """Return f(θ)."""

    def grad(self, theta: Array) -> Array:
        """Return ∇f(θ)."""

    def grad_of(self, theta: Array, i: npt.NDArray[np.int64]) -> Array:
        """Return ∇f_i(θ), one i per row of θ."""


class Path(NamedTuple):
    """T steps of S seeds: θ_1 … θ_{T+1} as [T+1, S, d]; g, m as [T, S, d]; β̂ raw and applied as [T, S]."""

    theta: Array
    g: Array
    m: Array
    raw: Array
    applied: Array


def run(
    problem: Problem, start: Array, draws: npt.NDArray[np.int64], alpha0: float, beta: float, delta: float,
    psi: str = "sqrt",
) -> Path:  # fmt: skip
    """Run T steps of ACMo from ``start`` [S, d] with the drawn indices ``draws`` [T, S] and α_t = α_0/√t."""
    steps = len(draws)
    theta = np.empty((steps + 1, *start.shape))
    g, m = np.empty((steps, *start.shape)), np.empty((steps, *start.shape))
    raw, applied = np.zeros(draws.shape), np.zeros(draws.shape)
    theta[0] = start
    before, kept = np.zeros_like(start), np.full(len(start), np.inf)  # m_{t−1}, and what Ψ bounds β̂ by
    for k in range(steps):
        t = k + 1
        g[k] = problem.grad_of(theta[k], draws[k])
        raw[k] = applied[k] = compute_beta_hat(g[k], before, beta, delta)
        if psi == "sqrt":
            applied[k] = np.minimum(raw[k], np.sqrt(t / max(t - 1, 1)) * kept)
            kept = keep_beta_hat(applied[k], kept, g[k], before, beta, delta)
        m[k] = g[k] + applied[k][:, None] * before
        theta[k + 1] = theta[k] - alpha0 / np.sqrt(t) * m[k]
        before = m[k]
    return Path(theta, g, m, raw, applied)


def keep_beta_hat(applied: Array, kept: Array, g: Array, m_prev: Array, beta: float, delta: float) -> Array:
    """Return what Ψ = sqrt bounds the next β̂ by, as `acmo.ACMo` has it: the applied β̂, with two exceptions.

    Where m = 0, as at t = 1, it is line 4's β‖g‖/δ (∞ for δ = 0). Where g = 0 it stays what it was.
    """
    without_moment = beta * norm(g) / delta if delta else np.full_like(kept, np.inf)
    return np.where(norm(g) == 0, kept, np.where(norm(m_prev) == 0, without_moment, applied))


def unroll(g: Array, beta_hat: Array) -> tuple[Array, Array, Array]:
    """Return θ, m, α of the steps from θ_1 = 0 with the given gradients and applied β̂, and α_i = 1/√i.

    Rows as in the paper: row 0 is θ_0 = θ_1 and m_0 = 0; ``g`` [T + 2, d] has the gradients in its rows 1 … T.
    """
    theta, m, alpha = np.zeros_like(g), np.zeros_like(g), np.zeros(len(g))
    alpha[1:] = 1 / np.sqrt(np.arange(1, len(g)))
    for i in range(1, len(g) - 1):
        m[i] = g[i] + beta_hat[i] * m[i - 1]
        theta[i + 1] = theta[i] - alpha[i] * m[i]
    return theta, m, alpha
