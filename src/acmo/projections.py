"""Projections onto feasible sets: Π of Algorithm 1.

Callables that map a parameter's value to the nearest feasible one; of one parameter at a time, over all its entries.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from acmo import checks

Projection = Callable[[Tensor], Tensor]


class Box:
    """The entries between ``lo`` and ``hi``.

    Args:
      lo: the smallest value an entry may have (-inf for none).
      hi: the largest (inf for none).

    Example:
      >>> Box(-1.0, 1.0)(torch.tensor([-2.0, 0.5, 3.0]))
      tensor([-1.0000,  0.5000,  1.0000])
    """

    elementwise = True  # so it may be applied to a shard

    def __init__(self, lo: float, hi: float) -> None:
        if not lo <= hi:
            raise ValueError(f"Box needs lo <= hi, got lo={lo} and hi={hi}")
        self.lo, self.hi = lo, hi

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(self.lo, self.hi)

    def __repr__(self) -> str:
        return f"Box({self.lo}, {self.hi})"


class NonNegative:
    """The entries >= 0.

    Example:
      >>> NonNegative()(torch.tensor([-2.0, 0.5]))
      tensor([0.0000, 0.5000])
    """

    elementwise = True

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    def __repr__(self) -> str:
        return "NonNegative()"


class L2Ball:
    """The vectors of norm at most ``radius``.

    Example:
      >>> L2Ball(5.0)(torch.tensor([6.0, 8.0]))
      tensor([3., 4.])
    """

    elementwise = False

    def __init__(self, radius: float) -> None:
        checks.at_least("L2Ball's radius", radius, strict=True)
        self.radius = radius

    def __call__(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x)
        # Inside the ball x is returned as it is, to the bit.
        return torch.where(norm > self.radius, x * (self.radius / norm), x)

    def __repr__(self) -> str:
        return f"L2Ball({self.radius})"


class Simplex:
    """The probability simplex: entries >= 0 that sum to 1 (Held, Wolfe & Crowder 1974, by sorting).

    Example:
      >>> Simplex()(torch.tensor([0.5, 1.5]))
      tensor([0., 1.])
    """

    elementwise = False

    def __call__(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x
        u = x.flatten().sort(descending=True).values
        excess = u.cumsum(0) - 1
        rank = torch.arange(1, u.numel() + 1, device=u.device, dtype=u.dtype)
        support = (u * rank > excess).sum()  # at least 1: u₁·1 > u₁ − 1
        threshold = excess.gather(0, (support - 1).unsqueeze(0)) / support
        return (x - threshold).clamp(min=0)

    def __repr__(self) -> str:
        return "Simplex()"


def projected(projection: Projection, p: Tensor) -> Tensor:
    """What the projection makes of a parameter, which must be of its shape."""
    result = projection(p)
    if not isinstance(result, Tensor) or result.shape != p.shape:
        got = tuple(result.shape) if isinstance(result, Tensor) else result
        raise ValueError(f"projection={projection!r} must keep the shape {tuple(p.shape)} of a parameter, gave {got!r}")
    return result
