"""Colour or grey images of 32x32: what CIFAR and Fashion-MNIST have in common."""

import os
import sys
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from acmo.lab.config.schedules import Schedule
from acmo.lab.errors import LabError
from acmo.lab.tasks.augment import crop_and_flip
from acmo.lab.tasks.base import Recipe
from acmo.lab.tasks.classification import Classification
from acmo.lab.tasks.models import NETS


@dataclass(frozen=True)
class Size:
    """A size of a task: a net, a recipe, and how many training images are used (None: all)."""

    net: str
    recipe: Recipe
    images: int | None = None


# As the paper has it; then for hours, and for minutes, on a core.
PAPER = Size("resnet50", Recipe(epochs=200, batch_size=128, schedule=Schedule("steps:50:0.1")))
SMALL = Size("resnet20", Recipe(epochs=40, batch_size=128, schedule=Schedule("steps:10:0.1")))
# One drop of the rate, not three: with steps:4 learning stops too early (SGD-momentum: 56 % in validation, not 63 %).
TINY = Size("resnet8", Recipe(epochs=16, batch_size=64, schedule=Schedule("steps:8:0.1")), images=10_000)


class Images(Classification):
    """Images (N, C, 32, 32) of bytes; random crop with padding 4 and flip; normalised by channel."""

    classes: ClassVar[int]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    presets: ClassVar[Mapping[str, Size]]
    official: ClassVar[Mapping[Literal["train", "test"], int]]  # how many images there are
    nets = tuple(NETS)

    def __init__(
        self, size: str | None = None, net: str | None = None, data: Path | None = None, seed: int = 0
    ) -> None:
        super().__init__(size, net, data, seed)
        assert self.size is not None
        self.preset = self.presets[self.size]
        self.recipe = self.preset.recipe
        self.net = self.net or self.preset.net

    @abstractmethod
    def labels(self, split: Literal["train", "test"]) -> Mapping[Path, Tensor]:
        """Return the labels of every file of a split; no image is looked at."""

    def prepare(self) -> None:
        """Get the data, check that it is complete, and read what is for training."""
        subset = self.subset
        if subset is not None and os.environ.get("RANK", "0") == "0":
            print(f"{self.name}: {subset}", file=sys.stderr)
        super().prepare()

    def facts(self) -> dict[str, Any]:
        """Return how much training data there is, and of how much it is a part."""
        return {**super().facts(), **({} if self.subset is None else {"subset": self.subset})}

    @cached_property
    def subset(self) -> str | None:
        """Return what part of the official data this is; None if it is all, a `LabError` if files look cut or missing.

        A part that someone chose has equally many images per file and per class, which a cut file has not; or a
        file called ``SUBSET`` lies beside it.
        """
        parts = []
        for split, official in self.official.items():
            files = self.labels(split)
            labels = torch.cat(list(files.values()))
            if len(labels) == official:
                continue
            even = len({len(part) for part in files.values()}) == 1
            even = even and len(set(labels.bincount(minlength=self.classes).tolist())) == 1
            if not even and not any((path.parent / "SUBSET").is_file() for path in files):
                counts = ", ".join(f"{path}: {len(part):,}" for path, part in files.items())
                raise LabError(
                    f"{self.name} has {len(labels):,} {split} images where the official data has {official:,}, and not "
                    f"as many of each class and in each file ({counts}): a file is cut short; if the subset is meant, "
                    "put a file called SUBSET beside it"
                )
            parts.append(f"{len(labels):,} of {official:,} {split} images")
        return f"a subset of the official data, {' and '.join(parts)}" if parts else None

    def model(self) -> nn.Module:
        """Return the net, laid out with the channels last, which is what convolutions are fast with."""
        assert self.net is not None
        net: nn.Module = NETS[self.net](self.classes, len(self.mean))
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def inputs(self, x: Tensor) -> Tensor:
        """Convert bytes to floats of mean 0 and deviation 1."""
        shape = (1, len(self.mean), 1, 1)
        scale = torch.tensor([1 / (255 * std) for std in self.std], device=x.device).view(shape)
        shift = torch.tensor([-m / s for m, s in zip(self.mean, self.std, strict=True)], device=x.device).view(shape)
        # To floats first, then to their places: converting and moving in one go takes twice as long.
        return torch.addcmul(shift, x.float().contiguous(memory_format=torch.channels_last), scale)

    def augment(self, x: Tensor, indices: Tensor, epoch: int) -> Tensor:
        """Crop with padding 4 and flip, at random."""
        return crop_and_flip(x, indices, self.seed, epoch)

    def limited(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return as many training images as the size asks for: of every class the first ones."""
        images = self.preset.images
        if images is None or len(y) <= images:
            return x, y
        share = images // self.classes
        place = torch.zeros_like(y)
        for label in range(self.classes):
            mine = y == label
            place[mine] = torch.arange(int(mine.sum()))
        kept = place < share
        return x[kept], y[kept]
