"""ACMo, line by line: Algorithm 1 of the paper, with the options of this package.

This is the reference backend: a loop over tensors in plain, differentiable torch that sums in float64. It shares no
code with the fast backends, which are tested against it, except for how int8 moments are stored, how bfloat16 is
rounded stochastically, and how a callable Ψ is called. The letters are the paper's: θ, g, m, β, δ, α, λ and Ψ. Lines 1,
4, 5, 6 and 8 are the paper's, lines 2, 3 and 7 are options.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from acmo.blocks import copy_blocks, find_nonfinite, find_previous, find_scopes, store
from acmo.psi import call_psi
from acmo.step_data import GroupOptions, NonFiniteGradient, Part, RowNorms, StepOptions, StepRecord
from acmo.telemetry import measure_rows


def step(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions) -> StepRecord:
    """Execute one step in place. The numbers are those of the lines in docs/how.md."""
    blocks = copy_blocks(parts, groups)

    # 1  g = ∇f(θ), unscaled by a GradScaler; −g when maximize
    for x in blocks:
        x.g = -x.g if x.group.maximize else x.g
        x.g = x.g if options.grad_scale is None else x.g / options.grad_scale.to(x.g.device)
    raw_sq, raw_finite, overflow = sum_squares([x.g for x in blocks], parts, options)
    norm = root(raw_sq.sum())

    # 2  g = c g,  c = min(1, C / (‖g‖ + 1e-6))
    c = torch.ones_like(norm)
    if options.max_grad_norm is not None and options.max_grad_norm < math.inf:
        c = (options.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for x in blocks:
            x.g = c.to(x.g) * x.g

    # 3  g = g + λ θ
    for x in blocks:
        x.g = x.g + x.group.coupled_decay * x.theta if x.group.coupled_decay else x.g

    g_sq, g_finite, _ = sum_squares([x.g for x in blocks], parts, options)
    m_sq, _, _ = sum_squares([x.m for x in blocks], parts, options)
    scopes = find_scopes(blocks, groups)
    finite, by_row = raw_finite and g_finite, scopes[0].dims is not None
    if options.nonfinite == "raise" and not finite and not overflow:
        raise NonFiniteGradient(find_nonfinite(blocks, raw_sq) or find_nonfinite(blocks, g_sq))
    # By row, a row whose gradient is not finite is skipped by itself, unless the clip factor spread it to every row.
    skips_rows = by_row and (raw_finite or options.max_grad_norm in (None, math.inf))
    skip = overflow or (options.nonfinite == "skip" and not finite and not skips_rows)
    if norm == 0 and all([scope.t == 1 for scope in scopes]) and all([group.lr == 0 for group in groups]):  # noqa: C419
        skip = True  # torch.distributed.checkpoint makes state by a first step with lr 0: m and t must stay 0

    beta_hats, rows = torch.zeros_like(g_sq), []
    for scope in [] if skip else scopes:
        members = [blocks[n] for n in scope.members]
        if scope.dims is None:
            norm_g, norm_m = root(g_sq[scope.members].sum()), root(m_sq[scope.members].sum())
            moves = decays = torch.ones_like(norm_g, dtype=torch.bool)
        else:
            (x,) = members
            norm_g, norm_m = root(square(x.g, scope.dims)), root(square(x.m, scope.dims))
            decays = torch.isfinite(norm_g) | (options.nonfinite == "propagate")
            moves = decays & (x.part.grads[x.j] != 0).any(scope.dims, keepdim=True)  # a row of zeros takes no part
        old = members[0].m
        prevs: dict[int, Tensor] = {}
        if options.psi != "identity":
            prevs = {n: find_previous(blocks[n], blocks, options, norm_g.shape) for n in scope.members}
        for n, x in zip(scope.members, members, strict=True):
            # 4  β̂ = β ‖g‖ / (‖m‖ + δ), applied as 0 where m = 0
            beta_hat = x.group.momentum * norm_g / torch.where(norm_m == 0, 1.0, norm_m + x.group.delta)
            # 5  β̂ = Ψ(β̂, β̂_prev)
            if (prev := prevs.get(n)) is not None:
                line_4 = x.group.momentum * norm_g / x.group.delta if x.group.delta else torch.full_like(prev, math.inf)
                if options.psi == "sqrt":
                    bound = prev * (math.sqrt(scope.t / (scope.t - 1)) if scope.t > 1 else math.inf)
                    beta_hat = torch.minimum(beta_hat, bound)
                else:
                    beta_hat = torch.where(norm_m == 0, line_4, beta_hat)
                    beta_hat = call_psi(options.psi, beta_hat, prev, torch.full_like(prev, scope.t))
                kept = torch.where(norm_m == 0, line_4, beta_hat)
                kept = torch.where((norm_g == 0) | ~moves, prev, kept)
                x.part.beta_hats[x.j].copy_(kept.detach().reshape(-1))
            beta_hat = torch.where(norm_m == 0, 0.0, beta_hat)
            # 6  m = g + β̂ m
            x.m = x.g + (beta_hat * x.m.to(beta_hat.dtype)).to(x.m.dtype)  # in float64: β̂ alone may overflow float32
            beta_hats[n] = beta_hat.detach() if scope.dims is None else math.nan

        factor = torch.ones_like(norm_g)
        if options.unit_step:  # u = √n m / ‖m‖; where ‖m‖ is rounding, m = 0 and there is no step
            length = root(torch.stack([square(x.m, scope.dims) for x in members]).sum(0))
            least = 1e-14 if members[0].m.dtype == torch.float64 else 1e-6
            vanishes = (length <= least * norm_g) & torch.isfinite(norm_g)
            factor = torch.where(vanishes, 0.0, math.sqrt(scope.entries) / torch.where(vanishes, 1.0, length))
            factor = torch.where(torch.isfinite(norm_g), factor, torch.nan)  # what "propagate" lets through spreads
            for x in members:
                x.m = torch.where(vanishes, 0.0, x.m)
        for x in members:
            # 7  θ = (1 − αλ) θ
            x.theta = torch.where(decays, x.group.theta_factor * x.theta, x.theta)
            # 8  θ = θ − α u; `ACMo.step` applies the projection Π, after every backend alike
            u = (factor * x.m.to(factor.dtype)).to(x.m.dtype)
            u = orthogonalise(u, options.ns_steps, options.ns_dtype) if x.part.scope == "spectral" else u
            x.theta = torch.where(moves, x.theta - x.group.lr * u, x.theta)
            x.m = x.m if scope.dims is None else torch.where(moves, x.m, old)
            store(x, scope.t, moves)
        if scope.dims is not None:
            raw = members[0].part.grads[members[0].j]
            rows.append(measure_rows(raw, members[0].g, old, members[0].m, u, scope.dims, moves, decays))

    new_sq = torch.stack([x.part.moments[x.j].detach().to(g_sq).square().sum() for x in blocks])  # as stored
    norms = torch.stack((raw_sq, g_sq, m_sq, new_sq, beta_hats)).detach()
    places = tuple([(part.group, tuple(part.indices)) for part in parts])
    record = StepRecord(norms, c.detach().reshape(1), not skip, new_sq, places)
    if rows:
        by_tensor = [(part.group, i) for part in parts for i in part.indices]
        return record._replace(rows=RowNorms(*torch.stack(rows, dim=1).unbind()), row_places=tuple(by_tensor))
    return record._replace(late=options.sum_over_shards is not None)


def orthogonalise(u: Tensor, steps: int, dtype: torch.dtype | None) -> Tensor:
    """Return √max(rows, columns) · O for u = √n m / ‖m‖, where O is m with singular values near 1, as in Muon."""
    dtype = dtype or (torch.float32 if u.device.type == "mps" else torch.float64)
    x = u.to(dtype).flatten(1) / math.sqrt(u.numel())
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    for _ in range(steps):  # Newton–Schulz: σ becomes 3.4445 σ − 4.7750 σ³ + 2.0315 σ⁵
        gram = x @ x.T  # of the smaller side
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    x = math.sqrt(max(x.shape)) * (x.T if is_tall else x)
    return x.reshape(u.shape).to(u.dtype)


def sum_squares(xs: Sequence[Tensor], parts: Sequence[Part], options: StepOptions) -> tuple[Tensor, bool, bool]:
    """Return ‖x‖² of each tensor over all ranks, whether all are finite, and whether a GradScaler overflowed."""
    dtype = torch.float32 if xs[0].device.type == "mps" else torch.float64
    sums = torch.stack([x.to(xs[0].device, dtype).square().sum() for x in xs])
    overflow = options.found_inf is not None and bool(options.found_inf != 0)
    finite = True
    if options.sum_over_shards is not None:
        by_part = [s[None] for s in torch.split(sums, [len(part.params) for part in parts])]
        ranks = options.sum_over_shards(by_part, parts, options.found_inf)
        sums = torch.cat(ranks.sums, 1)[0]
        overflow, finite = bool(ranks.overflow_ranks > 0), bool(ranks.nonfinite_ranks == 0)
    return sums, finite and bool(torch.isfinite(sums.sum())), overflow


def square(x: Tensor, dims: tuple[int, ...] | None) -> Tensor:
    """Return the sums of squares in float64: of all entries, or of each row with the reduced dimensions kept."""
    x = x.to(torch.float32 if x.device.type == "mps" else torch.float64).square()
    return x.sum() if dims is None else x.sum(dims, keepdim=True)


def root(total: Tensor) -> Tensor:
    """Return √ with derivative 0 at 0, where a norm only selects a branch."""
    positive = total > 0
    return torch.where(total == 0, 0.0, torch.where(positive | total.isnan(), total, 1.0).sqrt())
