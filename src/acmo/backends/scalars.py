"""The scalars of a step, between its two passes: lines 2, 4 and 5, t, and whether the step is taken at all.

Tensors in, tensors out: nothing here waits for a device, except to raise.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from acmo import sharding
from acmo.psi import call_psi
from acmo.step_data import GroupOptions, Newest, NonFiniteGradient, Part, PartSums, ShardedSums, StepOptions


class Scalars(NamedTuple):
    """The scalars of a step. The lists have one entry per part: 0-dim, or ``[n]`` for scope "tensor"."""

    should_step: Tensor
    clip_scale: Tensor
    sums: list[PartSums]  # of pass 1, over all ranks, always [n]
    grad_sqs: list[Tensor]  # line 4's ‖g‖² of each tensor, likewise
    beta_hats: list[Tensor]  # as applied
    kept_beta_hats: list[Tensor]  # what Ψ compares with at the next step
    step_factors: list[Tensor | None]  # of unit steps
    old_steps: list[Tensor]  # t of each tensor before this step, always [n]
    steps: list[Tensor]  # t
    all_ranks: Tensor | None  # as in `StepRecord`
    active_sets: Tensor | None  # likewise


class PartScalars(NamedTuple):
    """What pass 2 needs to know of one part."""

    should_step: Tensor
    clip_scale: Tensor
    beta_hat: Tensor  # 0-dim, or [n] for scope "tensor"
    step_factor: Tensor | None  # √n/‖m_t‖ of a unit step, 0 where ‖m_t‖ is rounding; None for u = m


class ScopeNorms(NamedTuple):
    """Line 4's ‖g‖ and ‖m‖ of a scope, its t, and the β̂ that Ψ compares with (None for the identity)."""

    grad: Tensor
    moment: Tensor
    t: Tensor
    previous: Tensor | None
    grad_moment: Tensor | None = None  # ⟨g, m⟩ and the number of entries, for unit steps
    entries: Tensor | None = None


def compute_scalars(
    parts: Sequence[Part],
    groups: Sequence[GroupOptions],
    options: StepOptions,
    rows: Sequence[Tensor],
    shards: ShardedSums | None,
    like: Tensor,
) -> Scalars:
    """Compute the scalars from each part's `PartSums` (``rows``).

    ``shards`` is what other ranks report; the scalars have the dtype and the device of ``like``.
    """
    sums = [PartSums(*own.unbind()) for own in rows]
    by_group = sum_by_group(parts, rows)
    old_steps = [stack(part.steps, like) for part in parts]
    newest: dict[int, Newest] = {}
    if options.norm_scope != "tensor" or options.process_group is not None:
        newest = find_newest(parts, groups, options, old_steps, like)
    found_inf, active_sets = options.found_inf, None
    if found_inf is not None:  # an overflow on any rank counts for all
        found_inf = found_inf.to(like) + (0.0 if shards is None else shards.overflow_ranks)
    if options.process_group is not None:
        totals = sharding.gather_totals(parts, by_group, newest, len(groups), options, found_inf, like)
        by_group, newest, active_sets = totals.sums, totals.newest, totals.active_sets
        found_inf = None if found_inf is None else totals.overflow_ranks
    raw_total = combine([own.raw_grad_sq for own in by_group.values()])
    if shards is not None:
        raw_total = torch.where(shards.nonfinite_ranks > 0, torch.nan, raw_total)
    c = compute_clip_scale(raw_total, options)
    grad_sqs = [square_line_4(own, groups[p.group], c, options) for p, own in zip(parts, sums, strict=True)]
    group_sqs = {k: square_line_4(own, groups[k], c, options) for k, own in by_group.items()}
    grad_total = combine(list(group_sqs.values()))

    if options.norm_scope == "tensor":
        by_scope: dict[int, ScopeNorms] = {}
        scopes = [
            ScopeNorms(
                g_sq.sqrt(),
                own.moment_sq.sqrt(),
                steps + 1,
                stack(p.beta_hats, like).to(like) if p.beta_hats else None,
                own.grad_moment,
                own.entries,
            )
            for p, own, g_sq, steps in zip(parts, sums, grad_sqs, old_steps, strict=True)
        ]
    else:
        by_scope = find_scope_norms(group_sqs, grad_total, by_group, newest, options.norm_scope)
        scopes = [by_scope[part.group] for part in parts]
    steps = [scope.t for scope in scopes] or [own.step + 1 for own in newest.values()]
    should_step = decide(raw_total, grad_total, steps, found_inf, groups, options)
    if options.nonfinite == "raise" and not should_step and (found_inf is None or not found_inf.sum()):
        # A GradScaler's overflow is an everyday event: it skips the step.
        none = like.new_zeros(0)
        raw = torch.cat([*(own.raw_grad_sq for own in sums), none])
        refuse_nonfinite(parts, raw, torch.cat([*grad_sqs, none]), raw_total)

    factors: list[Tensor | None] = []
    applied: list[Tensor] = []
    kept: list[Tensor] = []
    for part, scope in zip(parts, scopes, strict=True):
        beta_hat, to_keep = calibrate(scope, groups[part.group], options)
        applied.append(beta_hat)
        kept.append(to_keep)
        factors.append(find_step_factor(scope, beta_hat, parts[0]) if options.unit_step else None)
    all_ranks = None
    if options.process_group is not None:
        nan = torch.full_like(raw_total, torch.nan)  # ‖m_t‖² arrives with the next message, a tensor's own β̂ never
        beta_hats = {k: calibrate(scope, groups[k], options)[0] for k, scope in by_scope.items()}
        all_ranks = torch.stack(
            [
                torch.stack((own.raw_grad_sq, group_sqs[k], own.moment_sq, nan, beta_hats.get(k, nan)))
                for k, own in by_group.items()
            ],
            dim=1,
        )
    return Scalars(should_step, c, sums, grad_sqs, applied, kept, factors, old_steps, steps, all_ranks, active_sets)


def compute_clip_scale(raw_total: Tensor, options: StepOptions) -> Tensor:
    """Line 2: c = min(1, C / (‖g‖ + 1e-6))."""
    if options.max_grad_norm is None or options.max_grad_norm == math.inf:
        return torch.ones_like(raw_total)
    return (options.max_grad_norm / (raw_total.sqrt() + 1e-6)).clamp(max=1.0)


def square_line_4(sums: PartSums, group: GroupOptions, c: Tensor, options: StepOptions) -> Tensor:
    """Return ‖c g + λθ‖²; as pass 1 has it where c = 1, so that g ≈ −λθ does not cancel there."""
    decay = group.coupled_decay
    if options.unit_step and sums.decayed_sq is not None:
        return sums.decayed_sq
    if sums.decayed_sq is None or sums.grad_theta is None or sums.theta_sq is None or not decay:
        return sums.raw_grad_sq if options.max_grad_norm is None else sums.raw_grad_sq * c.square()
    if options.max_grad_norm is None:
        return sums.decayed_sq
    clipped = c.square() * sums.raw_grad_sq + 2 * c * decay * sums.grad_theta + decay**2 * sums.theta_sq
    return torch.where(c == 1, sums.decayed_sq, clipped.clamp(min=0.0))


def calibrate(scope: ScopeNorms, group: GroupOptions, options: StepOptions) -> tuple[Tensor, Tensor]:
    """Lines 4 and 5: return the β̂ to apply and the β̂ to keep for the next step."""
    beta_hat = kept = group.momentum * scope.grad / (scope.moment + group.delta)
    if scope.previous is not None:
        # Where m = 0 line 4's β̂ is kept; a step with g = 0 keeps what was there, or momentum would stay 0 forever.
        line_4 = kept if group.delta else torch.full_like(kept, torch.inf)
        if callable(options.psi):
            beta_hat = torch.where(scope.moment == 0, line_4, beta_hat)
            beta_hat = call_psi(options.psi, beta_hat, scope.previous, scope.t.to(beta_hat))
        else:
            t = scope.t.to(beta_hat)
            beta_hat = torch.minimum(beta_hat, (t / (t - 1)).sqrt() * scope.previous)
        kept = torch.where(scope.grad == 0, scope.previous, torch.where(scope.moment == 0, line_4, beta_hat))
    return beta_hat.masked_fill(scope.moment == 0, 0.0), kept


def find_step_factor(scope: ScopeNorms, beta_hat: Tensor, part: Part) -> Tensor:
    """Return √n/‖m_t‖ of the unit step, from ‖m_t‖² = ‖g‖² + 2β̂⟨g, m⟩ + β̂²‖m‖²; 0 where ‖m_t‖ is rounding."""
    assert scope.grad_moment is not None
    assert scope.entries is not None
    square = scope.grad.square() + 2 * beta_hat * scope.grad_moment + (beta_hat * scope.moment).square()
    length = square.clamp(min=0.0).sqrt()
    # A difference of sums in float64 resolves ‖m_t‖ to 1e-8 of ‖g‖.
    vanishes = length <= (1e-7 if part.params[0].dtype == torch.float64 else 1e-6) * scope.grad
    factor = torch.where(vanishes, 0.0, scope.entries.sqrt() / torch.where(vanishes, 1.0, length))
    return torch.where(torch.isfinite(scope.grad), factor, torch.nan)  # what "propagate" lets through spreads


def decide(
    raw_total: Tensor,
    grad_total: Tensor,
    steps: Sequence[Tensor],
    found_inf: Tensor | None,
    groups: Sequence[GroupOptions],
    options: StepOptions,
) -> Tensor:
    """Return whether the step is taken, as a bool tensor; ``steps`` are the t of the scopes."""
    if options.nonfinite == "propagate":
        should_step = torch.ones_like(raw_total, dtype=torch.bool)
    else:
        should_step = torch.lt(raw_total, torch.inf) & torch.lt(grad_total, torch.inf)
    if found_inf is not None:
        should_step = should_step & (found_inf.to(raw_total.device).sum() == 0)
    for group in groups:
        if not isinstance(group.lr, Tensor) and group.lr != 0:
            return should_step
    # torch.distributed.checkpoint makes state by a first step with lr 0 and gradients 0: m and t must stay 0.
    makes_state = (combine([t.max() for t in steps], torch.amax) == 1) & (raw_total == 0)
    for group in groups:
        if isinstance(group.lr, Tensor):
            makes_state = makes_state & (group.lr.to(raw_total.device) == 0)
    return should_step & ~makes_state


def refuse_nonfinite(parts: Sequence[Part], raw_sq: Tensor, grad_sq: Tensor, raw_total: Tensor) -> None:
    """Raise if a sum ``[n]`` or the total over all ranks is not finite, naming the first gradient that is not.

    The raw gradients are asked first: clipping spreads a NaN over all of line 4's.
    """
    if bool(torch.isfinite(raw_sq.sum() + grad_sq.sum() + raw_total)):
        return
    places = [(part.group, index) for part in parts for index in part.indices]
    for sums in (raw_sq, grad_sq) if bool(torch.isfinite(raw_total)) else (raw_sq,):
        bad = [place for place, finite in zip(places, torch.isfinite(sums).tolist(), strict=True) if not finite]
        if bad:
            raise NonFiniteGradient(min(bad))
    raise NonFiniteGradient(None)  # it is another rank's


def find_scope_norms(
    grad_sqs: dict[int, Tensor],
    grad_total: Tensor,
    sums: dict[int, PartSums],
    newest: dict[int, Newest],
    norm_scope: str,
) -> dict[int, ScopeNorms]:
    """Return the norms and t of the scope that each group belongs to."""
    if norm_scope == "group":
        return {
            k: ScopeNorms(
                g_sq.sqrt(),
                sums[k].moment_sq.sqrt(),
                newest[k].step + 1,
                newest[k].beta_hat,
                sums[k].grad_moment,
                sums[k].entries,
            )
            for k, g_sq in grad_sqs.items()
        }
    moment = combine([own.moment_sq for own in sums.values()]).sqrt()
    t = combine([own.step for own in newest.values()], torch.amax) + 1
    first = next(iter(sums.values()))
    inner = entries = None
    if first.grad_moment is not None:
        inner = combine([own.grad_moment for own in sums.values() if own.grad_moment is not None])
        entries = combine([own.entries for own in sums.values() if own.entries is not None])
    return {k: ScopeNorms(grad_total.sqrt(), moment, t, newest[k].beta_hat, inner, entries) for k in grad_sqs}


def sum_by_group(parts: Sequence[Part], rows: Sequence[Tensor]) -> dict[int, PartSums]:
    """Add up the sums of each group that takes part: 0-dim fields."""
    by_group: dict[int, Tensor] = {}
    for part, own in zip(parts, rows, strict=True):
        total = own.sum(1)
        by_group[part.group] = by_group[part.group] + total if part.group in by_group else total
    return {k: PartSums(*total.unbind()) for k, total in by_group.items()}


def find_newest(
    parts: Sequence[Part],
    groups: Sequence[GroupOptions],
    options: StepOptions,
    old_steps: Sequence[Tensor],
    like: Tensor,
) -> dict[int, Newest]:
    """Return the largest step of each group that has any, and unless Ψ is the identity the β̂ that belongs to it.

    Parameters without a gradient count: theirs may be the newest.
    """
    newest = {}
    for k, group in enumerate(groups):
        own_steps: list[Tensor] = []
        own_beta_hats: list[Tensor] = []
        for part, steps in zip(parts, old_steps, strict=True):
            if part.group == k:
                own_steps.append(steps)
                own_beta_hats += part.beta_hats
        if group.idle_steps:
            own_steps.append(stack(group.idle_steps, like))
        if not own_steps:
            continue
        steps = own_steps[0] if len(own_steps) == 1 else torch.cat(own_steps)
        step, beta_hat = steps.max(), None
        if options.psi != "identity":
            beta_hats = stack(own_beta_hats + group.idle_beta_hats, like).to(like)
            beta_hat = torch.where(steps == step, beta_hats, 0.0).max()  # the newest agree; indexing would wait
        newest[k] = Newest(step if options.process_group is None else step.to(like), beta_hat)
    return newest


def stack(scalars: list[Tensor], like: Tensor) -> Tensor:
    """Stack n tensors of one element as ``[n]``, on the device of ``like``."""
    if len({(x.device, x.dtype, x.shape) for x in scalars}) == 1:  # one conversion for all, not one each
        return torch.stack(scalars).reshape(len(scalars)).to(like.device)
    return torch.stack([x.to(like).reshape(()) for x in scalars])


def combine(scalars: list[Tensor], way: Callable[[Tensor], Tensor] = torch.sum) -> Tensor:
    """Return the sum of 0-dim tensors, or what ``way`` makes of them."""
    return scalars[0] if len(scalars) == 1 else way(torch.stack(scalars))
