"""Projections onto feasible sets: Π of Algorithm 1.

Callables that map a parameter's value to the nearest feasible one; of one parameter at a time, over all its entries,
except for ``L2Ball(radius, scope="all")``, which is one ball for all parameters together, sharded or not.
One that has the attribute ``elementwise = True`` works on any part of the entries, hence on shards; one that has not,
or says False, needs them all. `L2Ball` and `Simplex` compute in float64 (float32 where a device has none) and round so
that the result is as feasible as the parameter's dtype allows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from acmo.options import check_at_least, read_number
from acmo.sharding import find_device, local, sum_over_model
from acmo.step_data import Part, StepRecord, scalar_dtype

Projection = Callable[[Tensor], Tensor]


class Box:
    """Project onto the entries between ``lo`` and ``hi``.

    Args:
      lo: the smallest value an entry may have (-inf for none).
      hi: the largest (inf for none).

    Example:
      >>> Box(-1.0, 1.0)(torch.tensor([-2.0, 0.5, 3.0]))
      tensor([-1.0000,  0.5000,  1.0000])
    """

    elementwise = True  # so it may be applied to a shard

    def __init__(self, lo: float, hi: float) -> None:
        read_number("Box's lo", lo)
        read_number("Box's hi", hi)
        if not lo <= hi:
            raise ValueError(f"Box needs lo <= hi, got lo={lo} and hi={hi}")
        self.lo, self.hi = lo, hi

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(self.lo, self.hi)

    def __repr__(self) -> str:
        return f"Box({self.lo}, {self.hi})"


class NonNegative:
    """Project onto the entries >= 0.

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
    """Project onto the vectors of norm at most ``radius``.

    Args:
      radius: the largest norm, > 0.
      scope: "tensor": one ball for each parameter. "all": one ball for the parameters of all groups that have this
        object as their projection, as one vector; parameters without a gradient in a step take no part in it.
        Shards are added up over their ranks, in one message per mesh dimension or ``process_group``.

    Example:
      >>> L2Ball(5.0)(torch.tensor([6.0, 8.0]))
      tensor([3., 4.])
      >>> from acmo import ACMo
      >>> a, b = (torch.nn.Parameter(torch.tensor([x])) for x in (6.0, 8.0))
      >>> opt = ACMo([a, b], lr=0.1, projection=L2Ball(5.0, scope="all"))
      >>> a.grad = b.grad = torch.zeros(1)
      >>> opt.step()
      >>> a.item(), b.item()
      (3.0, 4.0)
    """

    elementwise = False

    def __init__(self, radius: float, *, scope: str = "tensor") -> None:
        check_at_least("L2Ball's radius", radius, strict=True)
        if scope not in ("tensor", "all"):
            raise ValueError(f"L2Ball's scope must be 'tensor' or 'all', got {scope!r}")
        self.radius, self.scope = radius, scope

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_complex():
            return torch.view_as_complex(self(torch.view_as_real(x)))
        if x.numel() == 0:
            return x
        values = x.to(scalar_dtype(x.device))
        # A power of two near the largest entry, divided out: exact, and no square can overflow or vanish.
        _, exponent = torch.frexp(values.detach().abs().amax())
        scale = torch.exp2((exponent - 1).to(values.dtype))
        unit = values / scale
        norm = torch.linalg.vector_norm(unit)
        shrunk = unit * (self.radius / norm.clamp(min=1))  # it is at least 1, but for x = 0
        y = shrunk.to(x.dtype)
        if y.dtype != shrunk.dtype:  # rounding may have lengthened it: then let it round no entry away from 0
            inward = torch.where(y.abs() > shrunk.abs(), neighbour(y, -1), y)
            y = torch.where(torch.linalg.vector_norm(y.to(values.dtype)) > self.radius, inward, y)
        # Inside the ball x is returned as it is, to the bit.
        return torch.where(norm > self.radius / scale, y, x)

    def __repr__(self) -> str:
        return f"L2Ball({self.radius})" if self.scope == "tensor" else f"L2Ball({self.radius}, scope='all')"


class Simplex:
    """Project onto the probability simplex: entries >= 0 that sum to 1 (Held, Wolfe & Crowder 1974, by sorting).

    Example:
      >>> Simplex()(torch.tensor([0.5, 1.5]))
      tensor([0., 1.])
    """

    elementwise = False

    def __call__(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x
        values = x.flatten().to(scalar_dtype(x.device))
        values = values - values.amax()  # the same point is nearest; what matters lies in [-1, 0], whatever x's size
        u = values.sort(descending=True).values
        excess = u.cumsum(0) - 1
        rank = torch.arange(1, u.numel() + 1, device=u.device, dtype=u.dtype)
        support = (u * rank > excess).sum().clamp(min=1)  # 0 only for NaN, which goes through
        threshold = excess.gather(0, (support - 1).unsqueeze(0)) / support
        return _rounded((values - threshold).clamp(min=0), x.dtype).view(x.shape)

    def __repr__(self) -> str:
        return "Simplex()"


def neighbour(x: Tensor, step: int) -> Tensor:
    """Return the next number of x's dtype, away from 0 for step 1, towards 0 for step -1 (entries that are not 0)."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    near = (x.detach().view(bits) + step).view(x.dtype)
    return x + (near - x.detach())  # exact, and autograd sees x


def _rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Entries >= 0 rounded to a dtype, each to one of its two neighbours there, so that their sum stays 1.

    Rounding each to the nearest can lose all of it: 100 M entries of 1e-8 are 0 in float16. So those that lost most by
    it are rounded the other way, as many as it takes (the largest remainder method of elections).
    """
    z = y.to(dtype)
    if z.dtype == y.dtype:
        return z
    lost = (y - z.to(y.dtype)).detach()
    missing = lost.sum() + (1 - y.detach().sum())
    other = torch.where(missing > 0, neighbour(z, 1), torch.where(z > 0, neighbour(z, -1), z))
    change = (other.to(y.dtype) - z.to(y.dtype)).detach().abs()
    gain = lost * missing.sign()  # > 0 for those that were rounded the wrong way
    order = gain.argsort(descending=True, stable=True)
    total = torch.where(gain > 0, change, torch.inf)[order].cumsum(0)
    turned = torch.zeros_like(gain, dtype=torch.bool)
    turned[order] = total - change[order] / 2 <= missing.abs()
    return torch.where(turned, other, z)


def project(projection: Projection, p: Tensor) -> Tensor:
    """Return the projected value of a parameter, which must have its shape."""
    result = projection(p)
    if not isinstance(result, Tensor) or result.shape != p.shape:
        got = tuple(result.shape) if isinstance(result, Tensor) else result
        raise ValueError(f"projection={projection!r} must keep the shape {tuple(p.shape)} of a parameter, gave {got!r}")
    return result


def project_parts(
    parts: Sequence[Part], groups: Sequence[dict[str, Any]], record: StepRecord, process_group: Any = None
) -> None:
    """Project the parameters of every group that has a projection, if the step was taken (line 8)."""
    for part in parts:
        projection = groups[part.group]["projection"]
        if projection is None or record.applied is False or couples_parameters(projection):
            continue
        for p in map(local, part.owners):  # of a shard only what works entry by entry: checked when it was given
            new = project(projection, p.clone())
            if isinstance(record.applied, Tensor):
                new = torch.where(record.applied.to(p.device), new, p)
            p.copy_(new)
    # In the order of the groups, which all ranks share: a rank without a gradient must send its message, too.
    balls = {
        id(group["projection"]): group["projection"] for group in groups if couples_parameters(group["projection"])
    }
    for ball in balls.values():
        own = [part for part in parts if groups[part.group]["projection"] is ball]
        project_together(ball, own, record.applied, process_group)


def couples_parameters(projection: Any) -> bool:
    """Return whether a projection takes the parameters of all its groups as one vector."""
    return isinstance(projection, L2Ball) and projection.scope == "all"


def project_together(ball: L2Ball, parts: Sequence[Part], applied: Tensor | bool, process_group: Any) -> None:
    """Scale all parameters by radius/‖θ‖ if ‖θ‖ is above the radius, each entry rounded towards 0."""
    if not parts and process_group is None:
        return
    device = parts[0].params[0].device if parts else find_device(process_group)
    dtype = scalar_dtype(device)
    squares = [
        torch.stack([p.to(scalar_dtype(p.device)).square().sum().to(device, dtype) for p in part.params]).sum()
        for part in parts
    ]
    stacked = torch.stack(squares) if squares else torch.zeros(0, dtype=dtype, device=device)
    norm = sum_over_model(stacked, parts, process_group).sqrt()
    outside = torch.isfinite(norm) & (norm > ball.radius) & torch.as_tensor(applied, device=device)
    factor = ball.radius / torch.where(outside, norm, 1.0)
    for part in parts:
        for p in part.params:  # local and real
            exact = p.to(scalar_dtype(p.device)) * factor.to(p.device, scalar_dtype(p.device))
            y = exact.to(p.dtype)
            if y.dtype != exact.dtype:
                y = torch.where(y.abs() > exact.abs(), neighbour(y, -1), y)
            p.copy_(torch.where(outside.to(p.device), y, p))


def check_on_shards(projection: Projection, who: str) -> None:
    """Raise unless a projection can be applied to a shard without the entries that other ranks hold."""
    if getattr(projection, "elementwise", None) is not True and not couples_parameters(projection):
        raise ValueError(
            f"projection={projection!r} needs all entries of {who}, which is sharded: use Box, NonNegative or "
            f"L2Ball(radius, scope='all'), or give it the attribute elementwise = True if it maps every entry by itself"
        )
