"""Ψ of line 5 as a callable: how it is called, and what it must return."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

Psi = Callable[[Tensor, Tensor, Tensor], Tensor]  # (β̂, β̂_prev, t) → β̂


def call_psi(psi: Any, beta_hat: Tensor, previous: Tensor, t: Tensor) -> Tensor:
    """Return Ψ(β̂, β̂_prev, t); raise unless it is a Tensor of β̂'s shape."""
    result = psi(beta_hat, previous, t)
    if not isinstance(result, Tensor) or result.shape != beta_hat.shape:
        got = f"one of shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
        raise TypeError(f"psi must return a Tensor of the shape of beta_hat, {tuple(beta_hat.shape)}, got {got}")
    return result.to(beta_hat)
