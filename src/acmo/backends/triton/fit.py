"""Which parts of a step the Triton kernels can take as they lie in memory."""

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from acmo.backends.tensor_layout import PLAIN_TYPES, have_plain_scales, is_dense
from acmo.backends.triton.availability import explain_unusable, usable
from acmo.rounding import find_first_index, rounds_randomly
from acmo.step_data import GroupOptions, Part

DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
get_dtype = attrgetter("dtype")


def can_step(part: Part, group: GroupOptions) -> bool:
    """Return whether the kernels can step a part on a device that they can be used on."""
    params, moments, grads, contiguous = part.params, part.moments, part.grads, Tensor.is_contiguous
    if not PLAIN_TYPES.issuperset(map(type, [*params, *moments, *grads])):
        return False
    if any(map(Tensor._is_zerotensor, grads)) or any(map(Tensor.is_neg, grads)):
        return False
    dtypes = {params[0].dtype, *map(get_dtype, grads)}
    dtypes |= set() if part.moment_scales else {moments[0].dtype}
    if not DTYPES.issuperset(dtypes) or any([g.dtype != grads[0].dtype for g in grads] if len(dtypes) > 1 else ()):
        return False
    if all(map(contiguous, params)) and all(map(contiguous, moments)) and all(map(contiguous, grads)):
        numbered = not rounds_randomly(part, group) or None not in map(find_first_index, part.owners)
        return numbered and have_plain_scales(part)
    # The random bits of an entry depend on its place in the tensor, which the kernels take from that in memory.
    return not rounds_randomly(part, group) and all(map(lie_alike, params, moments, grads))


def can_compile(part: Part, group: GroupOptions) -> bool:
    """Return whether a compiled step can pass a part to the kernels: tensors are fake while it is traced."""
    p, m = part.params[0], part.moments[0]
    if not usable.get(str(p.device), False) or p.dtype not in DTYPES or m.dtype not in DTYPES:
        return False
    if rounds_randomly(part, group):
        return False
    for x, y, z in zip(part.params, part.moments, part.grads, strict=True):
        if z.dtype != p.dtype or not lie_alike(x, y, z):
            return False
    return True


def lie_alike(p: Tensor, m: Tensor, g: Tensor) -> bool:
    """Return whether three tensors have their entries in the same order, without gaps."""
    return p.stride() == m.stride() == g.stride() and is_dense(p)


def can_step_rows(part: Part, group: GroupOptions) -> bool:
    """Return whether the row kernels can step a part: rows of dimension 0 must lie one behind the other."""
    if not can_step(part, group) or part.shards or (part.scope == "column" and part.owners[0].is_complex()):
        return False
    if all(map(Tensor.is_contiguous, part.params)):
        return True
    if part.scope == "column":
        return False
    return all([p.ndim < 2 or p.stride(0) * p.shape[0] == p.numel() for p in part.params])  # noqa: C419


def explain_unfit(part: Part, group: GroupOptions, by_row: bool) -> str:
    """Return why the kernels cannot step a part on a device that they can be used on."""
    if part.shards and by_row:
        return "rows are cut over ranks"
    if rounds_randomly(part, group):
        return "entries are rounded stochastically only where they lie in memory in the order of their indices"
    return "it needs plain dense tensors, with gradients that lie in memory as their parameters do"


def require(parts: Sequence[Part], groups: Sequence[GroupOptions], able: Sequence[bool], by_row: bool) -> None:
    """For ``fused=True``: raise where the kernels cannot step a part."""
    for part, ok in zip(parts, able, strict=True):
        if not ok:
            why = explain_unusable(part.params[0].device) or explain_unfit(part, groups[part.group], by_row)
            raise RuntimeError(
                f"fused=True, but the Triton kernel cannot be used: {why}. With fused=None, foreach is used."
            )
