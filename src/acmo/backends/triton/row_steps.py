"""A step by row: two launches for a model of matrices, two more where a tensor goes by column or is one long row."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo.backends.triton import column_kernels, row_finish, row_kernels, row_tables, steps
from acmo.backends.triton.row_tables import RowTables
from acmo.backends.triton.steps import TYPES, find_counts, keep_room, on_device, skip_global_checks
from acmo.backends.triton.tables import kind_of
from acmo.step_data import GroupOptions, Part, RowNorms, StepOptions, StepRecord

T = TypeVar("T")
WARPS = 4


def can_step_together(parts: Sequence[Part], options: StepOptions) -> bool:
    """Return whether one call can step all parts: not where every gradient must be read before any row is stepped."""
    is_spectral = any([part.scope == "spectral" for part in parts])  # noqa: C419
    return options.max_grad_norm is None and options.nonfinite != "raise" and not is_spectral


def step(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, cache: dict[Any, Any]
) -> StepRecord:
    """Execute one step; every part must be one that `acmo.backends.triton.fit.can_step_rows` accepts."""
    places = tuple([(part.group, tuple(part.indices)) for part in parts])
    tables = find_tables(parts, groups, places, cache, find_counts(cache, parts[0].params[0].device))
    with on_device(parts[0].params[0].device):
        run = prepare(groups, options, tables, options.grad_scale, None, options.found_inf)
        launch_sums(run)
        launch_updates(run)
        launch_finish(run, count=True)
    if not tables.launched:
        tables.launched = True
        skip_global_checks(
            row_kernels.step_rows, row_finish.finish_rows, column_kernels.find_line_scalars, column_kernels.update_lines
        )
    for part in parts:
        increment_version([*part.params, *part.moments, *part.moment_scales])
    return StepRecord(
        tables.norms, tables.clip_scale, tables.applied_flag, (), places, rows=tables.report,
        row_places=tables.row_places,
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
    found, _ = run_part(part, group, options, factor, should_step, cache, launch_updates)
    return found


def run_part(
    part: Part,
    group: GroupOptions,
    options: StepOptions,
    factor: Tensor | None,
    should_step: Tensor | None,
    cache: dict[Any, Any],
    update: Callable[["Run"], T],
) -> tuple[RowNorms, T]:
    """Step one part in place, with ``update`` after the sums.

    Return the part's report, which is 0 where the step is not taken, and what ``update`` returns.
    """
    device = part.params[0].device
    with on_device(device):
        places = "part", part.group, part.scope, part.indices
        tables = find_tables([part._replace(group=0)], [group], places, cache, None)
        tables.found.zero_()
        found_inf = None if should_step is None else (~should_step).to(device, torch.float32)
        factor = None if factor is None else factor.to(device)
        plain = group._replace(maximize=False)  # the factor has the sign
        run = prepare([plain], options, tables, None, factor, found_inf)
        launch_sums(run)
        updated = update(run)
        launch_finish(run, count=False)
    increment_version([*part.params, *part.moments, *part.moment_scales])
    return RowNorms(*tables.found.clone().unbind()), updated


def find_tables(
    parts: Sequence[Part], groups: Sequence[GroupOptions], places: Any, cache: dict[Any, Any], counts: Tensor | None
) -> RowTables:
    """Return the tables for these tensors, built again when a shape, a dtype or an alignment has changed."""
    lists = zip(*[(part.params, part.moments, part.grads, part.steps) for part in parts], strict=True)
    addresses = [list(map(Tensor.data_ptr, chain.from_iterable(own))) for own in lists]
    scales: list[int] = []
    if any([part.moment_scales for part in parts]):  # noqa: C419
        for part in parts:
            scales += map(Tensor.data_ptr, part.moment_scales) if part.moment_scales else [0] * len(part.params)
    addresses.append(scales)
    layouts = [part.layout for part in parts]
    kinds = [(kind_of(part), part.scope, part.params[0].device) for part in parts]
    numbers = kinds, [group.first_number for group in groups], row_tables.SPLIT_ABOVE
    found: Any = cache.get(places)
    same = found is not None and found[:2] == (layouts, numbers) and None not in layouts
    shapes = found[2] if same else [list(map(Tensor.size, part.params)) for part in parts]
    if found is not None and found[1:4] == (numbers, shapes, addresses):
        tables: RowTables = found[4]
    elif found is not None and found[1:3] == (numbers, shapes) and found[4].relocate(tuple(addresses)):
        tables = found[4]
    else:
        tables = RowTables(parts, groups, tuple(addresses), counts)
        if found is not None and found[1:3] == (numbers, shapes):
            tables.keep_record(found[4])
        keep_room(cache, places)
    cache[places] = (layouts, numbers, shapes, addresses, tables)
    return tables


class Run(NamedTuple):
    """What the launches of one step share: tables on the device, options, and factors that only the device knows."""

    tables: RowTables
    tensors: Tensor
    numbers: Tensor
    options: StepOptions
    coupled: bool
    grad_scale: Tensor | None
    factor: Tensor | None
    found_inf: Tensor | None


def prepare(
    groups: Sequence[GroupOptions],
    options: StepOptions,
    tables: RowTables,
    grad_scale: Tensor | None,
    factor: Tensor | None,
    found_inf: Tensor | None,
) -> Run:
    """Upload what has changed, and return what the launches need."""
    numbers = tables.update_numbers(groups).view(torch.float64)
    coupled = any([group.coupled_decay for group in groups])  # noqa: C419
    return Run(tables, tables.update_tensors(), numbers, options, coupled, grad_scale, factor, found_inf)


def launch_sums(run: Run) -> None:
    """Step the rows that one program can step, sum the other tensors, and find the coefficients of their lines."""
    tables, tensors, numbers, options, coupled, *factors, found_inf = run
    unit, propagate = options.unit_step, options.nonfinite == "propagate"
    for (p, m, g), random, aligned, first, programs in tables.rows.launches:
        row_kernels.step_rows[(programs,)](
            tensors, tables.row_owners, numbers, tables.stats, tables.partials, *factors, found_inf, first,
            tables.row_owners.shape[1], tables.slots, tables.partial_count, TYPES[p], TYPES[m], TYPES[g],
            TYPES[wide_dtype(p, m)], coupled, unit, propagate, random, aligned, rounding_level(p, m, False),
            row_tables.LANES, num_warps=WARPS,
        )  # fmt: skip
    if tables.lines.total:
        (p, m, _), *_ = tables.lines.launches[0]
        column_kernels.find_line_scalars[(tables.lines.total,)](
            tensors, tables.line_owners, numbers, tables.stats, tables.partials, tables.coefficients, found_inf,
            tables.line_owners.shape[1], tables.slots, tables.partial_count, unit, propagate,
            rounding_level(p, m, True), num_warps=8,
        )  # fmt: skip


def launch_updates(run: Run, units: Tensor | None = None, unit_dtype: torch.dtype = torch.float32) -> None:
    """Update m of the tensors that were only summed, and θ; with ``units`` write there what is orthogonalised."""
    tables = run.tables
    for (p, m, g), random, aligned, first, programs in tables.updates.launches:
        column_kernels.update_lines[(programs,)](
            run.tensors, tables.update_owners, run.numbers, tables.coefficients, units, run.grad_scale, run.factor,
            run.found_inf, first, tables.update_owners.shape[1], TYPES[p], TYPES[m], TYPES[g], TYPES[wide_dtype(p, m)],
            TYPES[unit_dtype], run.coupled, run.options.unit_step, random and units is None, aligned, num_warps=8,
        )  # fmt: skip


def launch_finish(run: Run, count: bool) -> None:
    """Add up what was reported of the rows; with ``count``, count the step."""
    tables = run.tables
    row_finish.finish_rows[(1,)](
        run.tensors, run.numbers, tables.stats, tables.found, tables.norms, tables.flags, tables.counts,
        tables.applied_byte, run.found_inf, tables.n, len(run.numbers) - 1, tables.slots, count, steps.TILE,
        num_warps=8,
    )  # fmt: skip


def wide_dtype(p: torch.dtype, m: torch.dtype) -> torch.dtype:
    """Return the dtype of the arithmetic: float64 where the parameter or its moment is."""
    return torch.float64 if torch.float64 in (p, m) else torch.float32


def rounding_level(p: torch.dtype, m: torch.dtype, is_difference: bool) -> float:
    """Return ‖m_t‖/‖g‖ below which m_t is rounding; more where ‖m_t‖² is a difference of sums."""
    if wide_dtype(p, m) == torch.float32:
        return 1e-6
    return 1e-7 if is_difference else 1e-14
