"""Tasks for tests: small, quick, and such that they leave traces of what was asked of them."""

import os
import time
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from acmo.lab.tasks.base import Recipe, Split
from acmo.lab.tasks.classification import Classification


class Blobs(Classification):
    """Three clouds of points; the net has dropout, so that a run depends on torch's generator at every step."""

    name = "blobs"
    recipe = Recipe(epochs=4, batch_size=20)

    def examples(self, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        if "BLOBS_TRACE" in os.environ:
            with Path(os.environ["BLOBS_TRACE"]).open("a") as file:
                file.write(f"{split}\n")
        draw = torch.Generator().manual_seed({"train": 0, "test": 1}[split])
        labels = torch.arange(210) % 3
        return torch.randn(210, 4, generator=draw) + 2 * labels[:, None], labels

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))


class Steady(Blobs):
    """Without dropout: what it learns does not depend on how a batch is cut."""

    name = "steady"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


class Words(Steady):
    """The loss has as many terms as the label says, as a sentence has words."""

    name = "words"

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = batch
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        return (losses * (y + 1)).sum(), (y + 1).sum()


class Talkative(Steady):
    """It has something to show after each evaluation."""

    name = "talkative"

    def samples(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{"source": "null", "output": str(int(model(torch.zeros(1, 4)).argmax()))}]


class Late(Steady):
    """Its validation loss is not finite from the second evaluation on."""

    name = "late"
    seen = 0

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, Any]:
        self.seen += 1
        return {**super().evaluate(model, split), **({"loss": float("inf")} if self.seen > 1 else {})}


class Slow(Steady):
    """It takes a second or two, so that a kill finds it at work."""

    name = "slow"
    recipe = Recipe(epochs=3, batch_size=20)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        time.sleep(0.03)
        return super().loss(model, batch)
