"""ACMo by the C kernel, for parameters on the CPU: one pass for the norms, one that writes m and θ and sums ‖m‖²."""

import math
from array import array
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import foreach, kernel_ops, native
from acmo.calibration import refuse_nonfinite, solve
from acmo.kernel_ops import laid_out
from acmo.norms import is_dense
from acmo.parts import PLAIN, Group, Part, Record, Rules, dtype_of, numels, record
from acmo.sharding import home, over_shards

SCOPES = {"global": 0, "group": 1, "tensor": 2}
contiguous = Tensor.is_contiguous
ROWS = 14  # of doubles that acmo_step works in: 5 of the record, 4 of sums, 5 of coefficients


def step(parts: Sequence[Part], groups: Sequence[Group], rules: Rules) -> Record:
    """One step of ACMo; a part that the kernel cannot serve goes to foreach, under the same scalars."""
    if torch.compiler.is_compiling():
        return step_on_tensors(parts, groups, rules)
    dense = parts
    if rules.process_group is None and all(map(is_plain, parts)):
        grads = parts[0].grads if len(parts) == 1 else [g for part in parts for g in part.grads]
    else:
        unfits = any(map(unfit, parts))
        if unfits and rules.insist:
            insist(parts)
        if unfits or rules.process_group is not None or any(part.shards for part in parts):
            return step_on_tensors(parts, groups, rules)
        dense = list(map(compact, parts))
        # Held in a list of its own: the kernel has only addresses.
        grads = [g for part in dense for g in laid_out(part.params, part.grads)]
    kernel = native.required()
    arguments, numbers = pack(dense, groups, rules, grads)
    rows = torch.empty(ROWS, len(grads), dtype=torch.float64, device="cpu")  # whatever the default device is
    at = arguments.buffer_info()[0], numbers.buffer_info()[0], rows.data_ptr()
    go = kernel.step(*at)
    if go < 0:
        raise MemoryError("there is no memory for the scalars of a step")
    if go:
        for part, served in zip(parts, dense, strict=True):
            if served is not part:
                torch._foreach_copy_(part.params, served.params)
            increment_version(part.params)  # so that autograd notices a step between forward and backward
    else:
        refuse_nonfinite(parts, rows[:2], rows[0].sum(), torch.tensor(False, device="cpu"), rules)
    return record(parts, rows, numbers[0], bool(go))


def pack(
    parts: Sequence[Part], groups: Sequence[Group], rules: Rules, grads: Sequence[Tensor]
) -> tuple["array[int]", "array[float]"]:
    """The arguments of acmo_step, in the order that native/step.c names."""
    code, at, sqrt = native.DTYPE_CODES, Tensor.data_ptr, rules.psi == "sqrt"
    whole = parts[0] if len(parts) == 1 else joined(parts)
    p_codes: list[int] = []
    m_codes: list[int] = []
    group_of: list[int] = []
    for part in parts:
        n = len(part.params)
        p_codes += [code[part.params[0].dtype]] * n
        m_codes += [code[part.moments[0].dtype]] * n
        group_of += [part.group] * n
    idle_steps: list[Tensor] = []
    idle_beta_hats: list[Tensor] = []
    couples = False
    for k, group in enumerate(groups):
        couples = couples or group.coupled != 0
        if group.idle_steps:
            idle_steps += group.idle_steps
            idle_beta_hats += group.idle_beta_hats
            group_of += [k] * len(group.idle_steps)
    values = [
        *(len(grads), len(idle_steps), len(groups), SCOPES[rules.norm_scope], sqrt, rules.nonfinite == "propagate"),
        *(couples, torch.get_num_threads(), *numels(whole.params, whole.moments, grads), *p_codes, *m_codes),
        *map(at, whole.params),
        *map(at, whole.moments),
        *map(at, grads),
        *map(at, whole.moment_sqs),
        *group_of,
        *map(at, whole.steps),
        *map(at, idle_steps),
    ]
    if sqrt:
        values += map(at, whole.beta_hats)
        values += map(at, idle_beta_hats)

    limit = math.inf if rules.max_grad_norm is None else rules.max_grad_norm
    numbers = array("d", (1.0, limit, 0.0 if rules.found_inf is None else float(rules.found_inf)))
    scale = 1.0 if rules.grad_scale is None else 1.0 / float(rules.grad_scale)
    for group in groups:
        sign = -scale if group.maximize else scale
        numbers.extend((float(group.lr), group.momentum, group.delta, group.coupled, float(group.keep), sign))
    return array("q", values), numbers


def joined(parts: Sequence[Part]) -> Part:
    """All parts' lists, one behind the other."""
    lists = zip(*(part[1:-1] for part in parts), strict=True)  # not the shards: there are none
    return Part(-1, *map(list, map(chain.from_iterable, lists)))  # type: ignore[arg-type]


def step_on_tensors(parts: Sequence[Part], groups: Sequence[Group], rules: Rules) -> Record:
    """One step with the passes of either backend, part by part, and the scalars on tensors.

    For parts that are not the kernel's, for those whose sums other ranks must add to, and for torch.compile, which
    sees the kernel as two custom ops.
    """
    like = home(parts, rules.process_group)
    passes = [kernel_ops if not unfit(part) and lies_as_moments(part) else foreach for part in parts]
    local = [way.sums(part, groups[part.group], rules).to(like) for way, part in zip(passes, parts, strict=True)]
    rows, doubt = over_shards(local, parts, rules.found_inf)
    scalars = solve(parts, groups, rules, rows, doubt)
    new_sqs = [
        way.update(part, groups[part.group], rules, scalars, k).to(like)
        for k, (way, part) in enumerate(zip(passes, parts, strict=True))
    ]
    return foreach.finish(parts, scalars, rows, new_sqs)


def moment_square(moment: Tensor) -> Tensor:
    """‖m‖² as pass 2 leaves it, to the bit."""
    kernel = native.kernel()
    if (
        kernel is None
        or not has_memory(moment)
        or not moment.is_cpu
        or moment.dtype not in native.DTYPE_CODES
        or not is_dense(moment)
    ):
        return foreach.moment_square(moment)
    code, threads = native.DTYPE_CODES[moment.dtype], torch.get_num_threads()
    sq = kernel.squares([moment.numel()], [code], [moment.data_ptr()], threads)
    return torch.tensor(list(sq), dtype=torch.float64, device="cpu")


def unfit(part: Part) -> str | None:
    """Why the kernel cannot serve a part, if so."""
    p, m = part.params[0], part.moments[0]
    if not torch.compiler.is_compiling() and not all(map(has_memory, (*part.params, *part.moments))):
        return "it needs plain tensors with memory of their own, and a parameter or its momentum_buffer is not one"
    if not p.is_cpu:
        return f"it is for the CPU, and a parameter is on {p.device}"
    if p.dtype not in native.DTYPE_CODES or m.dtype not in native.DTYPE_CODES:
        return f"it does not know {p.dtype} parameters with {m.dtype} moments"
    if not all(map(is_dense, part.moments)):
        return "a momentum_buffer was replaced by one that does not lie densely in memory"
    if any(g.dtype != p.dtype for g in part.grads):
        return f"a gradient is not of its parameter's dtype, {p.dtype}"
    return None


def is_plain(part: Part) -> bool:
    """Whether the kernel can serve the part as it lies there. Quick: it is asked at every step."""
    p, code = part.params[0], native.DTYPE_CODES
    return (
        p.is_cpu
        and not part.shards
        and PLAIN.issuperset(map(type, chain(part.params, part.moments, part.grads)))
        and not any(map(Tensor._is_zerotensor, part.grads))
        and p.dtype in code
        and part.moments[0].dtype in code
        and all(map(contiguous, part.params))
        and all(map(contiguous, part.moments))
        and all(map(contiguous, part.grads))
        and not any(map(Tensor.is_neg, part.grads))
        and set(map(dtype_of, part.grads)) == {p.dtype}
    )


def has_memory(x: Tensor) -> bool:
    """Whether there is something at a tensor's address: not so for fake, wrapped and zero tensors."""
    return type(x) in PLAIN and not x._is_zerotensor()


def lies_as_moments(part: Part) -> bool:
    """Whether the kernel can run through parameters and moments side by side."""
    return all(p.stride() == m.stride() for p, m in zip(part.params, part.moments, strict=True))


def compact(part: Part) -> Part:
    """The part itself, or one with copies of its parameters that lie as their moments do (a view with gaps, say)."""
    if lies_as_moments(part):
        return part
    copies = [torch.empty_like(m, dtype=p.dtype).copy_(p) for p, m in zip(part.params, part.moments, strict=True)]
    return part._replace(params=copies)


def insist(parts: Sequence[Part]) -> None:
    """``fused=True``: raise where the kernel cannot serve."""
    for part in parts:
        why = unfit(part)
        if why is not None:
            raise RuntimeError(f"fused=True, but the C kernel cannot serve: {why}. With fused=None, foreach serves it.")
