"""The two passes on lists of tensors, for every device: a few launches for all of them, no waiting for the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from acmo.backends.scalars import PartScalars
from acmo.backends.tensor_layout import flatten
from acmo.rounding import write_params
from acmo.step_data import GroupOptions, Part, StepOptions, scalar_dtype

TensorList = list[Tensor] | tuple[Tensor, ...]

PIECE = 2**18  # entries: as float64 they stay in the cache, and torch converts fewer than 2^16 with one thread


def compute_sums(part: Part, group: GroupOptions, options: StepOptions) -> Tensor:
    """Pass 1: see `acmo.backends.two_pass.Passes`."""
    raw = sum_squares(part.grads)
    if options.grad_scale is not None:
        raw = raw / options.grad_scale.to(raw).square()
    moment = (
        sum_squares(part.moments)
        if part.moment_sqs is None
        else torch.as_tensor(part.moment_sqs, dtype=raw.dtype, device=raw.device)
    )
    if not group.coupled_decay and not options.unit_step:
        return torch.stack((raw, moment))
    factor = grad_factor(group, options, raw)
    grads, _ = take_gradients(part, group, factor)
    if options.unit_step:
        zero, entries = torch.zeros_like(raw), count_entries(part).to(raw.device)
        return torch.stack((raw, moment, sum_squares(grads), zero, zero, sum_products(grads, part.moments), entries))
    decayed = sum_squares(grads)
    inner = theta = torch.zeros_like(raw)
    if options.max_grad_norm is not None:
        inner = sum_products(part.grads, part.params) * (1.0 if factor is None else factor)
        theta = sum_squares(part.params)
    return torch.stack((raw, moment, decayed, inner, theta))


def update(part: Part, group: GroupOptions, options: StepOptions, scalars: PartScalars) -> Tensor:
    """Pass 2: see `acmo.backends.two_pass.Passes`."""
    p0 = part.params[0]
    may_skip = options.nonfinite == "skip" or options.found_inf is not None
    if may_skip and p0.is_cpu and type(scalars.should_step) is Tensor and not torch.compiler.is_compiling():
        if not scalars.should_step:  # no device to wait for, and the value is there: a fake tensor has none
            return sum_squares(part.moments)
        may_skip = False
    dtype = torch.float64 if p0.dtype == torch.float64 else torch.float32
    factor = grad_factor(group, options, scalars.clip_scale)
    if options.max_grad_norm is not None:
        factor = scalars.clip_scale if factor is None else factor * scalars.clip_scale
    n = len(part.params)
    g, is_copy = take_gradients(part, group, factor)
    beta_hat, alpha, theta_factor = scalars.beta_hat, group.lr, group.theta_factor
    if scalars.step_factor is not None:  # where it is 0, m_t is rounding: β̂ = 0 and g = 0 make it 0
        alpha = alpha * scalars.step_factor
        remains = scalars.step_factor != 0
        beta_hat = torch.where(remains, beta_hat, 0.0)
        masks = remains.to(p0.device).expand(n).unbind()
        g, is_copy = [torch.where(mask, x, 0.0) for mask, x in zip(masks, g, strict=True)], True
    if may_skip:
        # A select in every step, taken or not: g = 0, β̂ = 1 and α = 0 leave everything as it is.
        should_step = scalars.should_step.to(p0.device)
        g, is_copy = select(g, should_step, is_copy), True
        beta_hat = beta_hat.masked_fill(~scalars.should_step, 1.0)
        if isinstance(alpha, Tensor):  # a unit step's factor may be NaN, and 0 · NaN is NaN
            alpha = torch.where(should_step, alpha.to(p0.device, dtype), 0.0)
        else:
            alpha = should_step.to(dtype) * alpha
        if group.decoupled:
            theta_factor = torch.where(should_step, as_scalar(theta_factor, dtype, p0.device), 1.0)
    beta_hat = beta_hat.to(p0.device)
    alpha = alpha.to(p0.device, dtype) if isinstance(alpha, Tensor) else alpha
    theta_factor = theta_factor.to(p0.device, dtype) if isinstance(theta_factor, Tensor) else theta_factor
    if part.moments[0].dtype == p0.dtype == dtype:
        write_moments(part.moments, g, beta_hat, in_float64=p0.device.type not in ("cpu", "mps"))
        del g  # before the next list is made
        if group.decoupled:
            torch._foreach_mul_(part.params, theta_factor)
        if isinstance(alpha, Tensor):
            torch._foreach_addcmul_(part.params, part.moments, list(alpha.expand(n).unbind()), value=-1)
        else:
            torch._foreach_add_(part.params, part.moments, alpha=-alpha)
    else:  # stored in less than is computed in: θ takes m before it is rounded
        g = g if is_copy else [x.clone() for x in g]
        for x, m, r in zip(g, part.moments, find_root(beta_hat, dtype).expand(n).unbind(), strict=True):
            x.addcmul_(m.to(dtype) * r, r)
        torch._foreach_copy_(part.moments, g)
        if part.moments[0].dtype == torch.float16:  # an infinite m would be NaN after the next step
            torch._foreach_clamp_max_(part.moments, torch.finfo(torch.float16).max)
            torch._foreach_clamp_min_(part.moments, torch.finfo(torch.float16).min)
        torch._foreach_mul_(g, list((-alpha).unbind()) if isinstance(alpha, Tensor) and alpha.ndim else -alpha)
        for x, p in zip(g, part.params, strict=True):
            x.add_(p.to(dtype).mul_(theta_factor) if group.decoupled else p)
        write_params(part, group, g)
    return sum_squares(part.moments)


def take_gradients(part: Part, group: GroupOptions, factor: Tensor | None) -> tuple[TensorList, bool]:
    """Return factor · g + λθ in the precision of the arithmetic, and whether it is a copy that may be written to."""
    dtype = torch.float64 if part.params[0].dtype == torch.float64 else torch.float32
    g: TensorList = part.grads
    is_copy = any([x.dtype != dtype for x in g])  # noqa: C419
    if is_copy:
        g = [x.to(dtype, copy=True) for x in g]
    if factor is not None:
        factor = factor.to(g[0].device, dtype)
        g, is_copy = [x.mul_(factor) for x in g] if is_copy else torch._foreach_mul(g, factor), True
    if group.coupled_decay:
        if is_copy:
            torch._foreach_add_(g, part.params, alpha=group.coupled_decay)
        else:
            g, is_copy = torch._foreach_add(g, part.params, alpha=group.coupled_decay), True
    return g, is_copy


def select(tensors: TensorList, should_step: Tensor, is_copy: bool) -> TensorList:
    """Return the tensors if the step is taken, else zeros: their bits times 1 or 0, for 0 · NaN is NaN."""
    dtype = tensors[0].dtype
    bits = torch.int64 if dtype == torch.float64 else torch.int32
    views = [x.resolve_neg().view(bits) for x in tensors]
    if is_copy:
        torch._foreach_mul_(views, should_step.to(bits))
        return tensors
    return [x.view(dtype) for x in torch._foreach_mul(views, should_step.to(bits))]


def write_moments(moments: list[Tensor], g: TensorList, beta_hat: Tensor, *, in_float64: bool) -> None:
    """Line 6: write g + β̂m into the moments, one operation per tensor.

    β̂ may overflow or vanish in float32 where β̂m does not. ``in_float64``: it is a float64 tensor of one dimension, in
    whose precision torch computes then. A CPU would copy g and m for that, and MPS has no float64: there m is
    multiplied twice by the root.
    """
    factors = torch.split(beta_hat.expand(len(g)), 1)
    if not in_float64:
        root = find_root(beta_hat, moments[0].dtype)
        torch._foreach_mul_(moments, root if root.ndim == 0 else list(root.unbind()))
        factors = root.expand(len(g)).unbind()
    for x, m, b in zip(g, moments, factors, strict=True):
        torch.addcmul(x, m, b if m.ndim else b.view(()), out=m)


def find_root(beta_hat: Tensor, dtype: torch.dtype) -> Tensor:
    """Return √β̂ in the precision of the arithmetic: finite, unless β̂ is not."""
    root = beta_hat.sqrt().clamp(max=torch.finfo(dtype).max)
    return torch.where(torch.isinf(beta_hat), beta_hat, root).to(dtype)


def grad_factor(group: GroupOptions, options: StepOptions, like: Tensor) -> Tensor | None:
    """Return line 1's factor on the stored gradient: −1 when maximize, over a GradScaler's scale; None for 1."""
    if options.grad_scale is None:
        return -torch.ones((), dtype=like.dtype, device=like.device) if group.maximize else None
    return (-1.0 if group.maximize else 1.0) / options.grad_scale.to(like)


def as_scalar(value: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a 0-dim tensor, filled on the device rather than copied to it."""
    return value.to(device, dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=dtype, device=device)


def count_entries(part: Part) -> Tensor:
    """Return ``[n]``: the entries of each parameter on this rank; a complex one counts once."""
    counts = [p.numel() // (2 if o.is_complex() else 1) for p, o in zip(part.params, part.owners, strict=True)]
    return torch.tensor(counts, dtype=scalar_dtype(part.params[0].device), device="cpu")


def sum_squares(tensors: Sequence[Tensor]) -> Tensor:
    """Return ``[n]``: the sum of squares of each tensor, in float64: of float32 entries none overflows or vanishes.

    On MPS, which has no float64, norms beyond 1.8e19 overflow and entries below 1e-23 count as 0. Of float64 entries
    the bounds are 1e154 and 1e-162.
    """
    dtype = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    if torch.compiler.is_compiling():  # one fused pass: nothing is copied there
        return torch.stack([t.to(dtype).square().sum() for t in tensors])
    if not tensors[0].is_cpu:
        return torch.stack(torch._foreach_norm([flatten(t) for t in tensors], 2, dtype)).square()
    totals = []
    buffer = tensors[0].new_empty(0, dtype=dtype)  # one for all pieces: fresh memory costs as much as the sums
    for t in tensors:
        x = t.view(-1) if t.is_contiguous() else flatten(t)
        squares = []
        for piece in torch.split(x, PIECE):
            n = piece.numel()
            if n > buffer.numel():
                buffer = buffer.new_empty(n)
            x64 = buffer[:n].copy_(piece)
            squares.append(torch.dot(x64, x64))
        totals.append(squares[0] if len(squares) == 1 else torch.stack(squares).sum())
    return torch.stack(totals)


def sum_products(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
    """Return ``[n]``: the inner products of pairs of tensors."""
    dtype = scalar_dtype(xs[0].device)
    return torch.stack([(x.to(dtype) * y.to(dtype)).sum() for x, y in zip(xs, ys, strict=True)])
