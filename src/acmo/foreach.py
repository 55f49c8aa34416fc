"""ACMo on lists of tensors: a few launches for all of them, β̂ and the decision to skip on the device, no waiting."""

from collections.abc import Sequence

import torch
from torch import Tensor

from acmo.calibration import Scalars, solve
from acmo.norms import inners, squares
from acmo.parts import Group, Part, Record, Rules, arithmetic_dtype, numels, record
from acmo.sharding import home, over_shards

TensorList = list[Tensor] | tuple[Tensor, ...]


def step(parts: Sequence[Part], groups: Sequence[Group], rules: Rules) -> Record:
    """One step of ACMo: pass 1 for the norms, the scalars, pass 2 for m and θ."""
    if not torch.compiler.is_compiling():
        for part in parts:
            numels(part.params, part.moments, part.grads)
    like = home(parts, rules.process_group)
    rows, doubt = over_shards(
        [sums(part, groups[part.group], rules).to(like) for part in parts], parts, rules.found_inf
    )
    scalars = solve(parts, groups, rules, rows, doubt)
    new_sqs = [update(part, groups[part.group], rules, scalars, k).to(like) for k, part in enumerate(parts)]
    return finish(parts, scalars, rows, new_sqs)


def sums(part: Part, group: Group, rules: Rules) -> Tensor:
    """Pass 1, ``[2, n_k]``: ‖g‖² and ‖m‖² of each tensor; with coupled decay ‖g + λθ‖², ⟨g, θ⟩, ‖θ‖² below them."""
    g = squares(part.grads)
    if rules.grad_scale is not None:
        g = g / rules.grad_scale.to(g).square()
    m = torch.cat(part.moment_sqs)
    if not group.coupled:
        return torch.stack((g, m))
    factor = sign(group, rules, g)
    decayed, inner, theta = squares(gradients(part, group, factor)), torch.zeros_like(g), torch.zeros_like(g)
    if rules.max_grad_norm is not None:
        inner = inners(part.grads, part.params) * (1.0 if factor is None else factor)
        theta = squares(part.params)
    return torch.stack((g, m, decayed, inner, theta))


def update(part: Part, group: Group, rules: Rules, scalars: Scalars, k: int) -> Tensor:
    """Pass 2: m and θ of one part, in place. Returns the new ‖m‖² of each tensor."""
    p0 = part.params[0]
    dtype = arithmetic_dtype(p0)
    go = scalars.go.to(p0.device)
    scale = sign(group, rules, scalars.clip_scale)
    if rules.max_grad_norm is not None:
        scale = scalars.clip_scale if scale is None else scale * scalars.clip_scale
    g = gradients(part, group, scale)
    beta_hat, alpha, keep = scalars.beta_hats[k], group.lr, group.keep
    if rules.nonfinite == "skip" or rules.found_inf is not None:
        # A select for every step, taken or not: g = 0, β̂ = 1, α = 0 leave all as it is.
        g = [torch.where(go, x, 0.0) for x in g] if g is part.grads else [x.masked_fill_(~go, 0.0) for x in g]
        beta_hat = torch.where(scalars.go, beta_hat, 1.0)
        alpha = torch.where(go, on_device(alpha, dtype, p0.device), 0.0)
        keep = torch.where(go, on_device(keep, dtype, p0.device), 1.0) if group.decoupled else keep
    beta_hat = beta_hat.to(p0.device, dtype)
    alpha = alpha.to(p0.device, dtype) if isinstance(alpha, Tensor) else alpha
    keep = keep.to(p0.device, dtype) if isinstance(keep, Tensor) else keep
    if part.moments[0].dtype == p0.dtype == dtype:
        torch._foreach_mul_(part.moments, beta_hat if beta_hat.ndim == 0 else list(beta_hat.unbind()))
        torch._foreach_add_(part.moments, g)
        del g  # before the next list is made
        if group.decoupled:
            torch._foreach_mul_(part.params, keep)
        if isinstance(alpha, Tensor):
            torch._foreach_add_(part.params, torch._foreach_mul(part.moments, -alpha))
        else:
            torch._foreach_add_(part.params, part.moments, alpha=-alpha)
    else:  # stored in less than is computed in: θ gets m before it is rounded
        g = [x.clone() for x in g] if g is part.grads else g
        for x, m, b in zip(g, part.moments, beta_hat.expand(len(g)).unbind(), strict=True):
            x.addcmul_(m, b)
        torch._foreach_copy_(part.moments, g)
        if part.moments[0].dtype == torch.float16:  # its range is short: an infinite m would be NaN after the next step
            torch._foreach_clamp_max_(part.moments, torch.finfo(torch.float16).max)
            torch._foreach_clamp_min_(part.moments, torch.finfo(torch.float16).min)
        torch._foreach_mul_(g, -alpha)
        for x, p in zip(g, part.params, strict=True):
            p.copy_(x.add_(p.to(dtype).mul_(keep) if group.decoupled else p))
    return squares(part.moments)


def moment_square(moment: Tensor) -> Tensor:
    """‖m‖² as pass 2 leaves it, to the bit."""
    return squares([moment])


def gradients(part: Part, group: Group, scale: Tensor | None) -> TensorList:
    """Scale · g + λθ in the precision of the arithmetic: the gradients themselves where there is nothing to do."""
    dtype = arithmetic_dtype(part.params[0])
    g: TensorList = part.grads
    if any(x.dtype != dtype for x in g):
        g = [x.to(dtype, copy=True) for x in g]  # a copy of each: what follows works in place
    if scale is not None:
        scale = scale.to(g[0].device, dtype)
        g = torch._foreach_mul(g, scale) if g is part.grads else [x.mul_(scale) for x in g]
    if group.coupled:
        if g is part.grads:
            return torch._foreach_add(g, part.params, alpha=group.coupled)
        torch._foreach_add_(g, part.params, alpha=group.coupled)
    return g


def sign(group: Group, rules: Rules, like: Tensor) -> Tensor | None:
    """Line 1's factor on the gradient as it lies there: −1 when maximize, over a GradScaler's scale; None for 1."""
    if rules.grad_scale is None:
        return -torch.ones((), dtype=like.dtype, device=like.device) if group.maximize else None
    return (-1.0 if group.maximize else 1.0) / rules.grad_scale.to(like)


def on_device(value: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A 0-dim tensor, filled on the device rather than copied to it."""
    return value.to(device, dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=dtype, device=device)


def finish(parts: Sequence[Part], scalars: Scalars, rows: Sequence[Tensor], new_sqs: Sequence[Tensor]) -> Record:
    """Write each tensor's t, β̂ and ‖m‖² back into the state, and keep what telemetry may ask for."""
    for k, (part, new_sq) in enumerate(zip(parts, new_sqs, strict=True)):
        scatter(part.steps, torch.where(scalars.go, scalars.ts[k], torch.stack(part.steps).to(new_sq)))
        scatter(part.moment_sqs, new_sq)
        if part.beta_hats:
            scatter(part.beta_hats, torch.where(scalars.go, scalars.kept[k], torch.cat(part.beta_hats).to(new_sq)))
    beta_hats = [b.expand(len(part.params)) for b, part in zip(scalars.beta_hats, parts, strict=True)]
    columns = zip(rows, scalars.g_sqs, new_sqs, beta_hats, strict=True)
    tables = [torch.stack((r[0], g_sq, r[1], new_sq, b)) for r, g_sq, new_sq, b in columns]
    table = torch.cat(tables, dim=1) if tables else scalars.clip_scale.new_zeros(5, 0)
    return record(parts, table, scalars.clip_scale.reshape(1), scalars.go, scalars.whole, scalars.active)


def scatter(targets: TensorList, values: Tensor) -> None:
    """``[n]`` values into n tensors of one element."""
    torch._foreach_copy_(targets, list(values.to(targets[0].device).expand(len(targets)).unbind()))
