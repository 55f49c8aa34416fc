"""Moments of one byte per entry: int8 with one float32 scale per row of dimension 0."""

import torch
from torch import Tensor

LEVELS = 127


def dequantise(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the moment that the bytes and their scales stand for."""
    return q.to(dtype) * scale.to(dtype).view(-1, *[1] * (q.ndim - 1))


def quantise(m: Tensor, q: Tensor, scale: Tensor, changed: Tensor | None = None) -> None:
    """Write a moment as bytes and scales: the largest entry of a row becomes ±127, the others the nearest multiple.

    Args:
      m: the moment.
      q: its int8 bytes, of the same shape.
      scale: float32, one per row of dimension 0.
      changed: bool, one per row: which rows to write; all without it.
    """
    new = m.reshape(len(scale), -1).abs().amax(1) / LEVELS if m.numel() else scale.to(m.dtype)
    new = new.to(scale.dtype)
    step = torch.where(new == 0, 1.0, new).to(m.dtype).view(-1, *[1] * (m.ndim - 1))
    values = torch.round(m / step).clamp(-LEVELS, LEVELS).to(q.dtype)
    if changed is not None:
        new = torch.where(changed, new, scale)
        values = torch.where(changed.view(-1, *[1] * (m.ndim - 1)), values, q)
    q.copy_(values)
    scale.copy_(new)
