"""Full-matrix Adagrad (eq. 3 of the paper) for runs that are shorter than θ is long."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class GramAdagrad(torch.optim.Optimizer):
    r"""θ − α G_t^{-1/2} g_t with G_t = Σ_{τ≤t} g_τ g_τᵀ, from the t × t matrix of inner products ⟨g_σ, g_τ⟩.

    With H = (g_1 … g_t) and K = HᵀH, G_t^{-1/2} g_t = H K^{-1/2} e_t: no matrix of d² numbers is needed, as
    `acmo.rivals.FullMatrixAdagrad` keeps. All gradients are kept instead, in float64.
    """

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})
        size = sum(p.numel() for group in self.param_groups for p in group["params"])
        self.history = torch.zeros(64, size, dtype=torch.float64)  # g_1 … g_t as rows, then room for more
        self.gram = torch.zeros(0, 0, dtype=torch.float64)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step."""
        if closure is not None:
            raise ValueError("GramAdagrad takes no closure: call backward() before step()")
        params = [p for group in self.param_groups for p in group["params"]]
        g = torch.cat([p.grad.double().flatten() for p in params])
        size = len(self.gram) + 1
        if size > len(self.history):
            self.history = torch.cat((self.history, torch.zeros_like(self.history)))
        self.history[size - 1] = g
        gram = torch.empty(size, size, dtype=torch.float64)
        gram[:-1, :-1] = self.gram
        gram[-1] = gram[:, -1] = self.history[:size] @ g
        self.gram = gram
        values, vectors = torch.linalg.eigh(gram)
        known = values > size * torch.finfo(torch.float64).eps * values[-1]
        roots = torch.where(known, values.clamp(min=0).rsqrt(), 0.0)
        weights = vectors @ (roots * vectors[-1])  # K^{-1/2} e_t
        move = weights @ self.history[:size]
        lr = self.param_groups[0]["lr"]
        for p, part in zip(params, move.split([p.numel() for p in params]), strict=True):
            p.sub_((lr * part).view_as(p).to(p.dtype))
