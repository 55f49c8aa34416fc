"""An optimizer of one's own: signSGD with momentum. Any `torch.optim.Optimizer` will do; the lab asks no more."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class SignSGD(Optimizer):
    """Steps of fixed size in the direction of the moment's signs.

    Args:
      params: what to train.
      lr: step size.
      momentum: how much of the moment is kept.
      weight_decay: added to the gradient, times the parameters.
    """

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                gradient = p.grad + group["weight_decay"] * p
                moment.mul_(group["momentum"]).add_(gradient, alpha=1 - group["momentum"])
                p.sub_(moment.sign(), alpha=group["lr"])
        return loss
