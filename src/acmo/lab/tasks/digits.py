"""``digits``: scikit-learn's 1,797 images of 8x8 pixels, inside its wheel; nothing to download."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from acmo.lab.config.schedules import Schedule
from acmo.lab.errors import missing_extra
from acmo.lab.tasks.base import Recipe
from acmo.lab.tasks.classification import Classification
from acmo.lab.tasks.models.cnn import DigitsCNN


class Digits(Classification):
    """Handwritten digits, 8x8: 1,149 images to train on, 288 for validation, 360 for the test; a run takes a second."""

    name = "digits"
    recipe = Recipe(epochs=15, batch_size=32, schedule=Schedule("constant"))
    valid_share = 5
    eval_batch = 1000

    def data_files(self) -> Sequence[Path]:
        """Return the one file in scikit-learn's wheel."""
        return [Path(_datasets().__file__).parent / "data" / "digits.csv.gz"]

    def examples(self, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """Return the test data is every fifth image of each class, in the wheel's order: the same for every seed."""
        digits = _datasets().load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        labels = torch.tensor(digits.target, dtype=torch.int64)
        test = torch.zeros(len(labels), dtype=torch.bool)
        test[labels.argsort(stable=True)[::5]] = True
        chosen = test if split == "test" else ~test
        return images[chosen], labels[chosen]

    def model(self) -> nn.Module:
        """Return two convolutions and a linear layer."""
        return DigitsCNN()


def _datasets() -> Any:
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise missing_extra("scikit-learn") from None
    return datasets
