"""ACMo by the C kernel, for parameters on the CPU: one pass for the norms, one that writes m and θ and sums ‖m‖²."""

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import foreach, native
from acmo.calibration import Scalars, refuse_nonfinite, solve
from acmo.norms import is_dense, over_shards
from acmo.parts import Group, Part, Record, Rules, record

SCOPES = {"global": 0, "group": 1, "tensor": 2}


def step(parts: Sequence[Part], groups: Sequence[Group], rules: Rules) -> Record:
    """One step of ACMo; a part that the kernel cannot serve goes to foreach, under the same scalars."""
    if torch.compiler.is_compiling() or any(unfit(part) for part in parts):
        return step_on_tensors(parts, groups, rules)
    call, threads = library(), torch.get_num_threads()
    tensors = Tensors(parts, groups)
    n, row = tensors.n, 8 * tensors.n

    sums = torch.zeros(4, n, dtype=torch.float64)
    to = sums.data_ptr()
    tensors.sums(call, to, to + row, to + 2 * row, threads)
    moment_sq = integers(x.data_ptr() for part in parts for x in part.moment_sqs)
    call.acmo_gather(n, at(moment_sq), to + 3 * row)
    sums = over_shards([sums], parts)[0]

    rows, coef = torch.empty(5, n, dtype=torch.float64), torch.empty(5, n, dtype=torch.float64)
    go, clip_scale = calibrate(call, parts, groups, rules, sums, coef, rows)
    if go:
        new = rows.data_ptr() + 3 * row
        tensors.update(call, coef.data_ptr(), new, threads)
        call.acmo_scatter(n, new, at(moment_sq))
    else:
        rows[3] = sums[3]
        refuse_nonfinite(parts, rows[0], torch.tensor(False), rules)
    return record(parts, rows, clip_scale, go)


class Tensors:
    """The addresses of some parts' tensors, for as long as a step lasts."""

    def __init__(self, parts: Sequence[Part], groups: Sequence[Group]) -> None:
        self.params = [p for part in parts for p in part.params]
        self.n = len(self.params)
        self._grads = [g for part in parts for g in laid_out(part)]  # kept alive: the kernel has only addresses
        self._numel = integers(map(Tensor.numel, self.params))
        self._p = integers(map(Tensor.data_ptr, self.params))
        self._m = integers(x.data_ptr() for part in parts for x in part.moments)
        self._g = integers(map(Tensor.data_ptr, self._grads))
        self._dtype, self._m_dtype, self._decayed = array("q"), array("q"), array("q")
        coupled = any(groups[part.group].coupled for part in parts)
        for part in parts:
            k, code = len(part.params), native.DTYPE_CODES
            self._dtype.extend([code[part.params[0].dtype]] * k)
            self._m_dtype.extend([code[part.moments[0].dtype]] * k)
            if coupled:
                end = len(self._decayed)
                self._decayed.extend(self._p[end : end + k] if groups[part.group].coupled else [0] * k)

    def sums(self, call: Any, gg: int, gt: int, tt: int, threads: int) -> None:
        """Pass 1 into three rows: ‖g‖² of each tensor, and ⟨g, θ⟩ and ‖θ‖² where its decay is coupled."""
        theta = at(self._decayed) if self._decayed else None
        call.acmo_sums(self.n, at(self._numel), at(self._dtype), at(self._g), theta, gg, gt, tt, threads)

    def update(self, call: Any, coef: int, new: int, threads: int) -> None:
        """Pass 2; the new ‖m‖² go into a row."""
        addresses = (at(x) for x in (self._numel, self._dtype, self._m_dtype, self._p, self._m, self._g))
        call.acmo_update(self.n, *addresses, coef, new, threads)
        increment_version(self.params)  # so that autograd notices a step between forward and backward


def calibrate(
    call: Any, parts: Sequence[Part], groups: Sequence[Group], rules: Rules, sums: Tensor, coef: Tensor, rows: Tensor
) -> tuple[bool, float]:
    """The scalars in C, as `acmo.calibration.solve` has them on tensors: fills coef and rows, writes t and β̂."""
    idle = [k for k, group in enumerate(groups) for _ in group.idle_steps]
    sqrt, n = rules.psi == "sqrt", sums.shape[1]
    size = integers((n, len(idle), len(groups), SCOPES[rules.norm_scope], sqrt, rules.nonfinite == "propagate"))
    of = integers([part.group for part in parts for _ in part.params] + idle)
    steps = integers(x.data_ptr() for xs in (*(p.steps for p in parts), *(g.idle_steps for g in groups)) for x in xs)
    betas = integers(
        x.data_ptr() for xs in (*(p.beta_hats for p in parts), *(g.idle_beta_hats for g in groups)) for x in xs
    )
    found_inf = 0.0 if rules.found_inf is None else float(rules.found_inf)
    limits = array("d", (math.inf if rules.max_grad_norm is None else rules.max_grad_norm, found_inf))
    scale = 1.0 if rules.grad_scale is None else 1.0 / float(rules.grad_scale)
    hyper = array("d")
    for group in groups:
        sign = -scale if group.maximize else scale
        hyper.extend((float(group.lr), group.momentum, group.delta, group.coupled, float(group.keep), sign))
    clip_scale = array("d", (1.0,))
    go = call.acmo_calibrate(
        at(size), at(limits), at(of), at(hyper), sums.data_ptr(), at(steps), at(betas),
        coef.data_ptr(), rows.data_ptr(), at(clip_scale),
    )  # fmt: skip
    if go < 0:
        raise MemoryError("there is no memory for the scalars of a step")
    return bool(go), clip_scale[0]


def unfit(part: Part) -> str | None:
    """Why the kernel cannot serve a part, if so."""
    p, m = part.params[0], part.moments[0]
    if not p.is_cpu:
        return f"it is for the CPU, and a parameter is on {p.device}"
    for x in (p, m):
        if x.dtype not in native.DTYPE_CODES:
            return f"it does not know {x.dtype}"
    if all(map(Tensor.is_contiguous, part.params)) and all(map(Tensor.is_contiguous, part.moments)):
        return None
    for p, m in zip(part.params, part.moments, strict=True):
        if not is_dense(p) or p.stride() != m.stride():
            return f"a parameter of shape {tuple(p.shape)} and strides {p.stride()} does not lie densely in memory"
    return None


def insist(parts: Sequence[Part]) -> None:
    """``fused=True``: raise where the kernel cannot serve."""
    for part in parts:
        why = unfit(part)
        if why is not None:
            raise RuntimeError(f"fused=True, but the C kernel cannot serve: {why}. With fused=None, foreach serves it.")


def laid_out(part: Part) -> list[Tensor]:
    """The gradients in the very order of memory of their parameters, copied only where they are not."""
    plain = all(map(Tensor.is_contiguous, part.grads)) and all(map(Tensor.is_contiguous, part.params))
    if plain and not any(map(Tensor.is_neg, part.grads)) and {g.dtype for g in part.grads} == {part.params[0].dtype}:
        return part.grads
    return [
        g if g.stride() == p.stride() and g.dtype == p.dtype and not g.is_neg() else torch.empty_like(p).copy_(g)
        for g, p in zip(part.grads, part.params, strict=True)
    ]


def library() -> Any:
    """The C functions."""
    kernel = native.kernel()
    if kernel is None:
        raise RuntimeError(f"fused=True needs the C kernel. {native.why_missing()} `python -m acmo.doctor` says more.")
    return kernel.raw


def integers(values: Iterable[int]) -> "array[int]":
    return array("q", values)


def at(values: "array[int] | array[float]") -> int:
    """Where an array lies."""
    return values.buffer_info()[0]


# The same on tensors, where some parts are not the kernel's or where torch.compile is to see the scalars.


def step_on_tensors(parts: Sequence[Part], groups: Sequence[Group], rules: Rules) -> Record:
    """One step with the passes of either backend, part by part, and the scalars of `acmo.calibration`."""
    home = parts[0].params[0].device
    fit = [unfit(part) is None for part in parts]
    local = [
        (sums(part, groups[part.group], rules) if ok else foreach.sums(part, groups[part.group], rules)).to(home)
        for part, ok in zip(parts, fit, strict=True)
    ]
    rows = over_shards(local, parts)
    scalars = solve(parts, groups, rules, rows)
    new_sqs = [
        (update if ok else foreach.update)(part, groups[part.group], rules, scalars, k).to(home)
        for k, (part, ok) in enumerate(zip(parts, fit, strict=True))
    ]
    return foreach.finish(parts, rules, scalars, rows, new_sqs)


def sums(part: Part, group: Group, rules: Rules) -> Tensor:
    """Pass 1 as `acmo.foreach.sums` gives it."""
    g, inner, theta = sums_op(part.grads, part.params, group.coupled != 0).unbind()
    factor = foreach.sign(group, rules, g)
    if factor is not None:
        g, inner = g * factor.square(), inner * factor
    decayed = (g + 2 * group.coupled * inner + group.coupled**2 * theta).clamp(min=0.0)
    return torch.stack((g, decayed, inner, theta, torch.stack(part.moment_sqs)))


def update(part: Part, group: Group, rules: Rules, scalars: Scalars, k: int) -> Tensor:
    """Pass 2 as `acmo.foreach.update` does it."""
    like, n = scalars.clip_scale, len(part.params)
    factor = foreach.sign(group, rules, like)
    columns = (
        like if factor is None else like * factor,
        foreach.on_device(group.coupled, like.dtype, like.device),
        scalars.beta_hats[k],
        foreach.on_device(group.keep, like.dtype, like.device),
        foreach.on_device(group.lr, like.dtype, like.device),
    )
    coef = torch.stack([column.expand(n) for column in columns]).cpu()
    new: Tensor = update_op(part.params, part.moments, part.grads, part.moment_sqs, coef, scalars.go.cpu())
    return new


@torch.library.custom_op("acmo::sums", mutates_args=())
def sums_op(grads: list[Tensor], params: list[Tensor], coupled: bool) -> Tensor:
    """``[3, n]``: ‖g‖², ⟨g, θ⟩ and ‖θ‖² of each tensor."""
    result = torch.zeros(3, len(grads), dtype=torch.float64)
    tensors, to, row = Tensors(*bare(params, grads, params, coupled)), result.data_ptr(), 8 * len(grads)
    tensors.sums(library(), to, to + row, to + 2 * row, torch.get_num_threads())
    return result


@sums_op.register_fake
def _(grads: list[Tensor], params: list[Tensor], coupled: bool) -> Tensor:
    return grads[0].new_empty((3, len(grads)), dtype=torch.float64)


@torch.library.custom_op("acmo::update", mutates_args=("params", "moments"))
def update_op(
    params: list[Tensor], moments: list[Tensor], grads: list[Tensor], moment_sqs: list[Tensor], coef: Tensor, go: Tensor
) -> Tensor:
    """Write m and θ, if it is a go; ``[n]``: ‖m‖² of each moment then."""
    if not go:
        return torch.stack(moment_sqs)
    new = torch.empty(len(params), dtype=torch.float64)
    tensors = Tensors(*bare(params, grads, moments, False))
    tensors.update(library(), coef.data_ptr(), new.data_ptr(), torch.get_num_threads())
    return new


@update_op.register_fake
def _(
    params: list[Tensor], moments: list[Tensor], grads: list[Tensor], moment_sqs: list[Tensor], coef: Tensor, go: Tensor
) -> Tensor:
    return coef.new_empty(len(params))


def bare(
    params: list[Tensor], grads: list[Tensor], moments: list[Tensor], coupled: bool
) -> tuple[list[Part], list[Group]]:
    """Lists of tensors as a part, where the scalars are elsewhere."""
    part = Part(0, [], params, grads, moments, [], [], [])
    return [part], [Group(0.0, 0.0, 0.0, float(coupled), False, False, [], [])]
