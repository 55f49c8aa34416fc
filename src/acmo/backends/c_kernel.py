"""A whole step in one call of the C kernel, for parameters on the CPU: both passes and the scalars between them."""

import math
from array import array
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import native
from acmo.backends.scalars import refuse_nonfinite
from acmo.backends.tensor_layout import PLAIN_TYPES, are_plain, is_dense
from acmo.step_data import GRAD_SQ, RAW_GRAD_SQ, GroupOptions, Part, StepOptions, StepRecord

SCOPE_CODES = {"global": 0, "group": 1, "tensor": 2}  # must match native/step.c, as must TABLE_ROWS
TABLE_ROWS = 14  # of doubles that acmo_step works in: 5 of the record, 4 of sums, 5 of coefficients


def step(parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions) -> StepRecord:
    """Execute one step; every part must be one that `can_step` accepts."""
    arguments, numbers = pack(parts, groups, options)
    n = arguments[0]
    table = torch.empty(TABLE_ROWS, n, dtype=torch.float64, device="cpu")  # whatever the default device is
    taken = native.required().step(arguments.buffer_info()[0], numbers.buffer_info()[0], table.data_ptr())
    if taken < 0:
        raise MemoryError("there is no memory for the scalars of a step")
    if taken:
        for part in parts:  # autograd must notice a step between forward and backward, and a cache of ‖m‖² any step
            increment_version(part.params + part.moments)
    elif options.nonfinite == "raise" and not (options.found_inf is not None and options.found_inf):
        refuse_nonfinite(parts, table[RAW_GRAD_SQ], table[GRAD_SQ], table[RAW_GRAD_SQ].sum())
    places = tuple([(part.group, tuple(part.indices)) for part in parts])
    return StepRecord(table, numbers[0], bool(taken), numbers[len(numbers) - n :], places)


def pack(
    parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions
) -> tuple["array[int]", "array[float]"]:
    """Return the arguments of acmo_step, in the order that native/step.c names."""
    codes, address, sqrt = native.DTYPE_CODES, Tensor.data_ptr, options.psi == "sqrt"
    joined = parts[0] if len(parts) == 1 else join(parts)
    p_codes: list[int] = []
    m_codes: list[int] = []
    moment_sqs: list[float] = []
    group_of: list[int] = []
    for part in parts:
        n = len(part.params)
        p_codes += [codes[part.params[0].dtype]] * n
        m_codes += [codes[part.moments[0].dtype]] * n
        moment_sqs += read_moments(part)
        group_of += [part.group] * n
    idle_steps: list[Tensor] = []
    idle_beta_hats: list[Tensor] = []
    couples = False
    for k, group in enumerate(groups):
        couples = couples or group.coupled_decay != 0
        if group.idle_steps:
            idle_steps += group.idle_steps
            idle_beta_hats += group.idle_beta_hats
            group_of += [k] * len(group.idle_steps)
    propagate = options.nonfinite == "propagate"
    values = [
        *(len(joined.params), len(idle_steps), len(groups), SCOPE_CODES[options.norm_scope]),
        *(sqrt, propagate, couples, torch.get_num_threads()),
        *map(Tensor.numel, joined.params),
        *p_codes,
        *m_codes,
        *map(address, joined.params),
        *map(address, joined.moments),
        *map(address, joined.grads),
        *group_of,
        *map(address, joined.steps),
        *map(address, idle_steps),
        *map(address, joined.beta_hats),
        *map(address, idle_beta_hats),
    ]
    limit = math.inf if options.max_grad_norm is None else options.max_grad_norm
    numbers = array("d", (1.0, limit, 0.0 if options.found_inf is None else float(options.found_inf)))
    scale = 1.0 if options.grad_scale is None else 1.0 / float(options.grad_scale)
    for group in groups:
        sign = -scale if group.maximize else scale
        numbers.extend(
            (float(group.lr), group.momentum, group.delta, group.coupled_decay, float(group.theta_factor), sign)
        )
    numbers.extend(moment_sqs)
    return array("q", values), numbers


def join(parts: Sequence[Part]) -> Part:
    """Return all parts' lists, one after the other."""
    params, grads, moments, steps, beta_hats = (
        list(chain.from_iterable(map(attrgetter(name), parts)))
        for name in ("params", "grads", "moments", "steps", "beta_hats")
    )
    return Part(-1, (), params, params, grads, moments, steps, beta_hats)


def read_moments(part: Part) -> Sequence[float]:
    """Return ‖m‖² of each moment: as the last step left it, or summed to the same bits."""
    if isinstance(part.moment_sqs, Tensor):
        return part.moment_sqs.tolist()
    if part.moment_sqs is not None:
        return part.moment_sqs
    numels, code = list(map(Tensor.numel, part.moments)), native.DTYPE_CODES[part.moments[0].dtype]
    addresses, threads = list(map(Tensor.data_ptr, part.moments)), torch.get_num_threads()
    return native.required().squares(numels, [code] * len(numels), addresses, threads)


def can_step(part: Part) -> bool:
    """Return whether the kernel can step a part as it lies in memory."""
    p, codes = part.params[0], native.DTYPE_CODES
    return p.is_cpu and p.dtype in codes and part.moments[0].dtype in codes and are_plain(part)


def can_pass(part: Part) -> bool:
    """Return whether the kernel can execute the two passes over a part (`acmo.backends.kernel_ops`)."""
    return explain_unfit(part) is None


def require(parts: Sequence[Part], rounds: Sequence[bool]) -> None:
    """For ``fused=True``: raise where the kernel cannot step a part. ``rounds``: those of stochastic rounding."""
    for part, rounding in zip(parts, rounds, strict=True):
        why = "it rounds stochastically only by row" if rounding else explain_unfit(part)
        if why is None:
            continue
        raise RuntimeError(f"fused=True, but the C kernel cannot be used: {why}. With fused=None, foreach is used.")


def explain_unfit(part: Part) -> str | None:
    """Return why the kernel cannot step a part; None if it can."""
    p, m = part.params[0], part.moments[0]
    if not torch.compiler.is_compiling() and not all(map(has_memory, (*part.params, *part.moments))):
        return "it needs plain tensors with memory of their own, and a parameter or its momentum_buffer is not one"
    if not p.is_cpu:
        return f"it is for the CPU, and a parameter is on {p.device}"
    if p.dtype not in native.DTYPE_CODES or m.dtype not in native.DTYPE_CODES:
        return f"it does not support {p.dtype} parameters with {m.dtype} moments"
    if not all(map(is_dense, part.moments)):
        return "a momentum_buffer was replaced by one that is not dense in memory"
    if any(g.dtype != p.dtype for g in part.grads):
        return f"a gradient is not of its parameter's dtype, {p.dtype}"
    return None


def has_memory(x: Tensor) -> bool:
    """Return whether a tensor's address can be read: not so for fake, wrapped and zero tensors."""
    return type(x) in PLAIN_TYPES and not x._is_zerotensor()
