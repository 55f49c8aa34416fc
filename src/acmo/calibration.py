"""The scalars of a step, between its two passes: lines 2, 4 and 5, t, and whether the step is taken at all.

Tensors in, tensors out: nothing here waits for a device, except to raise.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from acmo.norms import over_scope
from acmo.parts import Group, NonFiniteGradient, Part, Rules
from acmo.sharding import Totals, home, over_ranks


class Scalars(NamedTuple):
    """What pass 2 needs. The lists have an entry a part: 0-dim, or ``[n_k]`` for scope "tensor"."""

    go: Tensor  # whether the step is taken
    clip_scale: Tensor
    g_sqs: list[Tensor]  # line 4's ‖g‖² of each tensor, [n_k]
    beta_hats: list[Tensor]  # as applied
    kept: list[Tensor]  # what Ψ will compare with
    ts: list[Tensor]
    whole: Tensor | None  # as in `acmo.parts.Record`
    active: Tensor | None  # likewise


def solve(
    parts: Sequence[Part],
    groups: Sequence[Group],
    rules: Rules,
    rows: Sequence[Tensor],
    doubt: Tensor | None = None,
) -> Scalars:
    """From each part's sums (`acmo.foreach.sums`: ``[2 or 5, n_k]``) to the scalars of the step.

    ``doubt``, not 0 where a rank has a sum that is not finite, is from `acmo.sharding.over_shards`.
    """
    whole = None if rules.process_group is None else totals(parts, groups, rules, rows)
    total = torch.stack([r[0].sum() for r in rows]).sum() if whole is None else whole.sums[0].sum()
    if rules.found_inf is not None:  # any rank's overflow is everyone's
        found = rules.found_inf.to(total) + (0.0 if doubt is None else doubt[1])
        rules = rules._replace(found_inf=found + (0.0 if whole is None else whole.found_inf))
    if doubt is not None:
        total = torch.where(doubt[0] > 0, torch.nan, total)
    c = clip_scale(total.sqrt(), rules.max_grad_norm)
    g_sqs = [line_4_square(r, groups[p.group].coupled, c, rules) for p, r in zip(parts, rows, strict=True)]
    time = clocks(parts, groups, rules, total, whole)
    if whole is None:
        by_group = None
        g_total, newest = torch.cat(g_sqs).sum(), torch.stack([t.max() for t, _ in time]).max() - 1
    else:
        by_group = by_groups(whole.sums, groups, c, rules)
        g_total, newest = by_group[0].sum(), whole.newest.max()
    go = proceeds(total, g_total, newest, groups, rules)
    sums = torch.stack((torch.cat([r[0] for r in rows]), torch.cat(g_sqs))) if parts else total.new_zeros(2, 0)
    refuse_nonfinite(parts, sums, total, go, rules)
    pairs = [torch.stack((g_sq, r[1])) for g_sq, r in zip(g_sqs, rows, strict=True)]
    beta_hats, kept = [], []
    for part, scope, (t, prev) in zip(parts, over_scope(pairs, parts, rules.norm_scope, by_group), time, strict=True):
        applied, keep = calibrate(scope[0].sqrt(), scope[1].sqrt(), groups[part.group], t, prev)
        beta_hats.append(applied)
        kept.append(keep)
    record = None if by_group is None or whole is None else whole_rows(whole.sums[0], by_group, groups, rules, whole)
    return Scalars(go, c, g_sqs, beta_hats, kept, [t for t, _ in time], record, None if whole is None else whole.active)


def totals(parts: Sequence[Part], groups: Sequence[Group], rules: Rules, rows: Sequence[Tensor]) -> Totals:
    """What all ranks of the process group hold. A rank without a gradient must ask, too, or the others would wait."""
    like = home(parts, rules.process_group)
    sums = like.new_zeros(5, len(groups))
    for part, r in zip(parts, rows, strict=True):
        sums[: len(r), part.group] += r.sum(1)
    newest, betas = newest_of_groups(parts, groups, rules, like)
    zero = torch.zeros_like(like)
    columns = [torch.stack([of.get(k, zero) for k in range(len(groups))]) for of in (newest, betas)]
    active = zlib.crc32(repr([(part.group, tuple(part.indices)) for part in parts]).encode())
    return over_ranks(sums, columns[0], columns[1], active, rules.found_inf, rules.process_group)


def by_groups(sums: Tensor, groups: Sequence[Group], c: Tensor, rules: Rules) -> Tensor:
    """``[2, n_groups]``: line 4's ‖g‖² and ‖m‖² of each group, from its five sums."""
    g_sqs = [line_4_square(sums[:, k], group.coupled, c, rules) for k, group in enumerate(groups)]
    return torch.stack((torch.stack(g_sqs), sums[1]))


def whole_rows(raw: Tensor, by_group: Tensor, groups: Sequence[Group], rules: Rules, whole: Totals) -> Tensor:
    """``[5, n_groups]``: what telemetry tells of all ranks; ‖m_t‖² comes later, a tensor's own β̂ never."""
    squares, beta_hats = by_group, torch.full_like(raw, torch.nan)
    if rules.norm_scope != "tensor":
        if rules.norm_scope == "global":
            by_group = by_group.sum(1, keepdim=True).expand_as(by_group)
        norms = by_group.sqrt()
        t = (whole.newest if rules.norm_scope == "group" else whole.newest.max().expand_as(raw)) + 1
        prevs = whole.beta_hats if rules.psi == "sqrt" else [None] * len(groups)
        hats = [calibrate(norms[0, k], norms[1, k], g, t[k], prevs[k])[0] for k, g in enumerate(groups)]
        beta_hats = torch.stack(hats)
    return torch.stack((raw, *squares, torch.full_like(raw, torch.nan), beta_hats))


def clip_scale(grad_norm: Tensor, max_grad_norm: float | None) -> Tensor:
    """Line 2: c = min(1, C / (‖g‖ + 1e-6))."""
    if max_grad_norm is None:
        return torch.ones_like(grad_norm)
    return (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)


def line_4_square(rows: Tensor, coupled: float, c: Tensor, rules: Rules) -> Tensor:
    """‖c g + λθ‖² of each tensor; taken whole where c = 1, so that g ≈ −λθ does not cancel there."""
    g = rows[0]
    if not coupled:
        return g * c.square()
    decayed, inner, theta = rows[2:].unbind()
    if rules.max_grad_norm is None:
        return decayed
    clipped = c.square() * g + 2 * c * coupled * inner + coupled**2 * theta
    return torch.where(c == 1, decayed, clipped.clamp(min=0.0))


def calibrate(norm_g: Tensor, norm_m: Tensor, group: Group, t: Tensor, prev: Tensor | None) -> tuple[Tensor, Tensor]:
    """Lines 4 and 5 over one scope: the β̂ to apply and the β̂ to keep; prev is None where Ψ is the identity."""
    beta_hat = kept = group.momentum * norm_g / (norm_m + group.delta)
    if prev is not None:
        beta_hat = torch.minimum(beta_hat, (t / (t - 1)).sqrt() * prev)
        # Where m = 0 the paper's β̂ is kept; a step with g = 0 keeps what was there, or momentum would be dead for ever.
        fresh = kept if group.delta else torch.full_like(kept, torch.inf)
        kept = torch.where(norm_g == 0, prev, torch.where(norm_m == 0, fresh, beta_hat))
    return torch.where(norm_m == 0, 0.0, beta_hat), kept


def clocks(
    parts: Sequence[Part], groups: Sequence[Group], rules: Rules, like: Tensor, whole: Totals | None = None
) -> list[tuple[Tensor, Tensor | None]]:
    """Each part's t, one more than the largest step of its scope, and its group's newest β̂ (None unless Ψ = sqrt).

    Parameters without a gradient count: theirs may be the newest. 0-dim, or ``[n_k]`` for scope "tensor".
    """
    if rules.norm_scope == "tensor":
        return [(stacked(p.steps, like) + 1, stacked(p.beta_hats, like) if p.beta_hats else None) for p in parts]
    if whole is None:
        newest, betas = newest_of_groups(parts, groups, rules, like)
    else:
        newest = dict(enumerate(whole.newest.unbind()))
        betas = dict(enumerate(whole.beta_hats.unbind())) if rules.psi == "sqrt" else {}
    if rules.norm_scope == "global":
        newest = dict.fromkeys(newest, torch.stack(list(newest.values())).max())
    return [(newest[p.group] + 1, betas.get(p.group)) for p in parts]


def newest_of_groups(
    parts: Sequence[Part], groups: Sequence[Group], rules: Rules, like: Tensor
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """The largest step of each group that has any, and for Ψ = sqrt the β̂ that goes with it."""
    newest, betas = {}, {}
    for k, group in enumerate(groups):
        mine = [part for part in parts if part.group == k]
        if not mine and not group.idle_steps:
            continue
        steps = stacked([s for part in mine for s in part.steps] + group.idle_steps, like)
        newest[k] = steps.max()
        if rules.psi == "sqrt":
            hats = stacked([b for part in mine for b in part.beta_hats] + group.idle_beta_hats, like)
            betas[k] = torch.where(steps == newest[k], hats, 0.0).max()  # the newest are alike; indexing would wait
    return newest, betas


def stacked(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.stack([x.to(like).reshape(()) for x in tensors])


def proceeds(total: Tensor, g_total: Tensor, newest: Tensor, groups: Sequence[Group], rules: Rules) -> Tensor:
    """Whether the step is taken, as a bool tensor: from ‖g‖² raw and of line 4, and the largest step so far."""
    go = torch.ones_like(total, dtype=torch.bool)
    if rules.found_inf is not None:
        go = go & (rules.found_inf.to(total.device).sum() == 0)
    if rules.nonfinite != "propagate":
        go = go & torch.isfinite(total) & torch.isfinite(g_total)
    lrs = [group.lr for group in groups]
    if all(isinstance(lr, Tensor) or lr == 0 for lr in lrs):
        # A first step with lr 0 and gradients 0 is how torch.distributed.checkpoint makes state: m and t must stay 0.
        idle = (total == 0) & (newest == 0)
        for lr in lrs:
            idle = idle & (lr.to(total.device).sum() == 0) if isinstance(lr, Tensor) else idle
        go = go & ~idle
    return go


def refuse_nonfinite(parts: Sequence[Part], sums: Tensor, total: Tensor, go: Tensor, rules: Rules) -> None:
    """``nonfinite="raise"``: wait for the device, and name the first gradient that is not finite, raw or decayed.

    It may be another rank's: then only the total tells.
    """
    if rules.nonfinite != "raise" or bool(go) or bool(torch.isfinite(sums.sum() + total)):
        return
    if rules.found_inf is not None and bool(rules.found_inf.sum() != 0):
        return  # a GradScaler's overflow is its everyday business: that skips
    places = [(part.group, index) for part in parts for index in part.indices]
    finite = torch.isfinite(sums.sum(0)).tolist()
    bad = [place for place, fine in zip(places, finite, strict=True) if not fine]
    raise NonFiniteGradient(min(bad) if bad else None)
