"""A spectral step of one part: kernels for the norms, m and θ, torch's matrix products between."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from acmo.backends.spectral import measure_cosines, sum_products
from acmo.backends.triton import row_steps, spectral_kernels
from acmo.backends.triton.row_steps import Run
from acmo.backends.triton.steps import TYPES
from acmo.backends.triton.tables import Table
from acmo.newton_schulz import choose_dtype, orthogonalise
from acmo.step_data import GroupOptions, Part, RowNorms, StepOptions

ALIGNMENT = 16  # entries: those of the matrices in one buffer


def step_part(
    part: Part,
    group: GroupOptions,
    options: StepOptions,
    factor: Tensor | None,
    should_step: Tensor | None,
    cache: dict[Any, Any],
) -> RowNorms:
    """Step one part in place, as `acmo.backends.foreach_rows.step_part` does."""

    def update(run: Run) -> tuple[list[Tensor], Tensor]:
        units = allocate_units(part, choose_dtype(part.params[0], options.ns_dtype))
        row_steps.launch_updates(run, write_addresses(run.tables.units, units), units[0].dtype)
        directions = [o.contiguous() for o in orthogonalise(units, options.ns_steps)]
        del units
        inners = measure_inners(part, group, directions, factor)
        move_along(run, directions)
        return directions, inners

    found, (directions, inners) = row_steps.run_part(part, group, options, factor, should_step, cache, update)
    return report(found, directions, inners)


def allocate_units(part: Part, dtype: torch.dtype) -> list[Tensor]:
    """Return memory for the matrices to orthogonalise, in the dtype of their products; zeros where a step may end."""
    shapes = [(p.shape[0], prod(p.shape[1:])) for p in part.params]
    sizes = [-(-rows * columns // ALIGNMENT) * ALIGNMENT for rows, columns in shapes]
    room = torch.split(torch.zeros(sum(sizes), dtype=dtype, device=part.params[0].device), sizes)
    return [own[: prod(shape)].view(shape) for own, shape in zip(room, shapes, strict=True)]


def write_addresses(table: Table, tensors: Sequence[Tensor]) -> Tensor:
    """Return a table of addresses on the device."""
    key = list(map(Tensor.data_ptr, tensors))
    if table.has(key):
        return table.device
    table.host[:, 0] = key
    return table.write(key)


def move_along(run: Run, directions: Sequence[Tensor]) -> None:
    """Step θ along the directions, one launch per pair of dtypes."""
    tables, places = run.tables, write_addresses(run.tables.directions, directions)
    even = all([o.data_ptr() % 16 == 0 for o in directions])  # noqa: C419
    for (p, m, _), random, aligned, first, programs in tables.updates.launches:
        spectral_kernels.step_along[(programs,)](
            run.tensors, tables.update_owners, run.numbers, tables.coefficients, places, run.found_inf, first,
            tables.update_owners.shape[1], TYPES[p], TYPES[row_steps.wide_dtype(p, m)], TYPES[directions[0].dtype],
            random, aligned and even, num_warps=8,
        )  # fmt: skip


def measure_inners(part: Part, group: GroupOptions, directions: Sequence[Tensor], factor: Tensor | None) -> Tensor:
    """Return ⟨direction, g⟩ of each matrix, g with coupled decay; θ has not moved yet."""
    wide = widen(directions)
    inners = sum_products(wide, part.grads)
    inners = inners if factor is None else inners * factor.to(inners)
    if group.coupled_decay:
        inners = inners + group.coupled_decay * sum_products(wide, part.params).to(inners)
    return inners


def report(found: RowNorms, directions: Sequence[Tensor], inners: Tensor) -> RowNorms:
    """Return the report of a part: the cosines of its steps do not follow from the norms."""
    inners, moved = inners.to(found.grad_sq), found.took_part > 0
    cosines = measure_cosines(widen(directions), inners, found.grad_sq.sqrt()).nan_to_num(nan=0.0)
    return found._replace(cos_min=torch.where(moved, cosines, torch.inf), cos_sum=torch.where(moved, cosines, 0.0))


def widen(directions: Sequence[Tensor]) -> list[Tensor]:
    return [o.to(torch.promote_types(o.dtype, torch.float32)) for o in directions]
