"""A step by rows: every row is calibrated by itself, so one pass over a tensor is enough, and nothing is cached."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from acmo import sharding
from acmo.backends import foreach_rows
from acmo.backends.foreach_rows import RowSums
from acmo.backends.row_layout import sum_dtype
from acmo.step_data import GroupOptions, NonFiniteGradient, Part, RowNorms, StepOptions, StepRecord, scalar_dtype

# (part, its group, options, factor on its gradient, whether to step) → what it did
StepPart = Callable[[Part, GroupOptions, StepOptions, Tensor | None, Tensor | None], RowNorms]

OVERFLOW, NONFINITE = 0, 1  # of the flags: a GradScaler's, and a gradient that is not finite under "raise"


def step(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, ways: Sequence[StepPart]
) -> StepRecord:
    """Execute one step; ``ways`` has one entry per part. Rows that are cut over ranks share one message."""
    device = parts[0].params[0].device if parts else sharding.find_device(options.process_group)
    norm = find_norm(parts, options, device)
    c = (
        None
        if norm is None or options.max_grad_norm is None
        else (options.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
    )
    factors = [find_factor(groups[part.group], options, c) for part in parts]
    tables = {
        k: torch.stack([x for x in foreach_rows.sum_rows(part, groups[part.group], factors[k]) if x is not None])
        for k, part in enumerate(parts)
        if part.shards
    }
    tables, flags = sharding.sum_rows_over_shards(
        tables, parts, find_flags(parts, options, device), options.process_group
    )
    should_step = None if flags is None or options.found_inf is None else flags[OVERFLOW] == 0
    if norm is not None and options.nonfinite == "skip":  # a clip factor that is not finite is every row's
        should_step = torch.isfinite(norm) if should_step is None else should_step & torch.isfinite(norm)
    if flags is not None and options.nonfinite == "raise" and not flags[OVERFLOW] and flags[NONFINITE]:
        raise NonFiniteGradient(find_nonfinite(parts))  # None: it is another rank's
    results = []
    for k, part in enumerate(parts):
        group = groups[part.group]
        if k in tables:
            sums = RowSums(*tables[k].unbind())
            results.append(foreach_rows.step_part(part, group, options, factors[k], should_step, sums))
        else:
            results.append(ways[k](part, group, options, factors[k], should_step))
    if len(results) == 1:
        rows = results[0]
    elif results:
        rows = RowNorms(*(torch.cat([x.to(device) for x in field]) for field in zip(*results, strict=True)))
    else:  # a rank without a gradient, which only talks to the others
        rows = RowNorms(*torch.zeros(len(RowNorms._fields), 0, dtype=scalar_dtype(device), device=device))
    applied = count_step(parts, groups, rows, should_step)
    # Not 0 where the scaler overflowed: that is for a step which only makes state, and is not counted as skipped.
    raw = rows.raw_grad_sq if should_step is None else torch.where(should_step.to(device), rows.raw_grad_sq, torch.nan)
    # By row there is no β̂ to report: `acmo.telemetry` does not read that row.
    norms = torch.stack((raw, rows.grad_sq, rows.moment_sq, rows.new_moment_sq, rows.rows))
    return StepRecord(
        norms,
        1.0 if c is None else c.reshape(1).to(norms),
        applied,
        (),
        tuple([(part.group, tuple(part.indices)) for part in parts]),
        rows=rows,
        row_places=tuple([(part.group, i) for part in parts for i in part.indices]),
    )


def find_factor(group: GroupOptions, options: StepOptions, c: Tensor | None) -> Tensor | None:
    """Return the factor of lines 1 and 2 on the stored gradient; None for 1."""
    sign = -1.0 if group.maximize else 1.0
    if options.grad_scale is not None:
        scale = options.grad_scale
        factor = sign / scale.to(torch.float32 if scale.device.type == "mps" else torch.float64)
        return factor if c is None else factor * c.to(factor)
    if c is not None:
        return sign * c
    return None if not group.maximize else torch.tensor(-1.0, dtype=torch.float64, device="cpu")


def find_norm(parts: Sequence[Part], options: StepOptions, device: torch.device) -> Tensor | None:
    """Return ‖g‖ of line 1 over all gradients and ranks, for line 2; None without clipping."""
    if options.max_grad_norm is None or options.max_grad_norm == math.inf:
        return None
    squares = torch.zeros(len(parts), dtype=scalar_dtype(device), device=device)
    for k, part in enumerate(parts):
        norms = [torch.linalg.vector_norm(g, dtype=sum_dtype(part)).to(device) for g in part.grads]
        squares[k] = torch.stack(norms).square().sum()
    norm = sharding.sum_over_model(squares, parts, options.process_group).sqrt()
    return norm if options.grad_scale is None else norm / options.grad_scale.to(norm)


def find_flags(parts: Sequence[Part], options: StepOptions, device: torch.device) -> Tensor | None:
    """Return what all ranks must know before anything is written, as two numbers; None where that is nothing.

    Under ``"raise"`` every gradient is read once more.
    """
    if options.found_inf is None and options.nonfinite != "raise":
        return None
    flags = torch.zeros(2, dtype=scalar_dtype(device), device=device)
    if options.found_inf is not None:
        flags[OVERFLOW] = (options.found_inf != 0).to(flags)
    if options.nonfinite == "raise" and parts:
        finite = [torch.isfinite(g).all().to(device) for part in parts for g in part.grads]
        flags[NONFINITE] = (~torch.stack(finite).all()).to(flags)
    return flags


def find_nonfinite(parts: Sequence[Part]) -> tuple[int, int] | None:
    """Return group and position of the first gradient on this rank that is not finite."""
    bad = [
        (part.group, i)
        for part in parts
        for i, g in zip(part.indices, part.grads, strict=True)
        if not torch.isfinite(g).all()
    ]
    return min(bad, default=None)


def count_step(
    parts: Sequence[Part], groups: Sequence[GroupOptions], rows: RowNorms, should_step: Tensor | None
) -> Tensor | bool:
    """Add 1 to t of every parameter, and return whether the step was taken."""
    makes_state: Tensor | None = None
    if all([isinstance(group.lr, Tensor) or group.lr == 0 for group in groups]):  # noqa: C419
        # torch.distributed.checkpoint makes state by a first step with lr 0 and gradients 0: t must stay 0.
        makes_state = (rows.raw_grad_sq.sum() == 0) & (rows.skipped.sum() == 0)
        for part in parts:
            makes_state = makes_state & (torch.stack(part.steps).max().to(makes_state.device) == 0)
        for group in groups:
            if isinstance(group.lr, Tensor):
                makes_state = makes_state & (group.lr.to(makes_state.device) == 0)
    if should_step is None and makes_state is None:
        for part in parts:
            torch._foreach_add_(part.steps, 1)
        return True
    applied = torch.ones((), dtype=torch.bool, device=rows.rows.device)
    applied = applied if should_step is None else applied & should_step.to(applied.device)
    applied = applied if makes_state is None else applied & ~makes_state
    for part in parts:
        torch._foreach_add_(part.steps, [applied.to(part.steps[0])] * len(part.steps))  # torch 2.6 would read a tensor
    waits = not applied.is_cpu or torch.compiler.is_compiling()
    return applied if waits else bool(applied)
