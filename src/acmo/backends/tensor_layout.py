"""How a tensor's entries lie in memory."""

from operator import attrgetter

import torch
from torch import Tensor
from torch.nn import Parameter

from acmo.step_data import Part

PLAIN_TYPES = {Tensor, Parameter}
get_dtype = attrgetter("dtype")


def are_plain(part: Part) -> bool:
    """Return whether the C kernel can read a part's tensors by address: contiguous, not lazy, gradients of θ's dtype.

    It is asked at every step, and known from the last one as long as nothing but addresses changes.
    """
    if part.layout is None:
        return look_plain(part)
    known = part.layout.are_plain.get(part.indices[0])
    if known is None:
        known = part.layout.are_plain[part.indices[0]] = look_plain(part)
    return known


def look_plain(part: Part) -> bool:
    """Return the same by looking at every tensor."""
    tensors = [*part.params, *part.moments, *part.grads]
    return (
        PLAIN_TYPES.issuperset(map(type, tensors))
        and have_plain_scales(part)
        and not any(map(Tensor._is_zerotensor, part.grads))
        and not any(map(Tensor.is_neg, part.grads))
        and all(map(Tensor.is_contiguous, tensors))
        and set(map(get_dtype, part.grads)) == {part.params[0].dtype}
    )


def have_plain_scales(part: Part) -> bool:
    """Return whether a kernel can read the scales of int8 moments: one float32 per row. A user may replace them."""
    return all(
        type(s) in PLAIN_TYPES and s.dtype == torch.float32 and s.is_contiguous() and s.shape == p.shape[:1]
        for s, p in zip(part.moment_scales, part.params, strict=False)  # others than int8 have none
    )


def is_dense(tensor: Tensor) -> bool:
    """Return whether the entries fill one stretch of memory, each place once: contiguous, channels-last, transposed."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def flatten(tensor: Tensor) -> Tensor:
    """Return all entries as one axis: in storage order where they are dense (no copy), else in a copy."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def lay_out_as(patterns: list[Tensor], tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the tensors in a dtype and the memory order of their patterns, copied only where they differ."""
    return [
        x
        if x.stride() == like.stride() and x.dtype == dtype and not (x.is_neg() or x._is_zerotensor())
        else torch.empty_like(like, dtype=dtype).copy_(x)
        for like, x in zip(patterns, tensors, strict=True)
    ]
