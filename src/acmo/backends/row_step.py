"""A whole step by row in one call of the C kernel, where no other rank, scaler or clipping takes part.

It computes what `acmo.backends.rows` with `acmo.backends.row_kernel.step_part` computes, to the same bits. Small nets
need it: there a step is its Python, and every operation on a tensor counts.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache, partial
from math import inf, prod, sqrt
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


class PartKind(NamedTuple):
    """What a step by row must know of a part beside its numbers and addresses."""

    scope: str
    dtype: torch.dtype
    moment_dtype: torch.dtype
    is_complex: bool
    shapes: tuple[torch.Size, ...]


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
    kinds = []
    for part in parts:
        known = None if part.layout is None else part.layout.row_kinds.get((part.indices[0], part.scope))
        kind = known or find_kind(part)
        if kind is None or rounds_randomly(part, groups[part.group]):
            return None
        kinds.append(kind)
    return partial(step, kinds=tuple(kinds))


def find_kind(part: Part) -> PartKind | None:
    """Return the kind of a part that the kernel can step, else None; it is kept for as long as the layout holds."""
    p, m = part.params[0], part.moments[0]
    if (
        part.shards
        or part.scope == "spectral"
        or not p.is_cpu
        or p.dtype not in native.DTYPE_CODES
        or m.dtype not in CODES
        or (part.scope == "column" and part.owners[0].is_complex())
        or not are_plain(part)
    ):
        return None
    kind = PartKind(part.scope, p.dtype, m.dtype, part.owners[0].is_complex(), tuple([x.shape for x in part.params]))
    if part.layout is not None:
        part.layout.row_kinds[part.indices[0], part.scope] = kind
    return kind


def step(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, *, kinds: tuple[PartKind, ...]
) -> StepRecord:
    """Execute one step that `prepare` accepts."""
    arguments, numbers = pack(parts, groups, options, kinds)
    table = torch.empty(TABLE_ROWS, arguments[0], dtype=torch.float64, device="cpu")
    rows_skipped = native.required().rows(arguments, numbers, table.data_ptr())
    for part in parts:
        increment_version([*part.params, *part.moments, *part.moment_scales])
    places = tuple([(part.group, tuple(part.indices)) for part in parts])
    row_places = list_places(places)
    return StepRecord(table, 1.0, True, (), places, row_places=row_places, rows_skipped=rows_skipped)


@lru_cache(maxsize=256)
def list_places(places: tuple[tuple[int, tuple[int, ...]], ...]) -> tuple[tuple[int, int], ...]:
    """Return the group and the position of every tensor."""
    return tuple([(group, i) for group, indices in places for i in indices])


def pack(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, kinds: tuple[PartKind, ...]
) -> tuple["array[int]", "array[float]"]:
    """Return the arguments of acmo_rows, in the order that `acmo.native.Kernel.rows` names."""
    flags = UNIT * options.unit_step | PROPAGATE * (options.nonfinite == "propagate")
    static, roots = describe(kinds, flags)
    n = len(roots)
    values: list[int] = [n, torch.get_num_threads()]
    for name in ("params", "moments", "grads"):
        for part in parts:
            values += map(Tensor.data_ptr, getattr(part, name))
    for part in parts:
        values += map(Tensor.data_ptr, part.moment_scales) if part.moment_scales else [0] * len(part.params)
    values += static
    for part in parts:
        values += map(Tensor.data_ptr, part.steps)
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


@lru_cache(maxsize=256)  # at every step the same; shapes are part of the key, so that what is read cannot be too long
def describe(parts: tuple[PartKind, ...], flags: int) -> tuple[list[int], list[float]]:
    """Return the columns that follow from shapes, dtypes and options, rows to index, and √n of every tensor."""
    tensors = [(kind, shape) for kind in parts for shape in kind.shapes]
    rows = [shape[0] if len(shape) > 1 else 1 for _, shape in tensors]
    columns = [prod(shape) // r if r else 0 for r, (_, shape) in zip(rows, tensors, strict=True)]
    codes = [
        *[SCOPE_CODES[kind.scope] for kind, _ in tensors],
        *[CODES[kind.dtype] for kind, _ in tensors],
        *[CODES[kind.moment_dtype] for kind, _ in tensors],
    ]
    entries = [count_entries(kind.scope, shape[:-1] if kind.is_complex else shape) for kind, shape in tensors]
    n = len(tensors)
    return [*rows, *columns, *codes, *[flags] * n, *[0] * (2 * n)], list(map(sqrt, entries))
