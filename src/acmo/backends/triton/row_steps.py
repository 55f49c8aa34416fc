"""A step by row: two launches for a model of matrices, two more where a tensor goes by column or is one long row."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo.backends.triton import column_kernels, row_finish, row_kernels, row_tables, steps
from acmo.backends.triton.row_tables import RowTables
from acmo.backends.triton.steps import TYPES, find_counts, keep_room, on_device, skip_global_checks
from acmo.backends.triton.tables import kind_of
from acmo.step_data import GroupOptions, Part, RowNorms, StepOptions, StepRecord

WARPS = 4


def can_step_together(parts: Sequence[Part], options: StepOptions) -> bool:
    """Return whether one call can step all parts: not where every gradient must be read before any row is stepped."""
    return options.max_grad_norm is None and options.nonfinite != "raise"


def step(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, cache: dict[Any, Any]
) -> StepRecord:
    """Execute one step; every part must be one that `acmo.backends.triton.fit.can_step_rows` accepts."""
    places = tuple([(part.group, tuple(part.indices)) for part in parts])
    tables = find_tables(parts, len(groups), places, cache, find_counts(cache, parts[0].params[0].device))
    with on_device(parts[0].params[0].device):
        launch(parts, groups, options, tables, options.grad_scale, None, options.found_inf, count=True)
    if not tables.launched:
        tables.launched = True
        skip_global_checks(
            row_kernels.step_rows, row_finish.finish_rows, column_kernels.find_line_scalars, column_kernels.update_lines
        )
    for part in parts:
        increment_version([*part.params, *part.moments, *part.moment_scales])
    row_places = tuple([(part.group, i) for part in parts for i in part.indices])
    return StepRecord(
        tables.norms, tables.clip_scale, tables.applied_flag, (), places, rows=tables.report, row_places=row_places,
        kernel_log=tables.log,
    )  # fmt: skip


def step_part(
    part: Part,
    group: GroupOptions,
    options: StepOptions,
    factor: Tensor | None,
    should_step: Tensor | None,
    cache: dict[Any, Any],
) -> RowNorms:
    """Step one part in place, as `acmo.backends.foreach_rows.step_part` does: beside others, or after clipping."""
    device = part.params[0].device
    own = part._replace(group=0)
    tables = find_tables([own], 1, ("part", part.group, part.scope, tuple(part.indices)), cache, None)
    plain = group._replace(maximize=False)  # the factor has the sign
    found_inf = None if should_step is None else (~should_step).to(device, torch.float32)
    factor = None if factor is None else factor.to(device)
    tables.found.zero_()
    with on_device(device):
        launch([own], [plain], options, tables, None, factor, found_inf, count=False)
    increment_version([*part.params, *part.moments, *part.moment_scales])
    return RowNorms(*tables.found.clone().unbind())


def find_tables(
    parts: Sequence[Part], n_groups: int, places: Any, cache: dict[Any, Any], counts: Tensor | None
) -> RowTables:
    """Return the tables for these tensors, built again when an address, a size or a dtype has changed."""
    lists = zip(*[(part.params, part.moments, part.grads, part.steps) for part in parts], strict=True)
    addresses = [list(map(Tensor.data_ptr, chain.from_iterable(own))) for own in lists]
    scales: list[int] = []
    if any([part.moment_scales for part in parts]):  # noqa: C419
        for part in parts:
            scales += map(Tensor.data_ptr, part.moment_scales) if part.moment_scales else [0] * len(part.params)
    addresses.append(scales)
    shapes = [list(map(Tensor.size, part.params)) for part in parts]
    kinds = [(kind_of(part), part.scope) for part in parts]
    key = (addresses, shapes, kinds, n_groups, row_tables.SPLIT_ABOVE)
    found = cache.get(places)
    if found is None or found[0] != key:
        tables = RowTables(parts, n_groups, tuple(addresses), counts)
        if found is not None and found[0][1:] == key[1:]:
            tables.keep_record(found[1])
        keep_room(cache)
        cache[places] = found = (key, tables)
    result: RowTables = found[1]
    return result


def launch(
    parts: Sequence[Part],
    groups: Sequence[GroupOptions],
    options: StepOptions,
    tables: RowTables,
    grad_scale: Tensor | None,
    factor: Tensor | None,
    found_inf: Tensor | None,
    count: bool,
) -> None:
    """Launch the kernels of one step."""
    tensors = tables.update_tensors()
    numbers = tables.update_numbers(groups).view(torch.float64)
    coupled = any([group.coupled_decay for group in groups])  # noqa: C419
    unit, propagate = options.unit_step, options.nonfinite == "propagate"
    for (p, m, g), aligned, first, programs in tables.rows.launches:
        row_kernels.step_rows[(programs,)](
            tensors, tables.row_owners, numbers, tables.stats, tables.partials, grad_scale, factor, found_inf, first,
            tables.row_owners.shape[1], tables.slots, tables.partial_count, TYPES[p], TYPES[m], TYPES[g],
            TYPES[wide_dtype(p, m)], coupled, unit, propagate, False, aligned, rounding_level(p, m, False),
            row_tables.LANES, num_warps=WARPS,
        )  # fmt: skip
    if tables.lines.total:
        (p, m, _), _, _, _ = tables.lines.launches[0]
        column_kernels.find_line_scalars[(tables.lines.total,)](
            tensors, tables.line_owners, numbers, tables.stats, tables.partials, tables.coefficients, found_inf,
            tables.line_owners.shape[1], tables.slots, tables.partial_count, unit, propagate,
            rounding_level(p, m, True), num_warps=8,
        )  # fmt: skip
    for (p, m, g), aligned, first, programs in tables.updates.launches:
        column_kernels.update_lines[(programs,)](
            tensors, tables.update_owners, numbers, tables.coefficients, grad_scale, factor, found_inf, first,
            tables.update_owners.shape[1], TYPES[p], TYPES[m], TYPES[g], TYPES[wide_dtype(p, m)], coupled, unit, False,
            aligned, num_warps=8,
        )  # fmt: skip
    row_finish.finish_rows[(1,)](
        tensors, numbers, tables.stats, tables.found, tables.norms, tables.flags, tables.counts, tables.applied_byte,
        found_inf, tables.n, len(groups), tables.slots, count, steps.TILE, num_warps=8,
    )  # fmt: skip


def wide_dtype(p: torch.dtype, m: torch.dtype) -> torch.dtype:
    """Return the dtype of the arithmetic: float64 where the parameter or its moment is."""
    return torch.float64 if torch.float64 in (p, m) else torch.float32


def rounding_level(p: torch.dtype, m: torch.dtype, is_difference: bool) -> float:
    """Return ‖m_t‖/‖g‖ below which m_t is rounding; more where ‖m_t‖² is a difference of sums."""
    if wide_dtype(p, m) == torch.float32:
        return 1e-6
    return 1e-7 if is_difference else 1e-14
