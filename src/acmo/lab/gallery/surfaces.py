"""Three surfaces over the plane: two classics of optimization, each with its usual start, and a valley with noise."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Point = tuple[float, float]


class Surface(NamedTuple):
    """A function f of θ = (x, y) to be minimised.

    Args:
      name: its key.
      title: its name on the page.
      formula: f, as a reader writes it.
      value: f of points in the last dimension of a tensor.
      minimum: where f is 0, its least value.
      start: where every path begins.
      view: (x from, x to, y from, y to) of the pictures; 7 wide to 4 high, so that angles look as they are.
      levels: of the contours.
      noise: σ. The loss of batch t is f(θ) + ⟨ξ_t, θ⟩ with ξ_t ~ N(0, σ²I), hence its gradient ∇f(θ) + ξ_t.
    """

    name: str
    title: str
    formula: str
    value: Callable[[Tensor], Tensor]
    minimum: Point
    start: Point
    view: tuple[float, float, float, float]
    levels: tuple[float, ...]
    noise: float = 0.0

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ∇f at each point, by autograd."""
        theta = theta.detach().requires_grad_()
        return torch.autograd.grad(self.value(theta).sum(), theta)[0]


def rosenbrock(theta: Tensor) -> Tensor:
    """Return Rosenbrock's function of 1960: a bent valley, steep at its sides and all but flat along its floor."""
    x, y = theta.unbind(-1)
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def beale(theta: Tensor) -> Tensor:
    """Return Beale's function of 1958: flat around its minimum, with ridges that rise like a sixth power."""
    x, y = theta.unbind(-1)
    return (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2


def valley(theta: Tensor) -> Tensor:
    """Return a quadratic, forty times as steep across as along: along its floor the noise drowns the gradient."""
    x, y = theta.unbind(-1)
    return 0.05 * x**2 + 2 * y**2


# The starts of the classics are those of Moré, Garbow and Hillstrom, 1981.
SURFACES = (
    Surface(
        "rosenbrock", "Rosenbrock", "(1 − x)² + 100 (y − x²)²", rosenbrock, (1.0, 1.0), (-1.2, 1.0),
        (-2.87, 2.87, -1.2, 2.08), (0.1, 0.4, 1.5, 5.0, 15.0, 40.0, 90.0, 180.0, 320.0, 520.0),
    ),
    Surface(
        "beale", "Beale", "(1.5 − x + xy)² + (2.25 − x + xy²)² + (2.625 − x + xy³)²", beale, (3.0, 0.5), (1.0, 1.0),
        (0.1, 4.3, -1.12, 1.28), (0.01, 0.05, 0.2, 0.6, 1.5, 3.5, 8.0, 16.0, 30.0, 55.0),
    ),
    Surface(
        "valley", "Noisy valley", "0.05 x² + 2 y²", valley, (0.0, 0.0), (-4.0, 1.5),
        (-5.0, 2.0, -2.0, 2.0), (0.02, 0.08, 0.2, 0.4, 0.8, 1.4, 2.4, 3.8, 5.6, 7.6), noise=1.0,
    ),
)  # fmt: skip
