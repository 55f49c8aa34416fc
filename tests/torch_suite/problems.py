"""The small problems that the checks train on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


class LeastSquares:
    """f(W, b) = ‖W x + b‖², a 10 x 9 matrix and a vector. ‖x‖ = 1, so that lr = 0.1 is below the edge of stability.

    Both sides of the matrix are long enough for a spectral step.
    """

    def __init__(self, *, dtype: torch.dtype = torch.float32, contiguous: bool = True) -> None:
        if contiguous:
            weight, bias = torch.randn(10, 9, dtype=dtype), torch.randn(10, dtype=dtype)
        else:
            weight, bias = torch.randn(10, 9, 2, dtype=dtype)[..., 0], torch.randn(10, 2, dtype=dtype)[..., 0]
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.x = nn.functional.normalize(torch.randn(9, dtype=dtype), dim=0)
        assert self.weight.is_contiguous() == self.bias.is_contiguous() == contiguous

    @property
    def params(self) -> list[nn.Parameter]:
        return [self.weight, self.bias]

    @property
    def named(self) -> list[tuple[str, nn.Parameter]]:
        return [("weight", self.weight), ("bias", self.bias)]

    def clone(self) -> LeastSquares:
        other = object.__new__(LeastSquares)
        copies = (p.detach().clone(memory_format=torch.contiguous_format) for p in self.params)
        other.weight, other.bias = (nn.Parameter(copy) for copy in copies)
        other.x = self.x
        return other

    def closure(self) -> Tensor:
        """The loss, with fresh gradients left in the parameters."""
        self.weight.grad = self.bias.grad = None
        loss = (self.weight.mv(self.x) + self.bias).pow(2).sum()
        loss.backward()
        return loss

    def train(self, optimizer: Optimizer, steps: int, schedulers: list[LRScheduler] | None = None) -> None:
        for _ in range(steps):
            loss = self.closure()
            optimizer.step()
            for scheduler in schedulers or []:
                scheduler.step(*([loss.detach()] if isinstance(scheduler, ReduceLROnPlateau) else []))


class TinyNet(nn.Module):
    """Two layers, a 0-dim parameter with a gradient, a 0-dim one that never gets any, and one without elements.

    Both sides of the first matrix are long enough for a spectral step.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first, self.second = nn.Linear(9, 10), nn.Linear(10, 1)
        self.scale, self.unused, self.empty = (nn.Parameter(torch.zeros(s)) for s in ((), (), (0, 3)))
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).sigmoid()
        return self.second(hidden).sigmoid() * self.scale + self.empty.sum()


def seven_steps(net: TinyNet, optimizer: Optimizer) -> Iterator[int]:
    """Train by seven steps, one without any gradient (2), two with a frozen layer (3, 4); yields after each."""
    x = torch.arange(27, dtype=torch.float64).div(27).view(3, 9).to(net.scale.dtype)
    for step in range(7):
        optimizer.zero_grad()
        net.second.requires_grad_(step not in (3, 4))
        if step != 2:
            net(x).sum().backward()
        optimizer.step()
        yield step
