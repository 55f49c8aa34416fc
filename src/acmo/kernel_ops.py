"""The kernel's two passes as custom ops: for torch.compile, and for steps that share their scalars with foreach."""

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acmo import foreach, native
from acmo.calibration import Scalars
from acmo.parts import Group, Part, Rules, numels


def sums(part: Part, group: Group, rules: Rules) -> Tensor:
    """Pass 1 as `acmo.foreach.sums` gives it."""
    call = sums_op if torch.compiler.is_compiling() else _sums
    g, inner, theta = call(part.grads, part.params, group.coupled != 0).unbind()
    factor = foreach.sign(group, rules, g)
    if factor is not None:
        g, inner = g * factor.square(), inner * factor
    m = torch.cat(part.moment_sqs)
    if not group.coupled:
        return torch.stack((g, m))
    decayed = (g + 2 * group.coupled * inner + group.coupled**2 * theta).clamp(min=0.0)
    return torch.stack((g, m, decayed, inner, theta))


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
    call = update_op if torch.compiler.is_compiling() else _update
    new: Tensor = call(part.params, part.moments, part.grads, part.moment_sqs, coef, scalars.go.cpu())
    return new


def _sums(grads: list[Tensor], params: list[Tensor], coupled: bool) -> Tensor:
    """``[3, n]``: ‖g‖², and where decay is coupled ⟨g, θ⟩ and ‖θ‖², of each tensor."""
    held = laid_out(params, grads)
    theta = addresses(params) if coupled else [0] * len(params)
    rows = native.required().sums(
        numels(params, params, held), codes(params), addresses(held), theta, torch.get_num_threads()
    )
    return torch.tensor([list(row) for row in rows], dtype=torch.float64, device="cpu")


sums_op = torch.library.custom_op("acmo::sums", _sums, mutates_args=())


@sums_op.register_fake
def _(grads: list[Tensor], params: list[Tensor], coupled: bool) -> Tensor:
    return grads[0].new_empty((3, len(grads)), dtype=torch.float64)


def _update(
    params: list[Tensor], moments: list[Tensor], grads: list[Tensor], moment_sqs: list[Tensor], coef: Tensor, go: Tensor
) -> Tensor:
    """Write m and θ, if it is a go; ``[n]``: ‖m‖² of each moment then."""
    if not go:
        return torch.cat(moment_sqs)
    held, where = laid_out(params, grads), (addresses(params), addresses(moments))
    numbers, threads = coef.flatten().tolist(), torch.get_num_threads()
    new = native.required().update(
        numels(params, moments, held), codes(params), codes(moments), *where, addresses(held), numbers, threads
    )
    increment_version(params)
    return torch.tensor(list(new), dtype=torch.float64, device="cpu")


update_op = torch.library.custom_op("acmo::update", _update, mutates_args=("params", "moments"))


@update_op.register_fake
def _(
    params: list[Tensor], moments: list[Tensor], grads: list[Tensor], moment_sqs: list[Tensor], coef: Tensor, go: Tensor
) -> Tensor:
    return coef.new_empty(len(params))


def laid_out(params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """The gradients in the order of memory and the dtype of their parameters, copied only where they are not."""
    return [
        g
        if g.stride() == p.stride() and g.dtype == p.dtype and not (g.is_neg() or g._is_zerotensor())
        else torch.empty_like(p).copy_(g)
        for g, p in zip(grads, params, strict=True)
    ]


def addresses(tensors: list[Tensor]) -> list[int]:
    return [x.data_ptr() for x in tensors]


def codes(tensors: list[Tensor]) -> list[int]:
    return [native.DTYPE_CODES[x.dtype] for x in tensors]
