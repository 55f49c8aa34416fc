"""A net for steps inside backward, how it trains, and comparisons to the bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Net(nn.Module):
    """A tied table and head, a convolution, a norm layer, and parameters without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.norm = nn.LayerNorm(6)
        self.idle = nn.Linear(6, 6)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.head = nn.Linear(6, 50)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.conv(self.table(tokens).transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(x).relu())


def make() -> Net:
    torch.manual_seed(0)
    return Net()


def loss_of(model: nn.Module, t: int = 0) -> Tensor:
    tokens = torch.randint(50, (4, 7), generator=torch.Generator().manual_seed(t))
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def train(model: nn.Module, opt: Optimizer, steps: range = range(5)) -> list[float]:
    losses = []
    for t in steps:
        loss = loss_of(model, t)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def assert_same_bits(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def assert_same_states(one: Optimizer, other: Optimizer) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert a["param_groups"] == b["param_groups"]
    assert_same_bits(a["state"], b["state"])
