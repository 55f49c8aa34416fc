"""Classification: all of such a task but its data and its net."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from acmo.lab.errors import LabError
from acmo.lab.tasks.base import Split, Task

_VALID, _ORDER = 1, 2  # what a generator is for


class Classification(Task):
    """Describe a classification task whose examples are held in memory.

    A class of one's own gives `name`, `recipe`, `examples` and `model`; the rest may stay as it is.
    """

    refit = False  # whether validation examples are trained on
    valid_share: ClassVar[int] = 10  # one in so many examples of the training data is for validation
    eval_batch: ClassVar[int] = 500

    @abstractmethod
    def examples(self, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """Return inputs (N, ...) and labels (N,) of the training data or of the test data."""

    def inputs(self, x: Tensor) -> Tensor:
        """Return stored inputs as the net gets them: scaled, normalised."""
        return x

    def augment(self, x: Tensor, indices: Tensor, epoch: int) -> Tensor:
        """Return stored inputs, varied for training."""
        return x

    def prepare(self) -> None:
        """Read the training data and split it."""
        _ = self._train, self._split

    def facts(self) -> dict[str, Any]:
        """Return the amount of training data."""
        return {"examples": len(self._train[1])}

    def fingerprint(self) -> str | None:
        """Return a hash of the data's files, or of the training examples where no file is named."""
        known = super().fingerprint()
        if known is not None:
            return known
        digest = sha256()
        for tensor in self._train:
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    @cached_property
    def _train(self) -> tuple[Tensor, Tensor]:
        x, y = (tensor.to(self.device) for tensor in self.examples("train"))
        if len(x) != len(y) or len(y) < 2 * self.valid_share:
            raise LabError(f"{self.name} has {len(x)} training inputs and {len(y)} labels: too few, or not the same")
        return x, y

    @cached_property
    def _split(self) -> tuple[Tensor, Tensor]:
        """Return indices for training and for validation, every class in proportion, drawn by the seed."""
        labels = self._train[1].cpu()
        shuffled = torch.randperm(len(labels), generator=self.generator(_VALID))
        by_class = shuffled[labels[shuffled].argsort(stable=True)]
        held_out = torch.zeros(len(labels), dtype=torch.bool)
        held_out[by_class[:: self.valid_share]] = True
        trained = torch.ones_like(held_out) if self.refit else ~held_out
        return trained.nonzero().flatten(), held_out.nonzero().flatten()

    def join_validation(self) -> None:
        """Train on all training examples."""
        self.refit = True

    def batches(self, epoch: int) -> Sequence[Tensor]:
        """Return all training examples once, shuffled; the last batch may be smaller."""
        train = self._split[0]
        order = train[torch.randperm(len(train), generator=self.generator(_ORDER, epoch))]
        return torch.split(order, self.recipe.batch_size)

    def collate(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Return augmented inputs and labels."""
        x, y = self._train
        indices = indices.to(self.device)
        return self.inputs(self.augment(x[indices], indices, epoch)), y[indices]

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the cross-entropy, summed."""
        x, y = batch
        return cross_entropy(model(x), y, reduction="sum"), len(y)

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, Any]:
        """Return the mean cross-entropy, and the accuracy in [0, 1]."""
        if split == "valid":
            x, y = (tensor[self._split[1].to(self.device)] for tensor in self._train)
        else:
            x, y = (tensor.to(self.device) for tensor in self.examples("test"))
        loss = torch.zeros((), dtype=torch.float64)
        right = 0
        for xs, ys in zip(torch.split(x, self.eval_batch), torch.split(y, self.eval_batch), strict=True):
            logits = model(self.inputs(xs)).float()
            loss += cross_entropy(logits, ys, reduction="sum").double().cpu()
            right += int((logits.argmax(1) == ys).sum())
        return {"loss": float(loss) / len(y), "accuracy": right / len(y)}
