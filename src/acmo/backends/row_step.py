"""A whole step by row in one call of the C kernel, where no other rank, scaler or clipping takes part.

It computes what `acmo.backends.rows` with `acmo.backends.row_kernel.step_part` computes, to the same bits. Small nets
need it: there a step is its Python, and every operation on a tensor counts.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf, sqrt
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import native
from acmo.backends.row_kernel import CODES, PROPAGATE, SCOPE_CODES, TABLE_ROWS, UNIT, read_table
from acmo.scopes import count_entries
from acmo.step_data import GroupOptions, Part, StepOptions, StepRecord

T = TypeVar("T", int, float)


def is_simple(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions) -> bool:
    """Return whether one call does it all, for parts that `acmo.backends.row_kernel.can_step` accepts."""
    return (
        options.process_group is None
        and options.grad_scale is None
        and options.found_inf is None
        and options.nonfinite != "raise"
        and options.max_grad_norm in (None, inf)
        and not any([isinstance(group.lr, Tensor) or group.lr == 0 for group in groups])  # noqa: C419
        and all([all(map(Tensor.is_contiguous, chain(p.params, p.moments, p.grads))) for p in parts])  # noqa: C419
    )


def step(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions) -> StepRecord:
    """Execute one step; every part must be one that the kernel can step, and the step `is_simple`."""
    arguments, numbers = pack(parts, groups, options)
    table = torch.empty(TABLE_ROWS, arguments[0], dtype=torch.float64, device="cpu")
    rows_skipped = native.required().rows(arguments, numbers, table.data_ptr())
    for part in parts:
        increment_version([*part.params, *part.moments, *part.moment_scales])
    return StepRecord(
        table,
        1.0,
        True,
        (),
        tuple([(part.group, tuple(part.indices)) for part in parts]),
        rows=read_table(table),
        row_places=tuple([(part.group, i) for part in parts for i in part.indices]),
        rows_skipped=rows_skipped,
    )


def pack(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions
) -> tuple["array[int]", "array[float]"]:
    """Return the arguments of acmo_rows: every column that `acmo.native.Kernel.rows` names, over all parts."""
    flags = UNIT * options.unit_step | PROPAGATE * (options.nonfinite == "propagate")
    integers, numbers = zip(*[pack_part(part, groups[part.group], flags) for part in parts], strict=True)
    head = (sum([len(part.params) for part in parts]), torch.get_num_threads())
    return array("q", (*head, *join(integers))), array("d", join(numbers))


def pack_part(part: Part, group: GroupOptions, flags: int) -> tuple[list[Sequence[int]], list[Sequence[float]]]:
    """Return the columns of one part: of integers, and of numbers."""
    n, numels = len(part.params), list(map(Tensor.numel, part.params))
    if part.scope == "whole" and not part.moment_scales:
        rows, cols, entries = [1] * n, numels, list(map(Tensor.numel, part.owners))  # complex entries count once
    else:
        rows = [p.shape[0] if p.ndim > 1 else 1 for p in part.params]
        cols = [numel // r if r else 0 for numel, r in zip(numels, rows, strict=True)]
        entries = [count_entries(part.scope, owner.shape) for owner in part.owners]
    addresses = [list(map(Tensor.data_ptr, xs)) for xs in (part.params, part.moments, part.grads, part.moment_scales)]
    codes = (SCOPE_CODES[part.scope], CODES[part.params[0].dtype], CODES[part.moments[0].dtype], flags)
    none = [0] * n
    integers: list[Sequence[int]] = [
        *addresses[:3],
        addresses[3] or none,
        rows,
        cols,
        *[[code] * n for code in codes],
        *(none, none),  # seed and index of stochastic rounding
        list(map(Tensor.data_ptr, part.steps)),
    ]
    s, theta_factor = -1.0 if group.maximize else 1.0, float(group.theta_factor)
    letters = (s, group.coupled_decay, group.momentum, group.delta, float(group.lr), theta_factor)
    return integers, [*[[letter] * n for letter in letters], list(map(sqrt, entries))]


def join(columns: Sequence[Sequence[Sequence[T]]]) -> Iterator[T]:
    """Return the first column of every part, then the second of every part, and so on."""
    return chain.from_iterable(chain.from_iterable(zip(*columns, strict=True)))
