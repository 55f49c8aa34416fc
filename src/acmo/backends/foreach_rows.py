"""A step by rows or columns on lists of tensors, for every device: no loop over rows, no waiting for the device.

Line 6 is computed as g + r (r m) with r² = βG / (M + δ): neither r nor r m overflows float32 where a norm of finite
entries, or β̂, does. G, M and N are the norms of g, m_{t−1} and m_t.
"""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from acmo.backends.row_layout import Rows, dims_of, find_dtype, find_rows, join, norms_of, spread_scales, sum_dtype
from acmo.backends.row_report import RowVectors, measure_rows
from acmo.backends.spectral import find_directions, find_lengths, measure_cosines, sum_products
from acmo.psi import Psi, call_psi
from acmo.quantise import LEVELS
from acmo.rounding import write_params
from acmo.scopes import count_entries
from acmo.step_data import GroupOptions, Part, RowNorms, StepOptions

ROUNDING_LEVEL = {torch.float32: 1e-6, torch.float64: 1e-14}  # ‖m_t‖ / ‖g‖ below which m_t is rounding
ROUNDING_LEVEL_OF_CUT = {torch.float32: 1e-6, torch.float64: 1e-7}  # ‖m_t‖² of cut rows is a difference of sums


class RowSums(NamedTuple):
    """The sums of every row of a part, one after the other; where rows are cut, over all ranks."""

    raw_grad_sq: Tensor  # ‖g‖² of lines 1 and 2
    moment_sq: Tensor
    inner: Tensor  # ⟨g, m⟩
    grad_sq: Tensor | None = None  # ‖g‖² of line 4; None: without coupled decay it is that of line 2


def take_gradients(part: Part, group: GroupOptions, factor: Tensor | None) -> list[Tensor]:
    """Return g of line 3: as stored where that is the same, else in the precision of the arithmetic."""
    dtype = find_dtype(part)
    if factor is None and not group.coupled_decay:
        return part.grads
    grads = [g.to(dtype) for g in part.grads]
    if factor is not None:
        grads = list(torch._foreach_mul(grads, factor.to(part.params[0].device, dtype)))
    if group.coupled_decay:
        thetas = [p.to(dtype) for p in part.params]
        grads = list(torch._foreach_add(grads, thetas, alpha=group.coupled_decay))
    return grads


def take_moments(part: Part) -> list[Tensor]:
    """Return m_{t−1}: as stored, or of int8 what the bytes stand for."""
    if not part.moment_scales:
        return part.moments
    scales = spread_scales(part, join(part.moment_scales).to(find_dtype(part)))
    return list(torch._foreach_mul(part.moments, scales))


def sum_rows(part: Part, group: GroupOptions, factor: Tensor | None) -> RowSums:
    """Return the sums of every row on this rank, with ⟨g, m⟩: what other ranks add to, where rows are cut."""
    grads, moments = take_gradients(part, group, factor), take_moments(part)
    sums = sum_dtype(part)
    raw = join(norms_of(part, part.grads))
    raw = raw if factor is None else raw * factor.to(raw).abs()
    grad = join(norms_of(part, grads)).square() if group.coupled_decay else None
    moment = join(norms_of(part, moments))
    dims = dims_of(part)
    inners = [(g.to(sums) * m.to(sums)).sum(d, keepdim=True) for g, m, d in zip(grads, moments, dims, strict=True)]
    return RowSums(raw.square(), moment.square(), join(inners), grad)


def step_part(
    part: Part,
    group: GroupOptions,
    options: StepOptions,
    factor: Tensor | None,
    should_step: Tensor | None,
    sums: RowSums | None = None,
) -> RowNorms:
    """Step one part in place. The number of operations per tensor is small, and does not depend on its rows.

    Args:
      part, group, options: as every backend gets them.
      factor: that of lines 1 and 2 on the stored gradient; None for 1.
      should_step: a bool tensor where only the device knows whether the step is taken (a GradScaler), else None.
      sums: of `sum_rows` over all ranks, where rows are cut.
    """
    dtype, propagate = find_dtype(part), options.nonfinite == "propagate"
    should_step = None if should_step is None else should_step.to(part.params[0].device)
    rows = find_rows(part)
    grads, moments = take_gradients(part, group, factor), take_moments(part)
    if sums is None:
        lists = [part.grads, moments, *([grads] if group.coupled_decay else [])]
        norms = join([x for tensors in lists for x in norms_of(part, tensors)]).view(len(lists), -1)
        stored, M, G = norms[0], norms[1], norms[-1]
        G_raw = stored if factor is None else stored * factor.to(stored).abs()
        G = G if group.coupled_decay else G_raw
    else:
        G_raw, M = sums.raw_grad_sq.sqrt(), sums.moment_sq.sqrt()
        stored, G = G_raw, G_raw if sums.grad_sq is None else sums.grad_sq.sqrt()

    # 4, 5  which rows move, and the root of β̂; a row that does not move keeps its m
    finite, stays = torch.lt(G, torch.inf), torch.eq(stored, 0)
    skips = torch.zeros_like(finite) if propagate else ~finite
    if not propagate:
        stays |= skips
    if should_step is not None:
        stays |= ~should_step
    lacks_moment = torch.eq(M, 0) | stays
    weight = G * group.momentum  # β̂ is weight / divisor
    divisor = M + group.delta if group.delta else M
    if callable(options.psi):
        weight, divisor = weight.masked_fill(stays, 1.0), divisor.masked_fill(lacks_moment, 1.0)
        weight = limit_weight(part, group, options.psi, rows, G, M, divisor, weight, ~stays)
    root = (weight / divisor).sqrt_().masked_fill_(lacks_moment, 1.0)  # where m = 0, β̂ is applied as 0

    # 6
    is_state = not part.moment_scales and part.moments[0].dtype == dtype
    grads = [g.masked_fill(stay, 0.0) for g, stay in zip(grads, rows.spread(stays), strict=True)]
    factors = rows.spread(root.to(dtype))
    if is_state:
        torch._foreach_mul_(moments, factors)
    else:
        moments = list(torch._foreach_mul(moments, factors))
    torch._foreach_mul_(moments, factors)
    torch._foreach_add_(moments, grads)
    kept = (weight * (M / divisor) if group.delta else weight).masked_fill(lacks_moment, 0.0)  # ‖m_t − g‖
    if sums is None:
        N = join(norms_of(part, moments))
    else:  # ‖m_t‖² = ‖g‖² + 2b⟨g, m⟩ + b²‖m‖², in float64
        N = (G.square() + 2 * root.square() * sums.inner + kept.square()).clamp(min=0.0).sqrt()
        N = torch.where(stays, M, N)
    rests, vanishes = stays, None
    if may_vanish(group, options):
        vanishes = torch.le(N, G * (ROUNDING_LEVEL if sums is None else ROUNDING_LEVEL_OF_CUT)[dtype]) & finite & ~stays
        rests = stays | vanishes
        if options.unit_step:
            torch._foreach_mul_(moments, rows.spread((~vanishes).to(dtype)))

    # 7, 8  θ = (1 − αλ) θ − α u
    directions, cosines = moments, None  # u is a multiple of the direction
    if part.scope == "spectral":
        directions = find_directions(part, moments, N, options)
        lengths = G if sums is None else join(norms_of(part, grads))  # of this rank's entries
        cosines = measure_cosines(directions, sum_products(directions, grads), lengths)
    coefficient = find_coefficient(part, group, options, rows, N, rests if options.unit_step else stays)
    if propagate and options.unit_step:  # what is let through spreads over its row
        coefficient = coefficient.masked_fill(~(stays | finite), torch.nan)
    decays = None if propagate else finite
    if should_step is not None:
        decays = should_step.expand_as(finite) if decays is None else decays & should_step
    ones = torch.ones_like(G, dtype=dtype)
    if propagate and part.moment_scales:  # bytes share a scale per row: a NaN in m may be of another column
        resting = rows.spread(rests if options.unit_step else stays)
        directions = [d.masked_fill(rest, 0.0) for d, rest in zip(directions, resting, strict=True)]
    thetas = decay(part, group, rows, ones, decays)
    torch._foreach_addcmul_(thetas, directions, rows.spread(coefficient.to(dtype)))
    if part.params[0].dtype != dtype:
        write_params(part, group, thetas)
    result = measure_rows(RowVectors(G_raw, G, M, N, kept, ones, stays, lacks_moment, vanishes, skips, cosines), rows)
    if part.moment_scales:
        quantise_rows(part, moments, stays, result.took_part)
    elif not is_state:
        if part.moments[0].dtype == torch.float16:  # an infinite m would be NaN after the next step
            torch._foreach_clamp_max_(moments, torch.finfo(torch.float16).max)
            torch._foreach_clamp_min_(moments, torch.finfo(torch.float16).min)
        torch._foreach_copy_(part.moments, moments)
    return result


def may_vanish(group: GroupOptions, options: StepOptions) -> bool:
    """Return whether ‖m_t‖ may be rounding. Without a callable Ψ it is at least (1 − β) ‖g‖."""
    return callable(options.psi) or group.momentum > 0.999


def find_coefficient(
    part: Part, group: GroupOptions, options: StepOptions, rows: Rows, N: Tensor, rests: Tensor
) -> Tensor:
    """Return −α, for a unit step −α √n / ‖m_t‖, for every row; 0 for rows that do not step."""
    alpha = group.lr.to(N) if isinstance(group.lr, Tensor) else group.lr
    if not options.unit_step:
        return torch.full_like(N, -1.0).mul_(alpha).masked_fill_(rests, 0.0)
    if part.scope == "spectral":
        return find_lengths(part, N).mul_(-alpha).masked_fill_(rests, 0.0)
    roots = [sqrt(count_entries(part.scope, o.shape)) or 1.0 for o in part.owners]
    if len(set(roots)) == 1:
        inverse = N.reciprocal().mul_(-alpha * roots[0])
    else:
        inverse = torch.cat(torch._foreach_div(list(torch.split(N, rows.sizes)), roots)).reciprocal_().mul_(-alpha)
    return inverse.clamp_(min=-torch.finfo(find_dtype(part)).max).masked_fill_(rests, 0.0)


def decay(part: Part, group: GroupOptions, rows: Rows, ones: Tensor, decays: Tensor | None) -> list[Tensor]:
    """Line 7: return θ to be stepped, in the precision of the arithmetic; rows that are skipped do not decay."""
    dtype = find_dtype(part)
    is_state, kappa = part.params[0].dtype == dtype, group.theta_factor
    if not group.decoupled or (not isinstance(kappa, Tensor) and kappa == 1):
        return part.params if is_state else [p.to(dtype) for p in part.params]
    kappa = kappa.to(ones) if isinstance(kappa, Tensor) else kappa
    factors = ones * kappa if decays is None else ones.masked_fill(decays, kappa)
    if not is_state:  # the products are of the factors' dtype
        return list(torch._foreach_mul(part.params, rows.spread(factors)))
    torch._foreach_mul_(part.params, rows.spread(factors))
    return part.params


def limit_weight(
    part: Part,
    group: GroupOptions,
    psi: Psi,
    rows: Rows,
    G: Tensor,
    M: Tensor,
    divisor: Tensor,
    weight: Tensor,
    moves: Tensor,
) -> Tensor:
    """Line 5 by a callable: return β̂ · divisor for every row, and write the β̂ that the next step compares with."""
    previous = join(part.beta_hats)
    t = torch.cat([(t + 1).to(G).reshape(1).expand(size) for t, size in zip(part.steps, rows.sizes, strict=True)])
    line_4 = G * (group.momentum / group.delta) if group.delta else torch.full_like(G, torch.inf)
    given = weight / divisor
    beta_hat = call_psi(psi, torch.where(M == 0, line_4, given), previous, t)
    kept = torch.where(moves & (G != 0), torch.where(M == 0, line_4, beta_hat), previous)
    torch._foreach_copy_(part.beta_hats, list(torch.split(kept, rows.sizes)))
    # Where Ψ changes nothing, the weight stays as it is: β̂ alone may overflow.
    return torch.where(moves & (M != 0) & (beta_hat != given), beta_hat * divisor, weight)


def quantise_rows(part: Part, moments: list[Tensor], stays: Tensor, took_part: Tensor) -> None:
    """Write int8 moments and their scales, as `acmo.quantise` does; dimension 0 of a tensor has one scale per row.

    Bytes that are divided by the scale that they had stay what they were: so do rows that do not move.
    """
    old = join(part.moment_scales)
    lengths = [len(scale) for scale in part.moment_scales]
    largest = [
        torch.linalg.vector_norm(m, torch.inf, dim=tuple(range(1, m.ndim))) if m.numel() else m.new_zeros(len(m))
        for m in moments
    ]
    new = (torch.cat(largest) / LEVELS).to(old.dtype)
    if part.scope != "row":  # a scale is of entries in many columns: it is new if one of them moved
        still = torch.eq(took_part, 0).unbind()
        stays = torch.cat([x.expand(length) for x, length in zip(still, lengths, strict=True)])
    new = torch.where(stays, old, new)
    torch._foreach_copy_(list(part.moment_scales), list(torch.split(new, lengths)))
    torch._foreach_div_(moments, spread_scales(part, new.masked_fill(new == 0, 1.0).to(moments[0].dtype)))
    torch._foreach_round_(moments)
    torch._foreach_clamp_max_(moments, LEVELS)
    torch._foreach_clamp_min_(moments, -LEVELS)
    torch._foreach_copy_(part.moments, moments)
