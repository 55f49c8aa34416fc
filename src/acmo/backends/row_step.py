"""A whole step by row in one call of the C kernel, where no other rank, scaler or clipping takes part.

It computes what `acmo.backends.rows` with `acmo.backends.row_kernel.step_part` computes, to the same bits. Small nets
need it: there a step is its Python, and every operation on a tensor counts.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from math import inf, prod, sqrt
from operator import attrgetter

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import native
from acmo.backends.row_kernel import CODES, PROPAGATE, SCOPE_CODES, TABLE_ROWS, UNIT
from acmo.rounding import rounds_randomly
from acmo.scopes import count_entries
from acmo.step_data import GroupOptions, Part, StepOptions, StepRecord

get_shape = attrgetter("shape")


def is_simple(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions) -> bool:
    """Return whether one call does it all, for parts that `acmo.backends.row_kernel.can_step` accepts."""
    return (
        options.process_group is None
        and options.grad_scale is None
        and options.found_inf is None
        and options.nonfinite != "raise"
        and options.max_grad_norm in (None, inf)
        and not any([p.scope == "spectral" or rounds_randomly(p, groups[p.group]) for p in parts])  # noqa: C419
        and not any([isinstance(group.lr, Tensor) or group.lr == 0 for group in groups])  # noqa: C419
        and all([all(map(Tensor.is_contiguous, chain(p.params, p.moments, p.grads))) for p in parts])  # noqa: C419
    )


def step(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions) -> StepRecord:
    """Execute one step; every part must be one that the kernel can step, and the step `is_simple`."""
    arguments, numbers = pack(parts, groups, options)
    table = torch.empty(TABLE_ROWS, arguments[0], dtype=torch.float64, device="cpu")
    rows_skipped = native.required().rows(arguments, numbers, table.data_ptr())
    increment_version([x for part in parts for x in chain(part.params, part.moments, part.moment_scales)])
    return StepRecord(
        table,
        1.0,
        True,
        (),
        tuple([(part.group, tuple(part.indices)) for part in parts]),
        row_places=tuple([(part.group, i) for part in parts for i in part.indices]),
        rows_skipped=rows_skipped,
    )


def pack(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions
) -> tuple["array[int]", "array[float]"]:
    """Return the arguments of acmo_rows, in the order that `acmo.native.Kernel.rows` names."""
    address, flags = Tensor.data_ptr, UNIT * options.unit_step | PROPAGATE * (options.nonfinite == "propagate")
    counts = [len(part.params) for part in parts]
    kinds = [(p.scope, p.params[0].dtype, p.moments[0].dtype, p.owners[0].is_complex()) for p in parts]
    static, roots = describe(tuple(zip(kinds, [tuple(map(get_shape, p.params)) for p in parts], strict=True)), flags)
    values = [
        *(sum(counts), torch.get_num_threads()),
        *[address(x) for part in parts for x in part.params],
        *[address(x) for part in parts for x in part.moments],
        *[address(x) for part in parts for x in part.grads],
        *chain(*[map(address, part.moment_scales) if part.moment_scales else [0] * len(part.params) for part in parts]),
        *static,
        *[address(x) for part in parts for x in part.steps],
    ]
    numbers: list[float] = []
    for letter in zip(*[read_numbers(groups[part.group]) for part in parts], strict=True):
        for count, value in zip(counts, letter, strict=True):
            numbers += [value] * count
    return array("q", values), array("d", numbers + roots)


def read_numbers(group: GroupOptions) -> tuple[float, ...]:
    """Return s, λ, β, δ, α and κ."""
    s, lr, theta_factor = -1.0 if group.maximize else 1.0, float(group.lr), float(group.theta_factor)
    return s, group.coupled_decay, group.momentum, group.delta, lr, theta_factor


Kind = tuple[str, torch.dtype, torch.dtype, bool]  # of a part: scope, dtypes of θ and m, whether it is complex


@lru_cache(maxsize=256)  # at every step the same; shapes are part of the key, so that what is read cannot be too long
def describe(parts: tuple[tuple[Kind, tuple[torch.Size, ...]], ...], flags: int) -> tuple[list[int], list[float]]:
    """Return the columns that follow from shapes, dtypes and options, rows to index, and √n of every tensor."""
    tensors = [(kind, shape) for kind, shapes in parts for shape in shapes]
    rows = [shape[0] if len(shape) > 1 else 1 for _, shape in tensors]
    columns = [prod(shape) // r if r else 0 for r, (_, shape) in zip(rows, tensors, strict=True)]
    kinds = [kind for kind, _ in tensors]
    codes = [
        *[SCOPE_CODES[scope] for scope, *_ in kinds],
        *[CODES[dtype] for _, dtype, *_ in kinds],
        *[CODES[dtype] for _, _, dtype, _ in kinds],
    ]
    entries = [count_entries(scope, shape[:-1] if pairs else shape) for (scope, _, _, pairs), shape in tensors]
    n = len(tensors)
    return [*rows, *columns, *codes, *[flags] * n, *[0] * (2 * n)], list(map(sqrt, entries))
