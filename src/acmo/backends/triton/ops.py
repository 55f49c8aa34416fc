"""The two passes as custom ops on the Triton kernels: for torch.compile, for shards, and beside foreach parts."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo.backends.foreach import as_scalar, count_entries
from acmo.backends.kernel_ops import grad_factor
from acmo.backends.scalars import PartScalars
from acmo.backends.triton import fields, pass_kernels, steps, tensor_kernels
from acmo.backends.triton.tables import PassTables, kind_of
from acmo.rounding import find_first_index, rounds_randomly
from acmo.step_data import GroupOptions, Part, StepOptions

Rounding = tuple[Part, GroupOptions] | None  # what is rounded stochastically
KEPT_TABLES = 16
cache: dict[Any, PassTables] = {}  # of this process: a table holds addresses and no data


def compute_sums(part: Part, group: GroupOptions, options: StepOptions) -> Tensor:
    """Pass 1: see `acmo.backends.two_pass.Passes`."""
    call = sums_op if torch.compiler.is_compiling() else sum_on_triton
    needs_moments = part.moment_sqs is None
    sign, decay = -1.0 if group.maximize else 1.0, group.coupled_decay
    arguments = (options.grad_scale, sign, decay, options.unit_step, needs_moments)
    sums: Tensor = call(part.params, part.moments, part.grads, *arguments)
    raw, moment, decayed, inner, theta, grad_moment = sums.unbind()
    if not needs_moments and not options.unit_step:
        moment = torch.as_tensor(part.moment_sqs, dtype=raw.dtype, device=raw.device)
    factor = grad_factor(group, options, raw)
    raw, inner = raw * factor.square(), inner * factor
    if not decay and not options.unit_step:
        return torch.stack((raw, moment))
    decayed = decayed if decay else raw
    if not options.unit_step:
        return torch.stack((raw, moment, decayed, inner, theta))
    return torch.stack((raw, moment, decayed, inner, theta, grad_moment, count_entries(part).to(raw.device)))


def update(part: Part, group: GroupOptions, options: StepOptions, scalars: PartScalars) -> Tensor:
    """Pass 2: see `acmo.backends.two_pass.Passes`."""
    c, n = scalars.clip_scale, len(part.params)
    one = torch.ones_like(c)
    length = one if scalars.step_factor is None else scalars.step_factor
    remains = length != 0  # else m_t is rounding, and becomes 0
    rows = [torch.zeros_like(c)] * fields.COEFFICIENTS.value
    rows[fields.GRAD_FACTOR.value] = torch.where(remains, c * grad_factor(group, options, c), 0.0)
    rows[fields.DECAY.value] = torch.where(remains, group.coupled_decay * one, 0.0)
    rows[fields.ROOT.value] = torch.where(remains, scalars.beta_hat.sqrt().clamp(max=3.4e38), 0.0)
    rows[fields.THETA_FACTOR.value] = as_scalar(group.theta_factor, c.dtype, c.device)
    rows[fields.ALPHA.value] = as_scalar(group.lr, c.dtype, c.device)
    rows[fields.LENGTH.value] = length.clamp(max=3.4e38)
    coefficients = torch.stack([row.expand(n) for row in rows], dim=1)
    tensors = (part.params, part.moments, part.grads)
    arguments = (coefficients, scalars.should_step, group.coupled_decay != 0)
    moment_sqs: Tensor
    if torch.compiler.is_compiling():
        moment_sqs = update_op(*tensors, *arguments)
    else:
        rounding = (part, group) if rounds_randomly(part, group) else None
        moment_sqs = update_on_triton(*tensors, *arguments, rounding)
    return moment_sqs


def find_tables(
    params: list[Tensor], moments: list[Tensor], grads: list[Tensor], rounding: Rounding = None
) -> tuple[PassTables, Tensor]:
    """Return tables for these sizes and dtypes, and the one of addresses on the device."""
    part = Part(0, range(len(params)), params, params, grads, moments, [], [])
    group = GroupOptions(0.0, 0.0, 0.0, 0.0, False, 1.0, False, [], [])
    key: tuple[Any, ...] = (kind_of(part), params[0].device, steps.BLOCK, *map(Tensor.numel, params))
    lists: tuple[list[Tensor], ...] = (params, moments, grads)
    if rounding is not None:
        part, group = rounding[0]._replace(group=0), group._replace(first_number=rounding[1].first_number)
        key += ("rounding", group.first_number, *part.indices, *map(find_first_index, part.owners))
        lists += (part.steps,)
    if key not in cache:
        while len(cache) >= KEPT_TABLES:
            del cache[next(iter(cache))]
        cache[key] = PassTables([part], [group], steps.BLOCK, params[0].new_zeros(2, dtype=torch.int32))
    tables = cache[key]
    addresses = tuple([list(map(Tensor.data_ptr, own)) for own in lists])
    return tables, tables.update_tensors(addresses)


def sum_on_triton(
    params: list[Tensor],
    moments: list[Tensor],
    grads: list[Tensor],
    grad_scale: Tensor | None,
    sign: float,
    decay: float,
    inner: bool,
    needs_moments: bool,
) -> Tensor:
    """Return ``[6, n]``: the fields of `PartSums` but the last, with g as it is stored in the first and the fourth."""
    with steps.on_device(params[0].device):
        tables, tensors = find_tables(params, moments, grads)
        group = GroupOptions(0.0, 0.0, 0.0, decay, False, 1.0, sign < 0, [], [])
        numbers = tables.update_numbers(0.0, [group]).view(torch.float64)
        sums = torch.zeros_like(tables.sums)
        tables.partials.zero_()
        for (p, m, g), _, first, count in tables.launches:
            pass_kernels.sum_chunks[(count,)](
                tensors, tables.owners, numbers, tables.partials, grad_scale, first, tables.chunks,
                steps.TYPES[p], steps.TYPES[m], steps.TYPES[g], steps.wide_type(p), decay != 0, inner, needs_moments,
                steps.BLOCK, num_warps=steps.WARPS,
            )  # fmt: skip
        tensor_kernels.sum_tensors[(-(-tables.n // steps.TILE),)](
            tensors, tables.partials, sums, tables.n, tables.chunks, fields.SUMS.value, 0, steps.TILE
        )
    return sums


def update_on_triton(
    params: list[Tensor],
    moments: list[Tensor],
    grads: list[Tensor],
    coefficients: Tensor,
    should_step: Tensor,
    coupled: bool,
    rounding: Rounding = None,
) -> Tensor:
    """Write m and θ, if the step is taken; return ``[n]``: ‖m‖² of each moment then."""
    with steps.on_device(params[0].device):
        tables, tensors = find_tables(params, moments, grads, rounding)
        flags = should_step.to(params[0].device, torch.int32).reshape(1)
        sums = torch.zeros_like(tables.moment_sqs)
        for (p, m, g), random, first, count in tables.launches:
            types = (steps.TYPES[p], steps.TYPES[m], steps.TYPES[g], steps.wide_type(p))
            pass_kernels.update_chunks[(count,)](
                tensors, tables.owners, coefficients, tables.partials, flags, first, tables.chunks, *types,
                coupled, random, steps.BLOCK, num_warps=steps.WARPS,
            )  # fmt: skip
            pass_kernels.sum_kept_moments[(count,)](
                tensors, tables.owners, tables.partials, flags, first, tables.chunks, types[1], steps.BLOCK,
                num_warps=steps.WARPS,
            )  # fmt: skip
        tensor_kernels.sum_tensors[(-(-tables.n // steps.TILE),)](
            tensors, tables.partials, sums, tables.n, tables.chunks, 1, fields.MOMENT_SQ.value, steps.TILE
        )
    if not torch.compiler.is_compiling():
        increment_version(params)
        increment_version(moments)
    return sums


# The schemas are given, because torch 2.6 cannot infer them from list[Tensor].
sums_op = torch.library.custom_op(
    "acmo::triton_sums",
    sum_on_triton,
    mutates_args=(),
    schema="(Tensor[] params, Tensor[] moments, Tensor[] grads, Tensor? grad_scale, float sign, float decay, "
    "bool inner, bool needs_moments) -> Tensor",
)
update_op = torch.library.custom_op(
    "acmo::triton_update",
    update_on_triton,
    mutates_args=("params", "moments"),
    schema="(Tensor(a0!)[] params, Tensor(a1!)[] moments, Tensor[] grads, Tensor coefficients, Tensor should_step, "
    "bool coupled) -> Tensor",
)


@sums_op.register_fake
def _(params: list[Tensor], moments: list[Tensor], grads: list[Tensor], *_: object) -> Tensor:
    return params[0].new_empty((fields.SUMS.value, len(params)), dtype=torch.float64)


@update_op.register_fake
def _(params: list[Tensor], *_: object) -> Tensor:
    return params[0].new_empty(len(params), dtype=torch.float64)
