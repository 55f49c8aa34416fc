"""A whole step by row in one call of the C kernel, where no other rank, scaler or clipping takes part.

It computes what `acmo.backends.rows` with `acmo.backends.row_kernel.step_part` computes, to the same bits. Small nets
need it: there a step is its Python, and every operation on a tensor counts.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain, repeat
from math import inf, prod, sqrt
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import native
from acmo.backends.row_kernel import CODES, PROPAGATE, SCOPE_CODES, TABLE_ROWS, UNIT
from acmo.backends.tensor_layout import are_plain
from acmo.rounding import rounds_randomly
from acmo.scopes import count_entries
from acmo.step_data import GroupOptions, Part, StepFunction, StepOptions, StepRecord

get_shape = attrgetter("shape")


class Lists(NamedTuple):
    """The tensors of all parts, part after part."""

    params: list[Tensor]
    moments: list[Tensor]
    grads: list[Tensor]
    steps: list[Tensor]
    scales: list[Tensor]


def prepare(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions) -> StepFunction | None:
    """Return the function that executes this step in one call; None where the kernel alone cannot do it.

    Quick: it is asked at every step. `acmo.backends.row_kernel.can_step` has the same conditions for one part.
    """
    if (
        not parts
        or options.process_group is not None
        or options.grad_scale is not None
        or options.found_inf is not None
        or options.nonfinite == "raise"
        or options.max_grad_norm not in (None, inf)
        or callable(options.psi)
    ):
        return None
    for group in groups:
        if isinstance(group.lr, Tensor) or group.lr == 0:
            return None
    lists = Lists([], [], [], [], [])
    for part in parts:
        p = part.params[0]
        if (
            part.shards
            or part.scope == "spectral"
            or not p.is_cpu
            or p.dtype not in native.DTYPE_CODES
            or part.moments[0].dtype not in CODES
            or rounds_randomly(part, groups[part.group])
            or (part.scope == "column" and part.owners[0].is_complex())
            or not are_plain(part)
        ):
            return None
        for joined, own in zip(
            lists, (part.params, part.moments, part.grads, part.steps, part.moment_scales), strict=True
        ):
            joined += own
    return partial(step, lists=lists)


def step(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, *, lists: Lists) -> StepRecord:
    """Execute one step that `prepare` accepts."""
    arguments, numbers = pack(parts, groups, options, lists)
    table = torch.empty(TABLE_ROWS, arguments[0], dtype=torch.float64, device="cpu")
    rows_skipped = native.required().rows(arguments, numbers, table.data_ptr())
    increment_version(lists.params + lists.moments + lists.scales)
    places = tuple([(part.group, tuple(part.indices)) for part in parts])
    row_places = list_places(places)
    return StepRecord(table, 1.0, True, (), places, row_places=row_places, rows_skipped=rows_skipped)


@lru_cache(maxsize=256)
def list_places(places: tuple[tuple[int, tuple[int, ...]], ...]) -> tuple[tuple[int, int], ...]:
    """Return the group and the position of every tensor."""
    return tuple([(group, i) for group, indices in places for i in indices])


def pack(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, lists: Lists
) -> tuple["array[int]", "array[float]"]:
    """Return the arguments of acmo_rows, in the order that `acmo.native.Kernel.rows` names."""
    address, n = Tensor.data_ptr, len(lists.params)
    kinds = [(p.scope, p.params[0].dtype, p.moments[0].dtype, p.owners[0].is_complex(), len(p.params)) for p in parts]
    flags = UNIT * options.unit_step | PROPAGATE * (options.nonfinite == "propagate")
    static, roots = describe(tuple(kinds), tuple(map(get_shape, lists.params)), flags)
    scales = [map(address, p.moment_scales) if p.moment_scales else repeat(0, len(p.params)) for p in parts]
    values = [
        *(n, torch.get_num_threads()),
        *map(address, lists.params),
        *map(address, lists.moments),
        *map(address, lists.grads),
        *chain(*scales),
        *static,
        *map(address, lists.steps),
    ]
    numbers: list[float] = []
    if len(groups) == 1:
        for letter in read_numbers(groups[0]):
            numbers += [letter] * n
    else:
        for letters in zip(*[read_numbers(groups[part.group]) for part in parts], strict=True):
            for part, letter in zip(parts, letters, strict=True):
                numbers += [letter] * len(part.params)
    return array("q", values), array("d", numbers + roots)


def read_numbers(group: GroupOptions) -> tuple[float, ...]:
    """Return s, λ, β, δ, α and κ."""
    s, lr, theta_factor = -1.0 if group.maximize else 1.0, float(group.lr), float(group.theta_factor)
    return s, group.coupled_decay, group.momentum, group.delta, lr, theta_factor


Kind = tuple[str, torch.dtype, torch.dtype, bool, int]  # of a part: scope, dtypes of θ and m, is complex, tensors


@lru_cache(maxsize=256)  # at every step the same; shapes are part of the key, so that what is read cannot be too long
def describe(parts: tuple[Kind, ...], shapes: tuple[torch.Size, ...], flags: int) -> tuple[list[int], list[float]]:
    """Return the columns that follow from shapes, dtypes and options, rows to index, and √n of every tensor."""
    kinds = [kind for kind in parts for _ in range(kind[-1])]
    rows = [shape[0] if len(shape) > 1 else 1 for shape in shapes]
    columns = [prod(shape) // r if r else 0 for r, shape in zip(rows, shapes, strict=True)]
    codes = [
        *[SCOPE_CODES[scope] for scope, *_ in kinds],
        *[CODES[dtype] for _, dtype, *_ in kinds],
        *[CODES[dtype] for _, _, dtype, *_ in kinds],
    ]
    entries = [
        count_entries(scope, shape[:-1] if pairs else shape)
        for (scope, _, _, pairs, _), shape in zip(kinds, shapes, strict=True)
    ]
    n = len(shapes)
    return [*rows, *columns, *codes, *[flags] * n, *[0] * (2 * n)], list(map(sqrt, entries))
