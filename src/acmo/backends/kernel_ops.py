"""The two passes as custom ops on the C kernel: for torch.compile, for sharded parameters, and beside foreach parts."""

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import native
from acmo.backends.scalars import PartScalars
from acmo.backends.tensor_layout import is_dense, lay_out_as
from acmo.step_data import GroupOptions, Part, StepOptions


def compute_sums(part: Part, group: GroupOptions, options: StepOptions) -> Tensor:
    """Pass 1: see `acmo.backends.two_pass.Passes`."""
    call = sums_op if torch.compiler.is_compiling() else sum_on_kernel
    raw, inner, theta = call(part.grads, part.params, group.coupled_decay != 0).unbind()
    if part.moment_sqs is None:
        moment, _, _ = call(part.moments, part.moments, False).unbind()
    else:
        moment = torch.as_tensor(part.moment_sqs, dtype=raw.dtype, device=raw.device)
    factor = grad_factor(group, options, raw)
    raw, inner = raw * factor.square(), inner * factor
    if not group.coupled_decay and not options.unit_step:
        return torch.stack((raw, moment))
    decayed = (raw + 2 * group.coupled_decay * inner + group.coupled_decay**2 * theta).clamp(min=0.0)
    decayed = torch.where(torch.isinf(raw) & torch.isfinite(theta), raw, decayed)  # ⟨g, θ⟩ may be −inf then
    if not options.unit_step:
        return torch.stack((raw, moment, decayed, inner, theta))
    grad_moment = sum_products(part.grads, part.moments) * factor
    if group.coupled_decay:
        grad_moment = grad_moment + group.coupled_decay * sum_products(part.params, part.moments)
    counts = [p.numel() // (2 if o.is_complex() else 1) for p, o in zip(part.params, part.owners, strict=True)]
    entries = torch.tensor(counts, dtype=raw.dtype, device="cpu")
    return torch.stack((raw, moment, decayed, inner, theta, grad_moment, entries))


def update(part: Part, group: GroupOptions, options: StepOptions, scalars: PartScalars) -> Tensor:
    """Pass 2: see `acmo.backends.two_pass.Passes`."""
    c, n = scalars.clip_scale, len(part.params)
    unit = as_scalar(1.0, c) if scalars.step_factor is None else scalars.step_factor
    remains = unit != 0  # else m_t is rounding, and becomes 0
    coefficients = (
        torch.where(remains, c * grad_factor(group, options, c), 0.0),
        torch.where(remains, as_scalar(group.coupled_decay, c), 0.0),
        torch.where(remains, scalars.beta_hat, 0.0),
        as_scalar(group.theta_factor, c),
        as_scalar(group.lr, c) * unit,
    )
    table = torch.stack([x.expand(n) for x in coefficients]).cpu()
    call = update_op if torch.compiler.is_compiling() else update_on_kernel
    moment_sqs: Tensor = call(part.params, part.moments, part.grads, table, scalars.should_step.cpu())
    return moment_sqs


def sum_products(xs: list[Tensor], ys: list[Tensor]) -> Tensor:
    """Return ``[n]``: the inner products of pairs of tensors, whose dtypes may differ."""
    return torch.stack([(x.double() * y.double()).sum() for x, y in zip(xs, ys, strict=True)])


def grad_factor(group: GroupOptions, options: StepOptions, like: Tensor) -> Tensor:
    """Return line 1's factor on the stored gradient: −1 when maximize, over a GradScaler's scale."""
    sign = -1.0 if group.maximize else 1.0
    return as_scalar(sign, like) if options.grad_scale is None else sign / options.grad_scale.to(like)


def as_scalar(value: float | Tensor, like: Tensor) -> Tensor:
    """Return a 0-dim tensor of another one's dtype and device."""
    if isinstance(value, Tensor):
        return value.to(like)
    return torch.full((), value, dtype=like.dtype, device=like.device)


def sum_on_kernel(xs: list[Tensor], ys: list[Tensor], with_products: bool) -> Tensor:
    """Return ``[3, n]``: Σx² of each tensor, and where asked Σxy and Σy²."""
    ys = [y if is_dense(y) else y.contiguous() for y in ys]
    xs = lay_out_as(ys, xs, ys[0].dtype)
    y_addresses = read_addresses(ys) if with_products else [0] * len(ys)
    numels, codes = read_numels(xs, ys), read_codes(ys)
    rows = native.required().sums(numels, codes, read_addresses(xs), y_addresses, torch.get_num_threads())
    return torch.tensor([list(row) for row in rows], dtype=torch.float64, device="cpu")


# The schemas are given, because torch 2.6 cannot infer them from list[Tensor].
sums_op = torch.library.custom_op(
    "acmo::sums",
    sum_on_kernel,
    mutates_args=(),
    schema="(Tensor[] xs, Tensor[] ys, bool with_products) -> Tensor",
)


@sums_op.register_fake
def _(xs: list[Tensor], ys: list[Tensor], with_products: bool) -> Tensor:
    return xs[0].new_empty((3, len(xs)), dtype=torch.float64)


def update_on_kernel(
    params: list[Tensor],
    moments: list[Tensor],
    grads: list[Tensor],
    coefficients: Tensor,
    should_step: Tensor,
) -> Tensor:
    """Write m and θ, if the step is taken; return ``[n]``: ‖m‖² of each moment then."""
    if not should_step:
        return sum_on_kernel(moments, moments, False)[0]
    dense = lay_out_as(moments, params, params[0].dtype)  # a parameter with gaps in memory is copied
    grads = lay_out_as(dense, grads, params[0].dtype)
    new = native.required().update(
        read_numels(dense, moments, grads),
        read_codes(dense),
        read_codes(moments),
        read_addresses(dense),
        read_addresses(moments),
        read_addresses(grads),
        coefficients.flatten().tolist(),
        torch.get_num_threads(),
    )
    for p, copy in zip(params, dense, strict=True):
        if copy is not p:
            p.copy_(copy)
    increment_version(params)
    increment_version(moments)
    return torch.tensor(list(new), dtype=torch.float64, device="cpu")


update_op = torch.library.custom_op(
    "acmo::update",
    update_on_kernel,
    mutates_args=("params", "moments"),
    schema="(Tensor(a0!)[] params, Tensor(a1!)[] moments, Tensor[] grads, Tensor coefficients, Tensor should_step)"
    " -> Tensor",
)


@update_op.register_fake
def _(
    params: list[Tensor],
    moments: list[Tensor],
    grads: list[Tensor],
    coefficients: Tensor,
    should_step: Tensor,
) -> Tensor:
    return coefficients.new_empty(len(params))


def read_numels(*lists: list[Tensor]) -> list[int]:
    """Return the tensors' numbers of entries, which must agree: the kernel checks nothing."""
    numels = [list(map(Tensor.numel, tensors)) for tensors in lists]
    if any(other != numels[0] for other in numels):
        raise RuntimeError(f"parameters, moments and gradients must have equal sizes, got {numels}")
    return numels[0]


def read_addresses(tensors: list[Tensor]) -> list[int]:
    """Return the tensors' addresses."""
    return list(map(Tensor.data_ptr, tensors))


def read_codes(tensors: list[Tensor]) -> list[int]:
    """Return the kernel's codes of the tensors' dtypes."""
    return [native.DTYPE_CODES[x.dtype] for x in tensors]
