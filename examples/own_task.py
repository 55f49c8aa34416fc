"""A task of your own in the lab: a class with its data, its net and its recipe.

Splitting, shuffling, the loss, the accuracy, checkpoints and resuming come with it. For an optimizer of your own see
own_optimizer beside this file; both can be named together.

    acmo train examples/own_task.py:Spirals --optimizer acmo --lr 0.1
    acmo compare examples/own_task.py:Spirals --optimizers acmo,sgd-momentum,adam
    acmo train examples/own_task.py:Spirals --optimizer examples/own_optimizer/sign_sgd.py:SignSGD --lr 0.003
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from acmo.lab.config.schedules import Schedule
from acmo.lab.tasks.base import Recipe
from acmo.lab.tasks.classification import Classification


class Spirals(Classification):
    """Points on three spiral arms; which arm?"""

    name = "spirals"
    recipe = Recipe(epochs=30, batch_size=32, schedule=Schedule("warmup:1+cosine"))

    def examples(self, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """Inputs and labels; the lab takes one in ten of the training data for validation, by the run's seed."""
        draw = torch.Generator().manual_seed({"train": 0, "test": 1}[split])
        arm = torch.arange(1_000) % 3
        radius = torch.rand(1_000, generator=draw)
        angle = 4 * radius + arm * (2 * math.pi / 3) + 0.2 * torch.randn(1_000, generator=draw)
        return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm

    def model(self) -> nn.Module:
        """A fresh net; the lab has seeded torch before it asks."""
        return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
