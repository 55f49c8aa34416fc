"""Algorithm 1, line by line: the truth that the fast backends are tested against.

A loop over tensors in the paper's letters, sums in float64, nothing clever; differentiable.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acmo.calibration import clocks, proceeds, refuse_nonfinite
from acmo.parts import Group, Part, Record, Rules, arithmetic_dtype, numels, record, scalar_dtype
from acmo.sharding import over_shards


@dataclass
class Slice:
    """One tensor's part of the vectors θ, g and m: copies, so that nothing is changed that autograd has saved."""

    part: Part
    i: int
    group: Group
    theta: Tensor
    g: Tensor
    m: Tensor
    t: Tensor
    prev: Tensor | None


def step(parts: Sequence[Part], groups: Sequence[Group], rules: Rules) -> Record:
    """One step of ACMo; the numbers are those of the algorithm's lines in docs/how.md."""
    # 1  g = ∇f(θ), unscaled; −g when maximize
    slices = cut(parts, groups, rules)
    raw_sq, doubt = squares(slices, "g", parts)
    grad_norm = root(raw_sq.sum())

    # 2  g = c g,  c = min(1, C / (‖g‖ + 1e-6))
    c = torch.ones_like(grad_norm)
    if rules.max_grad_norm is not None:
        c = (rules.max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        for x in slices:
            x.g = c.to(x.g) * x.g

    # 3  g = g + λ θ
    for x in slices:
        if x.group.coupled:
            x.g = x.g + x.group.coupled * x.theta

    g_sq, _ = squares(slices, "g", parts)
    m_sq, _ = squares(slices, "m", parts)
    beta_hats = torch.zeros_like(g_sq)
    total = grad_norm if doubt == 0 else torch.full_like(grad_norm, torch.nan)  # another rank's gradient is not finite
    go = proceeds(total, g_sq.sum(), torch.stack([x.t for x in slices]).max() - 1, groups, rules)
    refuse_nonfinite(parts, torch.stack((raw_sq, g_sq)), total, go, rules)
    for scope in scopes(slices, rules.norm_scope) if go else []:
        norm_g, norm_m = root(g_sq[scope].sum()), root(m_sq[scope].sum())
        for n, x in ((n, slices[n]) for n in scope):
            # 4  β̂ = β ‖g‖ / (‖m‖ + δ)
            beta_hat = kept = x.group.momentum * norm_g / (norm_m + x.group.delta)
            # 5  β̂ = Ψ(β̂, β̂_prev)
            if x.prev is not None:
                beta_hat = torch.minimum(beta_hat, (x.t / (x.t - 1)).sqrt() * x.prev)
                fresh = kept if x.group.delta else torch.full_like(kept, torch.inf)
                kept = x.prev if norm_g == 0 else fresh if norm_m == 0 else beta_hat
                x.part.beta_hats[x.i].copy_(kept.detach())
            # 6  m = g + β̂ m, β̂ applied as 0 where m = 0
            beta_hat = beta_hat if norm_m > 0 else torch.zeros_like(beta_hat)
            x.m = x.g + beta_hat.to(x.m) * x.m
            # 7  θ = (1 − αλ) θ     8  θ = θ − α m
            x.theta = x.group.keep * x.theta - x.group.lr * x.m
            x.part.params[x.i].copy_(x.theta)
            x.part.moments[x.i].copy_(in_range(x.m, x.part.moments[x.i].dtype))
            x.part.steps[x.i].copy_(x.t)
            beta_hats[n] = beta_hat.detach()

    new_sq = torch.stack([square(x.part.moments[x.i].detach()) for x in slices])  # as stored; of this rank's shards
    for x, sq in zip(slices, new_sq.unbind(), strict=True):
        x.part.moment_sqs[x.i].copy_(sq)
    rows = (raw_sq, g_sq, m_sq, new_sq, beta_hats)
    return record(parts, torch.stack(rows).detach(), c.detach().reshape(1), bool(go))


def cut(parts: Sequence[Part], groups: Sequence[Group], rules: Rules) -> list[Slice]:
    """θ, line 1's g, and m, tensor by tensor, in the precision of the arithmetic."""
    slices = []
    like = torch.empty((), dtype=scalar_dtype(parts[0].params[0].device), device=parts[0].params[0].device)
    for part, (t, prev) in zip(parts, clocks(parts, groups, rules, like), strict=True):
        numels(part.params, part.moments, part.grads)
        ts = t.expand(len(part.params)).unbind()
        prevs = [None] * len(ts) if prev is None else prev.expand(len(ts)).unbind()
        for i, (p, g, m) in enumerate(zip(part.params, part.grads, part.moments, strict=True)):
            dtype = arithmetic_dtype(p)
            sign = -1.0 if groups[part.group].maximize else 1.0
            g = sign * g.to(dtype) if rules.grad_scale is None else sign * g.to(dtype) / rules.grad_scale.to(g.device)
            x = Slice(
                part, i, groups[part.group], p.clone().to(dtype), g.to(dtype), m.clone().to(dtype), ts[i], prevs[i]
            )
            slices.append(x)
    return slices


def scopes(slices: Sequence[Slice], norm_scope: str) -> list[list[int]]:
    """Positions of the slices that share their norms."""
    if norm_scope == "tensor":
        return [[n] for n in range(len(slices))]
    keys = [x.part.group if norm_scope == "group" else 0 for x in slices]
    return [[n for n, key in enumerate(keys) if key == k] for k in sorted(set(keys))]


def squares(slices: Sequence[Slice], letter: str, parts: Sequence[Part]) -> tuple[Tensor, float]:
    """Each slice's sum of squares, over all ranks that have a piece; and how many ranks have one that is not finite."""
    home = slices[0].theta.device
    sums = torch.stack([square(getattr(x, letter)).to(home) for x in slices])
    rows, doubt = over_shards([r[None] for r in torch.split(sums, [len(part.params) for part in parts])], parts)
    return torch.cat(rows, 1)[0], 0.0 if doubt is None else float(doubt[0])


def in_range(m: Tensor, dtype: torch.dtype) -> Tensor:
    """A moment saturates in the short range of float16: an infinite one would be NaN after the next step."""
    return m.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max) if dtype == torch.float16 else m


def square(x: Tensor) -> Tensor:
    return x.to(scalar_dtype(x.device)).square().sum()


def moment_square(moment: Tensor) -> Tensor:
    """‖m‖² as a step leaves it, to the bit."""
    return square(moment).reshape(1)


def root(total: Tensor) -> Tensor:
    """√, detached at 0, where it has no derivative and none is wanted: such a norm only selects a branch."""
    return total.sqrt() if total > 0 else total.detach()
