"""A whole step at global, group or tensor scope: four launches, whatever the number of tensors, and no waiting."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo.backends.scalars import refuse_nonfinite
from acmo.backends.triton import fields, pass_kernels, scalar_kernels, tensor_kernels
from acmo.backends.triton.tables import PassTables, kind_of
from acmo.step_data import GroupOptions, NonFiniteGradient, Part, StepOptions, StepRecord

BLOCK, WARPS = 2048, 8  # of the passes: 8 entries per thread
TILE, LANES = 32, 1024  # of the scalars
SCOPES = {"global": fields.GLOBAL_SCOPE, "group": fields.GROUP_SCOPE, "tensor": fields.TENSOR_SCOPE}
TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int8: tl.int8,
}
KEPT_TABLES = 4  # sets of tensors that take turns
KEPT_PARTS = 64


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which launches are for a device: Triton launches on the current one."""
    if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
        return torch.cuda.device(device)
    return nullcontext()


def step(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, cache: dict[Any, Any]
) -> StepRecord:
    """Execute one step; every part must be one that `acmo.backends.triton.fit.can_step` accepts.

    Args:
      parts, groups, options: as every backend gets them.
      cache: of tables, by the set of tensors; the optimizer keeps it between steps.
    """
    places = tuple([(part.group, tuple(part.indices)) for part in parts])
    tables = find_tables(parts, groups, places, cache)
    device = parts[0].params[0].device
    known = knows_moments(parts, tables)
    with on_device(device):
        launch(parts, groups, options, tables, known)
    if not tables.launched:
        tables.launched = True
        skip_global_checks(
            pass_kernels.sum_chunks, scalar_kernels.find_scalars, pass_kernels.update_chunks, tensor_kernels.finish_step
        )
    for part in parts:  # autograd must notice a step between forward and backward
        increment_version(part.params)
        increment_version(part.moments)
    applied = tables.applied_flag
    if options.nonfinite == "raise" and not applied and not (options.found_inf is not None and options.found_inf):
        raw, grad = tables.sums[fields.RAW_SQ.value], tables.coefficients[:, fields.GRAD_SQ.value]
        try:
            refuse_nonfinite(parts, raw, grad, raw.sum())
        except NonFiniteGradient:
            tables.counts[fields.STEPS_SKIPPED.value] -= 1  # the kernel counted a step that ends with an error
            raise
    return StepRecord(tables.norms, tables.clip_scale, applied, tables.moment_sqs, places, kernel_log=tables.log)


def skip_global_checks(*kernels: Any) -> None:
    """Let Triton not compare every constant at every launch: ours never change, and there are dozens."""
    for kernel in kernels:
        used = getattr(kernel, "used_global_vals", None)
        if used is not None:
            used.clear()


def find_tables(
    parts: Sequence[Part], groups: Sequence[GroupOptions], places: Any, cache: dict[Any, Any]
) -> PassTables:
    """Return the tables for this set of tensors, with buffers for its sizes."""
    layouts = [part.layout for part in parts]
    numbers = [(len(group.idle_steps), group.first_number) for group in groups], BLOCK
    found = cache.get(places)
    if found is not None and found[:2] == (layouts, numbers) and None not in layouts:  # then sizes and dtypes are, too
        tables: PassTables = found[3]
        return tables
    sizes = [list(map(Tensor.numel, part.params)) for part in parts], [kind_of(part) for part in parts]
    if found is not None and found[1:3] == (numbers, sizes) and found[3].owners.device == parts[0].params[0].device:
        tables = found[3]
    else:
        tables = PassTables(parts, groups, BLOCK, find_counts(cache, parts[0].params[0].device))
        keep_room(cache, places)
    cache[places] = (layouts, numbers, sizes, tables)
    return tables


def find_counts(cache: dict[Any, Any], device: torch.device) -> Tensor:
    """Return the counts of steps taken and skipped, which all tables of an optimizer share."""
    if device not in cache:
        cache[device] = torch.zeros(fields.COUNTS.value, dtype=torch.int32, device=device)
    counts: Tensor = cache[device]
    return counts


def keep_room(cache: dict[Any, Any], places: tuple[Any, ...]) -> None:
    """Drop the oldest tables, if there are many: of whole sets of tensors, or of single parts."""
    is_part = places[0] == "part"
    kept = [key for key in cache if isinstance(key, tuple) and (key[0] == "part") == is_part and key != places]
    for key in kept[: max(0, len(kept) + 1 - (KEPT_PARTS if is_part else KEPT_TABLES))]:
        del cache[key]


def knows_moments(parts: Sequence[Part], tables: PassTables) -> bool:
    """Return whether ‖m‖² of every moment is in the table of sums already; put it there where a part has it."""
    sqs = [part.moment_sqs for part in parts]
    if any([own is None for own in sqs]):  # noqa: C419
        return False
    at, start = tables.moment_sqs.data_ptr(), 0
    in_place = True
    for part, own in zip(parts, sqs, strict=True):
        in_place = in_place and isinstance(own, Tensor) and own.data_ptr() == at + 8 * start
        start += len(part.params)
    if not in_place:
        tables.moment_sqs.copy_(torch.cat([torch.as_tensor(own).to(tables.moment_sqs) for own in sqs]))
    return True


def launch(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, tables: PassTables, known: bool
) -> None:
    """Launch the kernels of one step."""
    sqrt = options.psi == "sqrt"
    addresses = [
        list(map(Tensor.data_ptr, chain.from_iterable(own))) for own in zip(*map(list_tensors, parts), strict=True)
    ]
    steps, beta_hats = addresses[3], addresses[4]
    if any([group.idle_steps for group in groups]) or len(groups) > 1:  # noqa: C419
        steps, beta_hats = list_clocks(parts, groups)
    tensors = tables.update_tensors(tuple(addresses if sqrt else addresses[:4]))
    clocks = tables.update_clocks(steps, beta_hats)
    limit = math.inf if options.max_grad_norm is None else options.max_grad_norm
    numbers = tables.update_numbers(limit, groups).view(torch.float64)
    coupled = any([group.coupled_decay for group in groups])  # noqa: C419
    n, chunks, unit = tables.n, tables.chunks, options.unit_step
    wide_level = all([part.params[0].dtype == torch.float64 for part in parts])  # noqa: C419
    for (p, m, g), _, first, count in tables.launches:
        pass_kernels.sum_chunks[(count,)](
            tensors, tables.owners, numbers, tables.partials, options.grad_scale, first, chunks,
            TYPES[p], TYPES[m], TYPES[g], wide_type(p), coupled, unit, not known, BLOCK, num_warps=WARPS,
        )  # fmt: skip
    scalar_kernels.find_scalars[(1,)](
        tensors, clocks, numbers, tables.partials, tables.sums, tables.groups, tables.coefficients,
        tables.clip_scale, tables.flags, tables.counts, tables.applied_byte, options.grad_scale, options.found_inf,
        n, chunks, len(groups), SCOPES[options.norm_scope], coupled, unit, sqrt,
        options.max_grad_norm is not None and limit < math.inf, options.nonfinite != "propagate",
        unit or not known, 1e-14 if wide_level else 1e-6, TILE, LANES, num_warps=8,
    )  # fmt: skip
    for (p, m, g), random, first, count in tables.launches:
        pass_kernels.update_chunks[(count,)](
            tensors, tables.owners, tables.coefficients, tables.partials, tables.flags, first, chunks,
            TYPES[p], TYPES[m], TYPES[g], wide_type(p), coupled, random, BLOCK, num_warps=WARPS,
        )  # fmt: skip
    tensor_kernels.finish_step[(-(-n // TILE),)](
        tensors, tables.partials, tables.sums, tables.coefficients, tables.norms, tables.flags, n, chunks, sqrt, TILE,
        num_warps=4,
    )  # fmt: skip


def list_tensors(part: Part) -> tuple[list[Tensor], ...]:
    """Return the tensors of a part whose addresses the kernels need."""
    return part.params, part.moments, part.grads, part.steps, part.beta_hats


def list_clocks(parts: Sequence[Part], groups: Sequence[GroupOptions]) -> tuple[list[int], list[int]]:
    """Return the addresses of t and β̂ of every parameter that has state, group by group."""
    steps: list[int] = []
    beta_hats: list[int] = []
    for k, group in enumerate(groups):
        own = [part for part in parts if part.group == k]
        steps += map(Tensor.data_ptr, chain(*(part.steps for part in own), group.idle_steps))
        beta_hats += map(Tensor.data_ptr, chain(*(part.beta_hats for part in own), group.idle_beta_hats))
    return steps, beta_hats


def wide_type(dtype: torch.dtype) -> Any:
    """Return the type of the arithmetic: half precision is only for storage."""
    return tl.float64 if dtype == torch.float64 else tl.float32
