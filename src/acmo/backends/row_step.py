"""A whole step by row in one call of the C kernel, where no other rank, scaler or clipping takes part.

It computes what `acmo.backends.rows` with `acmo.backends.row_kernel.step_part` computes, to the same bits. Small nets
need it: there a step is its Python, and every operation on a tensor counts.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from math import inf, prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import native
from acmo.backends.row_kernel import CODES, PROPAGATE, SCOPE_CODES, TABLE_ROWS, UNIT, RowNumbers
from acmo.backends.tensor_layout import are_plain
from acmo.rounding import rounds_randomly
from acmo.scopes import count_entries
from acmo.step_data import GroupOptions, Part, StepFunction, StepOptions, StepRecord


class PartKind(NamedTuple):
    """What a step by row must know of a part beside its numbers and addresses."""

    group: int
    scope: str
    dtype: torch.dtype
    moment_dtype: torch.dtype
    is_complex: bool
    shapes: tuple[torch.Size, ...]


class PartKey(NamedTuple):
    """What identifies a part from one step to the next: its tensors are the same ones while these are."""

    matches: Callable[..., bool]  # of its layout, which is not kept itself: it keeps the call
    group: int
    indices: Sequence[int]


class RowCall(NamedTuple):
    """What all calls for the same parts have in common."""

    flags: int
    keys: list[PartKey]
    tensors: list[Tensor]  # θ, m and t of all parts, in the order of the kernel's addresses
    scales: list[Tensor | None]  # of int8 moments, one per parameter; empty where none is int8
    written: list[Tensor]  # whose version counters change
    columns: "array[int]"  # the kernel's layout of the call
    places: tuple[tuple[int, tuple[int, ...]], ...]  # as in `StepRecord`
    row_places: tuple[tuple[int, int], ...]

    def is_for(self, parts: Sequence[Part], flags: int) -> bool:
        """Return whether a step's parts are those of this call."""
        if len(parts) != len(self.keys) or flags != self.flags:
            return False
        for (matches, group, indices), part in zip(self.keys, parts, strict=True):
            layout = part.layout
            if layout is None or layout.matches is not matches or group != part.group or indices is not part.indices:
                return False
        return True


def prepare(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions) -> StepFunction | None:
    """Return the function that executes this step in one call; None where the kernel alone cannot do it.

    Quick: it is asked at every step. Tensors with gaps and spectral parts are left to `acmo.backends.row_kernel`.
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
    may_round = False
    for group in groups:
        if isinstance(group.lr, Tensor) or group.lr == 0:
            return None
        may_round = may_round or group.first_number is not None
    if may_round and any([rounds_randomly(part, groups[part.group]) for part in parts]):  # noqa: C419
        return None
    call = find_call(parts, UNIT * options.unit_step | PROPAGATE * (options.nonfinite == "propagate"))
    return None if call is None else partial(step, call=call)


def has_call(parts: Sequence[Part]) -> bool:
    """Return whether a call is kept for parts that begin like these; then all of them were on the CPU."""
    return bool(parts) and parts[0].layout is not None and parts[0].layout.row_call is not None


def find_call(parts: Sequence[Part], flags: int) -> RowCall | None:
    """Return the call for these parts, which is kept for as long as their layouts hold; None if there can be none."""
    first = parts[0].layout
    if first is not None and first.row_call is not None:
        known: RowCall = first.row_call
        if known.is_for(parts, flags):
            return known
        first.row_call = None  # another part may have moved to a GPU
    if any([part.scope == "spectral" or part.shards for part in parts]):  # noqa: C419
        return None
    kinds = []
    for part in parts:
        kind = find_kind(part)
        if kind is None:
            return None
        kinds.append(kind)
    call = make_call(parts, tuple(kinds), flags)
    if first is not None and len(call.keys) == len(parts):
        first.row_call = call
    return call


def find_kind(part: Part) -> PartKind | None:
    """Return the kind of a part that the kernel can step, else None."""
    p, m = part.params[0], part.moments[0]
    is_complex = part.owners[0].is_complex()
    if (
        not p.is_cpu
        or p.dtype not in native.DTYPE_CODES
        or m.dtype not in CODES
        or (part.scope == "column" and is_complex)
        or not are_plain(part)
    ):
        return None
    return PartKind(part.group, part.scope, p.dtype, m.dtype, is_complex, tuple([x.shape for x in part.params]))


def make_call(parts: Sequence[Part], kinds: tuple[PartKind, ...], flags: int) -> RowCall:
    """Collect what is the same at every step."""
    params, moments, steps = (
        list(chain.from_iterable(lists))
        for lists in ([p.params for p in parts], [p.moments for p in parts], [p.steps for p in parts])
    )
    scales: list[Tensor | None] = []
    if any(part.moment_scales for part in parts):
        for part in parts:
            scales += part.moment_scales or [None] * len(part.params)
    return RowCall(
        flags,
        [PartKey(part.layout.matches, part.group, part.indices) for part in parts if part.layout is not None],
        params + moments + steps,
        scales,
        [*params, *moments, *[scale for scale in scales if scale is not None]],
        describe(kinds, flags),
        tuple([(part.group, tuple(part.indices)) for part in parts]),
        tuple([(part.group, i) for part in parts for i in part.indices]),
    )


@lru_cache(maxsize=256)  # the shapes are part of the key, so that what is read cannot be too long
def describe(kinds: tuple[PartKind, ...], flags: int) -> "array[int]":
    """Return the layout that `acmo.native.Kernel.rows` reads, from shapes, dtypes and options."""
    tensors = [(kind, shape) for kind in kinds for shape in kind.shapes]
    rows = [shape[0] if len(shape) > 1 else 1 for _, shape in tensors]
    n = len(tensors)
    columns = (
        rows,
        [prod(shape) // r if r else 0 for r, (_, shape) in zip(rows, tensors, strict=True)],
        [SCOPE_CODES[kind.scope] for kind, _ in tensors],
        [CODES[kind.dtype] for kind, _ in tensors],
        [CODES[kind.moment_dtype] for kind, _ in tensors],
        [count_entries(kind.scope, shape[:-1] if kind.is_complex else shape) for kind, shape in tensors],
        [flags] * n,
        [kind.group for kind, _ in tensors],
        [0] * n,  # seeds and first indices, of stochastic rounding
        [0] * n,
    )
    return array("q", [n, *chain.from_iterable(columns)])


def step(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, *, call: RowCall) -> StepRecord:
    """Execute one step that `prepare` accepts."""
    address = Tensor.data_ptr
    addresses = array("q", list(map(address, call.tensors)))
    for part in parts:
        addresses.extend(map(address, part.grads))
    if call.scales:
        addresses.extend([0 if scale is None else address(scale) for scale in call.scales])
    numbers = array("d", list(chain.from_iterable(map(read_numbers, groups))))
    increment_version(call.written)  # before the call: after it, Python's code and data have left the caches
    table = torch.empty(TABLE_ROWS, call.columns[0], dtype=torch.float64, device="cpu")
    threads = torch.get_num_threads()
    rows_skipped = native.required().rows(addresses, call.columns, numbers, table.data_ptr(), threads)
    return StepRecord(table, 1.0, True, (), call.places, row_places=call.row_places, rows_skipped=rows_skipped)


def read_numbers(group: GroupOptions) -> RowNumbers:
    """Return a group's numbers, where nothing but maximize is a factor on the gradient."""
    s, lr, theta_factor = -1.0 if group.maximize else 1.0, float(group.lr), float(group.theta_factor)
    return RowNumbers(s, group.coupled_decay, group.momentum, group.delta, lr, theta_factor)
