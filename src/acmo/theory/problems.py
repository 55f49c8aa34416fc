"""Finite sums of smooth non-convex functions with exactly known L, σ and G."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from acmo.theory.lemmas import Array, norm


@dataclass(frozen=True)
class CosineSum:
    """f_i(θ) = A Σ_j (1 − cos(ω(θ_j − φ_ij))): egg boxes with shifted wells.

    Their mean is an egg box too, with the amplitudes |z_j|, z_j = mean_i exp(iωφ_ij). So L, σ and G are known: they are
    attained, since the coordinates are independent. f is non-convex: it has saddles, maxima and minima.
    """

    phases: Array  # [n, d], already multiplied by ω
    amplitude: float
    omega: float

    @cached_property
    def phasors(self) -> npt.NDArray[np.complex128]:
        """exp(iωφ_ij), [n, d]."""
        return np.asarray(np.exp(1j * self.phases))

    @cached_property
    def mean_phasor(self) -> npt.NDArray[np.complex128]:
        """z_j, [d]."""
        return np.asarray(self.phasors.mean(0))

    @property
    def smoothness(self) -> float:
        """L = A ω² max_j |z_j|."""
        return float(self.amplitude * self.omega**2 * np.abs(self.mean_phasor).max())

    @property
    def sigma(self) -> float:
        """σ; ∇f_i − ∇f is a sine of one frequency in every coordinate, and all reach their maximum at once."""
        apart = np.abs(self.phasors - self.mean_phasor)
        return float(self.amplitude * self.omega * np.sqrt((apart**2).sum(-1).max()))

    @property
    def noise_bound(self) -> float:
        """s, the largest root mean square over i of ‖∇f_i − ∇f‖.

        In one coordinate ∇f_i − ∇f is Aω Im(ē exp(iωθ)), e = exp(iωφ_i) − z, whose mean square has the largest value
        (Aω)² (mean|e|² + |mean e²|)/2; all coordinates reach theirs at once.
        """
        apart = self.phasors - self.mean_phasor
        top = (np.abs(apart) ** 2).mean(0) + np.abs((apart**2).mean(0))
        return float(self.amplitude * self.omega * np.sqrt(top.sum() / 2))

    @property
    def steepest(self) -> float:
        """The largest ‖∇f‖ of the mean f: A ω √(Σ_j |z_j|²)."""
        return float(self.amplitude * self.omega * norm(np.abs(self.mean_phasor)))

    @property
    def gradient_bound(self) -> float:
        """G = A ω √d, for batches of any size."""
        return float(self.amplitude * self.omega * np.sqrt(self.phases.shape[1]))

    @cached_property
    def mean_wave(self) -> tuple[Array, Array]:
        """|z_j| and arg z_j, [d] each; f is Σ_j A (1 − |z_j| cos(ωθ_j − arg z_j))."""
        return np.abs(self.mean_phasor), np.angle(self.mean_phasor)

    def value(self, theta: Array) -> Array:
        """Return f(θ), over the last axis."""
        depth, shift = self.mean_wave
        return np.asarray(self.amplitude * (1 - depth * np.cos(self.omega * theta - shift)).sum(-1))

    def gap(self, theta: Array) -> Array:
        """Return f(θ) − min f."""
        return np.asarray(self.value(theta) - self.amplitude * (1 - np.abs(self.mean_phasor)).sum())

    def grad(self, theta: Array) -> Array:
        """Return ∇f(θ)."""
        depth, shift = self.mean_wave
        return np.asarray(self.amplitude * self.omega * depth * np.sin(self.omega * theta - shift))

    def grad_of(self, theta: Array, i: npt.NDArray[np.int64]) -> Array:
        """Return ∇f_i(θ), one i per row of θ; with θ [S, 1, d] and i [S, B], one per member of a batch."""
        return np.asarray(self.amplitude * self.omega * np.sin(self.omega * theta - self.phases[i]))


def cosine_sum(n: int = 16, d: int = 8, smoothness: float = 1e3, omega: float = 1000.0, seed: int = 0) -> CosineSum:
    """Return a sum with the given L. Its wells scatter by ±0.8 rad with a skewed law: many are near, few are far."""
    rng = np.random.default_rng(seed)
    phases = 0.8 * (rng.exponential(1.0, (n, d)) - 1)
    top = np.abs(np.exp(1j * phases).mean(0)).max()
    return CosineSum(phases, smoothness / (omega**2 * float(top)), omega)


@dataclass(frozen=True)
class SkewedNoise:
    """f_i(θ) = √(1 + θ²) − 1 + a_i θ in one dimension, a = (−2, 2/9 nine times): mean zero, far from symmetric.

    f = √(1 + θ²) − 1, L = 1, σ = 2, G = 3, min f = 0 at θ = 0. ACMo ends at 0 only with the
    theorem's Ψ: without it, the mean of m/‖m‖ is not 0 there, and the run ends elsewhere.
    """

    @cached_property
    def slopes(self) -> Array:
        """a_i, with Σ a_i = 0."""
        return np.array([-2.0] + [2 / 9] * 9)

    smoothness = 1.0
    sigma = 2.0
    gradient_bound = 3.0

    def value(self, theta: Array) -> Array:
        """Return f(θ), over the last axis."""
        return np.asarray(np.sqrt(1 + norm(theta) ** 2) - 1)

    def grad(self, theta: Array) -> Array:
        """Return ∇f(θ)."""
        return np.asarray(theta / np.sqrt(1 + theta**2))

    def grad_of(self, theta: Array, i: npt.NDArray[np.int64]) -> Array:
        """Return ∇f_i(θ), one i per row of θ."""
        return np.asarray(self.grad(theta) + self.slopes[i][..., None])
