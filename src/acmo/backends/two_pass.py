"""A step in two passes over the tensors: sums of squares, then the scalars between them, then m and θ.

The one loop over parts for every fast path that is neither by row nor one C call. A part's passes are functions of
`acmo.backends.foreach` or of `acmo.backends.kernel_ops`; nothing here waits for a device, except to raise.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from acmo import sharding
from acmo.backends.scalars import PartScalars, Scalars, compute_scalars
from acmo.step_data import NORM_ROWS, GroupOptions, Part, StepOptions, StepRecord


class Passes(Protocol):
    """The two passes over the tensors of one part."""

    def compute_sums(self, part: Part, group: GroupOptions, options: StepOptions, /) -> Tensor:
        """Pass 1: return the fields of `PartSums` as rows: 2, 5 with coupled decay, or 7 for unit steps."""
        ...

    def update(self, part: Part, group: GroupOptions, options: StepOptions, scalars: PartScalars, /) -> Tensor:
        """Pass 2: write m and θ in place, if the step is taken; return ‖m‖² of each moment then, ``[n]``."""
        ...


def step(
    parts: Sequence[Part],
    groups: Sequence[GroupOptions],
    options: StepOptions,
    passes: Sequence[Passes],
) -> StepRecord:
    """Execute one step; ``passes`` has one entry per part."""
    device = parts[0].params[0].device if parts else sharding.find_device(options.process_group)
    dtype = torch.float32 if device.type == "mps" else torch.float64
    rows = []
    for part, way in zip(parts, passes, strict=True):
        rows.append(way.compute_sums(part, groups[part.group], options).to(device, dtype))
    ranks = None
    if options.sum_over_shards is not None:
        ranks = options.sum_over_shards(rows, parts, options.found_inf)
        rows = ranks.sums
    like = rows[0] if rows else torch.zeros((), dtype=dtype, device=device)
    scalars = compute_scalars(parts, groups, options, rows, ranks, like)
    moment_sqs = []
    for k, (part, way) in enumerate(zip(parts, passes, strict=True)):
        own = PartScalars(scalars.should_step, scalars.clip_scale, scalars.beta_hats[k], scalars.step_factors[k])
        moment_sqs.append(way.update(part, groups[part.group], options, own).to(device, dtype))
    return write_back(parts, options, scalars, moment_sqs)


def write_back(
    parts: Sequence[Part], options: StepOptions, scalars: Scalars, moment_sqs: Sequence[Tensor]
) -> StepRecord:
    """Write t and β̂ into the state, and return what the step computed."""
    tables = []
    for k, part in enumerate(parts):
        scatter(part.steps, scalars.old_steps[k], scalars.should_step, scalars.steps[k])
        if part.beta_hats:
            old = torch.stack(part.beta_hats).reshape(len(part.params)).to(scalars.kept_beta_hats[k])
            scatter(part.beta_hats, old, scalars.should_step, scalars.kept_beta_hats[k])
        own, beta_hats = scalars.sums[k], scalars.beta_hats[k].expand(len(part.params))
        tables.append(torch.stack((own.raw_grad_sq, scalars.grad_sqs[k], own.moment_sq, moment_sqs[k], beta_hats)))
    norms = tables[0] if len(tables) == 1 else torch.cat([scalars.clip_scale.new_zeros(NORM_ROWS, 0), *tables], dim=1)
    return StepRecord(
        norms,
        1.0 if options.max_grad_norm in (None, torch.inf) else scalars.clip_scale.reshape(1),
        scalars.should_step,
        torch.cat(list(moment_sqs)) if len(moment_sqs) > 1 else moment_sqs[0] if moment_sqs else (),
        tuple([(part.group, tuple(part.indices)) for part in parts]),
        scalars.all_ranks,
        scalars.active_sets,
        late=options.sum_over_shards is not None or options.process_group is not None,
    )


def scatter(targets: list[Tensor], old: Tensor, should_step: Tensor, values: Tensor) -> None:
    """Write one value per tensor, 0-dim or ``[n]``, into n tensors of one element, if the step is taken."""
    new = torch.where(should_step, values, old)
    torch._foreach_copy_(targets, list(new.to(targets[0].device).unbind()))
