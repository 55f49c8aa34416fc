"""How a tensor's entries lie in memory."""

import torch
from torch import Tensor


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
