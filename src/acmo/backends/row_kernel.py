"""A step by rows or columns in one call of the C kernel: tensors and their numbers in, sums and cosines out."""

from array import array
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import native
from acmo.backends.spectral import find_directions, find_lengths, measure_cosines, sum_products
from acmo.backends.tensor_layout import PLAIN_TYPES, have_plain_scales
from acmo.quantise import dequantise, quantise
from acmo.rounding import find_first_index, rounding_seed, rounds_randomly, write_params
from acmo.scopes import count_entries
from acmo.step_data import GroupOptions, Part, RowNorms, StepOptions, read_row_table

ROW: Final = 0  # scopes, as native/row_tensor.h has them
COLUMN: Final = 1
WHOLE: Final = 2
UNIT, PROPAGATE, ROUNDS_RANDOMLY = 1, 2, 4  # flags, as native/rows.c has them
SCOPE_CODES: Final = {"row": ROW, "column": COLUMN, "whole": WHOLE}
get_dtype = attrgetter("dtype")
CODES: Final = {**native.DTYPE_CODES, torch.int8: native.INT8_CODE}
TABLE_ROWS: Final = len(RowNorms._fields) + 1  # of doubles that acmo_rows writes


class RowNumbers(NamedTuple):
    """The numbers of a step in the algorithm's letters; usually those of a parameter group."""

    s: float  # factor of the stored gradient: −1 to maximize, times the unscaling and the clipping
    coupled_decay: float  # λ where it is coupled, else 0
    beta: float
    delta: float
    alpha: float
    kappa: float  # 1 − αλ where it is decoupled, else 1


class RowTensor(NamedTuple):
    """One parameter of a step by row.

    θ, m and g are dense, in the same memory order, with the rows of dimension 0 one behind the other: ``rows`` times
    ``cols`` entries (complex numbers are two each). The kernel checks none of this.

    Attributes:
      param, moment, grad: the gradient has the parameter's dtype; the moment any dtype of the kernel, or int8.
      rows, cols: of the memory.
      scope: ``ROW``, ``COLUMN`` or ``WHOLE``, which is one norm for the whole tensor.
      numbers: s, λ, β, δ, α, κ.
      entries: those that share a norm, n of the unit step (complex ones count once).
      unit_step: u = √n m/‖m‖ instead of u = m.
      scale: float32, one per row, for an int8 moment.
      propagate: compute rows that are not finite as they come, instead of skipping them.
      seed: for stochastic rounding of a bfloat16 parameter (see `acmo.rounding`); None rounds to nearest.
      first_index: of the first entry in the whole, unsharded tensor, for the random bits.
    """

    param: Tensor
    moment: Tensor
    grad: Tensor
    rows: int
    cols: int
    scope: int
    numbers: RowNumbers
    entries: int
    unit_step: bool = True
    scale: Tensor | None = None
    propagate: bool = False
    seed: int | None = None
    first_index: int = 0


def step_part(
    part: Part, group: GroupOptions, options: StepOptions, factor: Tensor | None, should_step: Tensor | None
) -> RowNorms:
    """Step one part in place, as `acmo.backends.foreach_rows.step_part` does."""
    if should_step is not None and not should_step:
        nothing = torch.zeros(len(part.params), dtype=torch.float64, device="cpu")
        return RowNorms(*[nothing] * len(RowNorms._fields))
    if part.scope == "spectral":
        return step_matrices(part, group, options, factor)
    numbers = RowNumbers(
        1.0 if factor is None else float(factor),
        group.coupled_decay,
        group.momentum,
        group.delta,
        float(group.lr),
        float(group.theta_factor),
    )
    scope, propagate = SCOPE_CODES[part.scope], options.nonfinite == "propagate"
    seeds: list[int] | None = None
    if group.first_number is not None and rounds_randomly(part, group):
        numbers_of = [group.first_number + i for i in part.indices]
        seeds = rounding_seed(torch.stack(part.steps), torch.tensor(numbers_of, device="cpu")).tolist()
    tensors = []
    dense = [
        [x.contiguous() for x in xs] for xs in (part.params, part.moments, part.grads)
    ]  # copies where there are gaps
    for j, (p, m, g) in enumerate(zip(*dense, strict=True)):
        shape = part.owners[j].shape
        entries = count_entries(part.scope, shape)
        rows = p.shape[0] if p.ndim > 1 else 1
        tensors.append(
            RowTensor(
                *(p, m, g, rows, p.numel() // rows if rows else 0, scope, numbers, entries, options.unit_step),
                part.moment_scales[j] if part.moment_scales else None,
                propagate,
                None if seeds is None else seeds[j],
                0 if seeds is None else find_first_index(part.owners[j]) or 0,
            )
        )
    result = step_rows(tensors)
    for own, copies in ((part.params, dense[0]), (part.moments, dense[1])):
        for x, copy in zip(own, copies, strict=True):
            if copy is not x:
                x.copy_(copy)
    increment_version([*part.params, *part.moments, *part.moment_scales])
    return result


def step_matrices(part: Part, group: GroupOptions, options: StepOptions, factor: Tensor | None) -> RowNorms:
    """Step spectral parameters: the kernel writes m_t and its norm, torch multiplies matrices and moves θ."""
    dtype = torch.float64 if torch.float64 in (part.params[0].dtype, part.moments[0].dtype) else torch.float32
    numbers = RowNumbers(
        1.0 if factor is None else float(factor), group.coupled_decay, group.momentum, group.delta, alpha=0.0, kappa=1.0
    )
    if part.moment_scales:
        moments = [dequantise(*own, dtype).contiguous() for own in zip(part.moments, part.moment_scales, strict=True)]
    else:  # a copy where it is stored in fewer bits: m_t is orthogonalised before it is rounded
        moments = [m.to(dtype).contiguous() for m in part.moments]
    thetas, grads = ([x.contiguous() for x in xs] for xs in (part.params, part.grads))
    propagate = options.nonfinite == "propagate"
    result = step_rows(
        [
            RowTensor(p, m, g, p.shape[0], p.numel() // p.shape[0], WHOLE, numbers, 1, propagate=propagate)
            for p, m, g in zip(thetas, moments, grads, strict=True)
        ]
    )
    norms = result.new_moment_sq.sqrt()
    moved, skipped = result.took_part > 0, result.skipped > 0
    directions = find_directions(part, moments, torch.where(moved, norms, 1.0), options)
    inners = numbers.s * sum_products(directions, grads)
    if group.coupled_decay:
        inners += group.coupled_decay * sum_products(directions, part.params)
    cosines = measure_cosines(directions, inners, result.grad_sq.sqrt())
    alphas = (-float(group.lr) * find_lengths(part, norms)).tolist()
    thetas = [p.to(dtype) for p in part.params]
    for j, (theta, o) in enumerate(zip(thetas, directions, strict=True)):
        if group.decoupled and not skipped[j]:
            theta.mul_(float(group.theta_factor))
        if moved[j] and norms[j] != 0:
            theta.add_(o, alpha=alphas[j])
        if not moved[j]:
            continue
        if part.moment_scales:
            quantise(moments[j], part.moments[j], part.moment_scales[j])
        elif moments[j] is not part.moments[j]:
            part.moments[j].copy_(moments[j])
    if part.params[0].dtype != dtype:
        write_params(part, group, thetas)
    increment_version(part.moments)
    return result._replace(
        cos_min=torch.where(moved, cosines, torch.inf), cos_sum=torch.where(moved, cosines, torch.zeros_like(cosines))
    )


def can_step(part: Part, group: GroupOptions) -> bool:
    """Return whether the kernel can step a part by row."""
    p, m = part.params[0], part.moments[0]
    return (
        p.is_cpu
        and not part.shards
        and PLAIN_TYPES.issuperset(map(type, chain(part.params, part.moments, part.grads)))
        and have_plain_scales(part)
        and not any(map(Tensor._is_zerotensor, part.grads))
        and not any(map(Tensor.is_neg, part.grads))
        and p.dtype in native.DTYPE_CODES
        and m.dtype in CODES
        and set(map(get_dtype, part.grads)) == {p.dtype}
        and not (part.scope == "column" and part.owners[0].is_complex())
        and not (rounds_randomly(part, group) and None in map(find_first_index, part.owners))
    )


def require(parts: Sequence[Part]) -> None:
    """For ``fused=True``: raise for the parts that the kernel cannot step by row."""
    if not parts or torch.compiler.is_compiling():
        return  # compiled, rows are stepped by foreach
    p, m = parts[0].params[0], parts[0].moments[0]
    why = "it needs plain tensors, and gradients of their parameters' dtype"
    if not p.is_cpu:
        why = f"it is for the CPU, and a parameter is on {p.device}"
    elif parts[0].scope == "column" and parts[0].owners[0].is_complex():
        why = "it does not step complex parameters by column"
    elif parts[0].shards:
        why = "rows are cut over ranks"
    elif p.dtype not in native.DTYPE_CODES or m.dtype not in CODES:
        why = f"it does not support {p.dtype} parameters with {m.dtype} moments"
    raise RuntimeError(f"fused=True, but the C kernel cannot step by row: {why}. With fused=None, foreach is used.")


def step_rows(tensors: Sequence[RowTensor]) -> RowNorms:
    """Step every tensor in place. The result does not depend on the number of threads."""
    table = torch.empty(TABLE_ROWS, len(tensors), dtype=torch.float64, device="cpu")  # whatever the default device is
    native.required().rows(*pack(tensors), table.data_ptr(), torch.get_num_threads())
    return read_row_table(table)


def pack(tensors: Sequence[RowTensor]) -> tuple["array[int]", "array[int]", "array[float]"]:
    """Return addresses, layout and numbers as `acmo.native.Kernel.rows` reads them."""
    n = len(tensors)
    addresses, layout, numbers = array("q"), array("q", [n]), array("d")
    if not tensors:
        return addresses, layout, numbers
    params, moments, grads, rows, cols, scopes, letters, entries, units, scales, propagates, seeds, indices = zip(
        *tensors, strict=True
    )
    steps = [0] * n  # the caller counts them
    for own in (params, moments, steps, grads, scales):
        addresses.extend([x.data_ptr() if isinstance(x, Tensor) else 0 for x in own])
    flags = [
        UNIT * unit | PROPAGATE * propagate | ROUNDS_RANDOMLY * (seed is not None)
        for unit, propagate, seed in zip(units, propagates, seeds, strict=True)
    ]
    p_codes, m_codes = ([CODES[x.dtype] for x in own] for own in (params, moments))
    for column in (rows, cols, scopes, p_codes, m_codes, entries, flags, range(n), [s or 0 for s in seeds], indices):
        layout.extend(column)
    for own_letters in letters:
        numbers.extend(own_letters)
    return addresses, layout, numbers
