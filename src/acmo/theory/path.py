"""Algorithm 1 in NumPy on a batch of seeds, keeping the whole path: what the lemmas are checked on."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from acmo.theory.auxiliary import calibrated
from acmo.theory.lemmas import Array


class Problem(Protocol):
    """A finite sum whose constants are known."""

    @property
    def smoothness(self) -> float:
        """L."""

    @property
    def gradient_bound(self) -> float:
        """G."""

    def value(self, theta: Array) -> Array:
        """f(θ)."""

    def grad(self, theta: Array) -> Array:
        """∇f(θ)."""

    def grad_of(self, theta: Array, i: npt.NDArray[np.int64]) -> Array:
        """∇f_i(θ), one i a row."""


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
    """Run T steps from ``start`` [S, d] with the drawn indices ``draws`` [T, S] and α_t = α_0/√t."""
    steps = len(draws)
    theta = np.empty((steps + 1, *start.shape))
    g, m = np.empty((steps, *start.shape)), np.empty((steps, *start.shape))
    raw, applied = np.zeros(draws.shape), np.zeros(draws.shape)
    theta[0] = start
    before = np.zeros_like(start)
    for k in range(steps):
        t = k + 1
        g[k] = problem.grad_of(theta[k], draws[k])
        raw[k] = applied[k] = calibrated(g[k], before, beta, delta)
        if psi == "sqrt" and t > 2:  # at t = 2 there is no applied value before it: m_0 = 0
            applied[k] = np.minimum(raw[k], np.sqrt(t / (t - 1)) * applied[k - 1])
        m[k] = g[k] + applied[k][:, None] * before
        theta[k + 1] = theta[k] - alpha0 / np.sqrt(t) * m[k]
        before = m[k]
    return Path(theta, g, m, raw, applied)


def unrolled(g: Array, beta_hat: Array) -> tuple[Array, Array, Array]:
    """θ, m, α of the steps that given gradients and applied β̂ make with α_i = 1/√i, from θ_1 = 0.

    Rows as in the paper: row 0 is θ_0 = θ_1 and m_0 = 0; ``g`` [T + 2, d] has the gradients in its rows 1 … T.
    """
    theta, m, alpha = np.zeros_like(g), np.zeros_like(g), np.zeros(len(g))
    alpha[1:] = 1 / np.sqrt(np.arange(1, len(g)))
    for i in range(1, len(g) - 1):
        m[i] = g[i] + beta_hat[i] * m[i - 1]
        theta[i + 1] = theta[i] - alpha[i] * m[i]
    return theta, m, alpha
