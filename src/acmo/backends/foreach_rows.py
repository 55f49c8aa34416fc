"""A step by rows or columns on lists of tensors, for every device: no loop over rows, no waiting for the device.

Line 6 is computed as g + βG · (m / (M + δ)), which cannot overflow; G, M and N are the norms of g, m_{t−1} and m_t.
"""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from acmo.backends.spectral import find_directions, find_lengths, measure_cosines, sum_products
from acmo.quantise import dequantise, quantise
from acmo.scopes import count_entries, reduced_dims
from acmo.step_data import GroupOptions, Part, RowNorms, StepOptions

ROUNDING_LEVEL = {torch.float32: 1e-6, torch.float64: 1e-14}  # ‖m_t‖ / ‖g‖ below which m_t is rounding
ROUNDING_LEVEL_OF_CUT = {torch.float32: 1e-6, torch.float64: 1e-7}  # ‖m_t‖² of cut rows is a difference of sums


class RowSums(NamedTuple):
    """The sums of every row of a part, one after the other; where rows are cut, over all ranks."""

    raw_grad_sq: Tensor  # ‖g‖² of lines 1 and 2
    moment_sq: Tensor
    inner: Tensor  # ⟨g, m⟩
    grad_sq: Tensor | None = None  # ‖g‖² of line 4; None: without coupled decay it is that of line 2


def take_rows(part: Part, group: GroupOptions, factor: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """Return g of line 3 and m_{t−1}, in the precision of the arithmetic."""
    wide = wide_dtype(part)
    grads = [g.to(wide) for g in part.grads]
    if factor is not None:
        grads = list(torch._foreach_mul(grads, factor.to(part.params[0].device, wide)))
    if group.coupled_decay:
        thetas = [p.to(wide) for p in part.params]
        grads = list(torch._foreach_add(grads, thetas, alpha=group.coupled_decay))
    if not part.moment_scales:
        return grads, [m.to(wide) for m in part.moments]
    return grads, [dequantise(q, s, wide) for q, s in zip(part.moments, part.moment_scales, strict=True)]


def sum_rows(part: Part, group: GroupOptions, factor: Tensor | None) -> RowSums:
    """Return the sums of every row on this rank, with ⟨g, m⟩: what other ranks add to, where rows are cut."""
    grads, moments = take_rows(part, group, factor)
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
    """Step one part in place.

    Args:
      part, group, options: as every backend gets them.
      factor: that of lines 1 and 2 on the stored gradient; None for 1.
      should_step: a bool tensor where only the device knows whether the step is taken (a GradScaler), else None.
      sums: of `sum_rows` over all ranks, where rows are cut.
    """
    p0, wide, sum_type = part.params[0], wide_dtype(part), sum_dtype(part)
    grads, moments = take_rows(part, group, factor)
    raw = norms_of(part, part.grads) if sums is None else []
    shapes = [x.shape for x in raw] or [
        torch.Size([1 if i in d else size for i, size in enumerate(p.shape)])
        for p, d in zip(part.params, dims_of(part), strict=True)
    ]
    sizes = [shape.numel() for shape in shapes]
    if sums is None:
        G_raw = join(raw) if factor is None else join(raw) * factor.to(raw[0]).abs()
        G = join(norms_of(part, grads)) if group.coupled_decay else G_raw
        M = join(norms_of(part, moments))
    else:
        G_raw, M = sums.raw_grad_sq.sqrt(), sums.moment_sq.sqrt()
        G = G_raw if sums.grad_sq is None else sums.grad_sq.sqrt()

    # Which rows move, and by what: 4, 5.
    moves = G_raw != 0
    finite = torch.isfinite(G)
    if options.nonfinite != "propagate":
        moves = moves & finite
    if should_step is not None:
        moves = moves & should_step.to(moves.device)
    has_moment = moves & (M != 0)
    divisor = torch.where(has_moment, M + group.delta, 1.0)
    weight = torch.where(moves, torch.where(has_moment, group.momentum * G, 0.0), 1.0)

    def spread(values: Tensor) -> list[Tensor]:
        return [v.view(s) for v, s in zip(torch.split(values.to(wide), sizes), shapes, strict=True)]

    # 6  m = g + βG · (m / (M + δ)); a row that does not move keeps its m
    rows_move = [v.view(s) for v, s in zip(torch.split(moves, sizes), shapes, strict=True)]
    grads = [torch.where(move, g, 0.0) for move, g in zip(rows_move, grads, strict=True)]
    moments = list(torch._foreach_div(moments, spread(divisor)))
    torch._foreach_mul_(moments, spread(weight))
    torch._foreach_add_(moments, grads)
    if sums is None:
        N = join(norms_of(part, moments))
    else:  # ‖m_t‖² = ‖g‖² + 2b⟨g, m⟩ + b²‖m‖², in float64
        b = weight / divisor
        N = (G.square() + 2 * b * sums.inner + (b * M).square()).clamp(min=0.0).sqrt()
        N = torch.where(moves, N, M)
    least = (ROUNDING_LEVEL if sums is None else ROUNDING_LEVEL_OF_CUT)[wide]
    vanishes = moves & (least * G >= N)
    if options.unit_step:
        torch._foreach_mul_(moments, spread(torch.where(vanishes, 0.0, 1.0)))

    # 7, 8  θ = (1 − αλ) θ − α u
    alpha = group.lr.to(p0.device, sum_type) if isinstance(group.lr, Tensor) else group.lr
    steps = moves & ~vanishes if options.unit_step else moves
    length = torch.ones_like(N)
    directions, cosines = moments, None  # u = length · direction
    if part.scope == "spectral":
        directions = find_directions(part, moments, N, options.ns_steps)
        length, local = find_lengths(part, N), G if sums is None else join(norms_of(part, grads))
        cosines = measure_cosines(directions, sum_products(directions, grads), local)  # of this rank's entries
    elif options.unit_step:
        roots = [sqrt(count_entries(part.scope, o.shape)) for o in part.owners]
        root_n = torch.cat([N.new_full((size,), root) for size, root in zip(sizes, roots, strict=True)])
        length = root_n / torch.where(steps, N, 1.0)
    limit = torch.finfo(wide).max
    coefficient = spread(torch.where(steps, (-alpha * length).clamp(-limit, limit), 0.0))
    thetas = [p.to(wide) for p in part.params] if p0.dtype != wide else part.params
    if group.decoupled:
        kappa = group.theta_factor.to(N) if isinstance(group.theta_factor, Tensor) else group.theta_factor
        decays = finite if options.nonfinite != "propagate" else torch.ones_like(finite)
        decays = decays if should_step is None else decays & should_step.to(decays.device)
        torch._foreach_mul_(thetas, spread(torch.where(decays, kappa, torch.ones_like(N))))
    torch._foreach_addcmul_(thetas, directions, coefficient)
    if thetas is not part.params:
        torch._foreach_copy_(part.params, thetas)
    if part.moment_scales:
        for q, scale, m, move in zip(part.moments, part.moment_scales, moments, rows_move, strict=True):
            quantise(m, q, scale, move.flatten(1).any(1).expand(len(scale)))
    else:
        torch._foreach_copy_(part.moments, moments)

    if options.nonfinite == "propagate":
        finite = torch.ones_like(finite)  # nothing is skipped
    return measure_rows(G_raw, G, M, N, moves, finite, group, sizes, cosines)


def measure_rows(
    G_raw: Tensor,
    G: Tensor,
    M: Tensor,
    N: Tensor,
    moves: Tensor,
    finite: Tensor,
    group: GroupOptions,
    sizes: Sequence[int],
    cosines: Tensor | None = None,
) -> RowNorms:
    """Return the sums and cosines of each tensor, over the rows that moved.

    ``cosines`` are those of spectral steps. Of others, ⟨m_t, g⟩ follows from the norms: ‖m_t − g‖ = βG · M/(M + δ).
    """
    kept = torch.where(M == 0, 0.0, group.momentum * G * M / torch.where(M == 0, 1.0, M + group.delta))
    inner = (N.square() + G.square() - kept.square()) / 2  # ⟨m_t, g⟩
    cos = (inner / torch.where(moves & (N > 0), G * N, 1.0)).clamp(-1.0, 1.0) if cosines is None else cosines
    turned = moves & (M != 0) & (inner < G.square())
    zero = torch.zeros_like(G)
    columns = [
        torch.where(moves, G_raw.square(), zero),
        torch.where(moves, G.square(), zero),
        torch.where(moves, M.square(), zero),
        torch.where(moves, N.square(), zero),
        torch.ones_like(G),
        moves.to(G),
        (~finite).to(G),
        torch.where(moves, cos, zero),
        turned.to(G),
    ]
    table = torch.stack(columns)
    raw, grad, before, after, rows, took_part, skipped, cos_sum, turned_rows = torch.stack(
        [own.sum(1) for own in torch.split(table, list(sizes), dim=1)], dim=1
    ).unbind()
    lowest = torch.split(torch.where(moves, cos, torch.inf), list(sizes))
    cos_min = torch.stack([x.min() if x.numel() else x.new_full((), torch.inf) for x in lowest])
    return RowNorms(raw, grad, before, after, rows, took_part, skipped, cos_min, cos_sum, turned_rows)


def wide_dtype(part: Part) -> torch.dtype:
    """Return the dtype of the arithmetic: float64 where the parameter or its moment is."""
    return torch.float64 if torch.float64 in (part.params[0].dtype, part.moments[0].dtype) else torch.float32


def sum_dtype(part: Part) -> torch.dtype:
    """Return the dtype of sums: float64 where the device has it."""
    return torch.float32 if part.params[0].device.type == "mps" else torch.float64


def dims_of(part: Part) -> list[tuple[int, ...]]:
    """Return the dimensions that the norms of each tensor are taken over."""
    return [reduced_dims(part.scope, p.ndim, o.is_complex()) for p, o in zip(part.params, part.owners, strict=True)]


def norms_of(part: Part, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the norms of every row of each tensor, with the reduced dimensions kept."""
    sums = sum_dtype(part)
    return [
        torch.linalg.vector_norm(x, dim=d or None, keepdim=True, dtype=sums)
        for x, d in zip(tensors, dims_of(part), strict=True)
    ]


def join(tensors: Sequence[Tensor]) -> Tensor:
    """Return the entries of all tensors as one axis."""
    return torch.cat([x.reshape(-1) for x in tensors])
