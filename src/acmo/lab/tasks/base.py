"""What a task is: data, a model, a loss, a score, and the recipe by which it is trained."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from acmo.lab.config.schedules import Schedule
from acmo.lab.errors import LabError
from acmo.lab.objects import nearest
from acmo.lab.results.run_record import Score
from acmo.lab.tasks.data_files import fingerprint_files

__all__ = ["Recipe", "Score", "Split", "Task"]

Split = Literal["valid", "test"]


@dataclass(frozen=True)
class Recipe:
    """Describe how a task is trained.

    Args:
      epochs: how long; or
      steps: exactly one of the two is given.
      batch_size: of the global batch: over all ranks and accumulation steps. In the task's own unit.
      schedule: of the learning rate.
      max_grad_norm: clip the gradient to this norm.
      evaluate_every: steps between two evaluations; None: after every epoch.
      accumulate: in how many parts a rank goes through its share of a batch.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 128
    schedule: Schedule = field(default_factory=Schedule)
    max_grad_norm: float | None = None
    evaluate_every: int | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise LabError("a recipe has epochs or steps, one of the two")

    def changed(self, config: Any) -> "Recipe":
        """Return the recipe with what a `RunConfig` sets."""
        values = {f.name: getattr(config, f.name) for f in fields(self) if getattr(config, f.name) is not None}
        if "schedule" in values:
            values["schedule"] = Schedule(values["schedule"])
        if values.get("max_grad_norm") == 0:
            values["max_grad_norm"] = None
        if "epochs" in values:
            values["steps"] = None
        elif "steps" in values:
            values["epochs"] = None
        return replace(self, **values)


class Task(ABC):
    """Describe something to train. Making one costs nothing: data is read by `prepare` or for the first batch.

    Args:
      size: one of `sizes`; None: the first.
      net: one of `nets`; None: the size's own.
      data: the folder of the data; None: what the task downloads, or has.
      seed: of the split, the order and the augmentation of the data.
    """

    name: ClassVar[str]
    score: ClassVar[Score] = Score()
    recipe: Recipe
    sizes: ClassVar[Sequence[str]] = ()
    nets: ClassVar[Sequence[str]] = ()
    data_folder: ClassVar[str] = ""  # its name below a root that holds the data of all tasks; empty: it reads none

    def __init__(
        self, size: str | None = None, net: str | None = None, data: Path | None = None, seed: int = 0
    ) -> None:
        if not hasattr(type(self), "name"):
            raise LabError(f"the task {type(self).__name__} has no name: give its class one, name = ...")
        self.size = self._one_of("size", size, self.sizes)
        self.net = self._one_of("net", net, self.nets)
        self.data = data
        self.seed = seed
        self.device = torch.device("cpu")  # the run puts its own

    def _one_of(self, what: str, value: str | None, known: Sequence[str]) -> str | None:
        if value is None:
            return known[0] if known and what == "size" else None
        if value not in known:
            offered = ", ".join(known) if known else "none"
            raise LabError(f"{self.name} has no {what} {value!r}{nearest(value, known)} (it has: {offered})")
        return value

    def prepare(self) -> None:  # noqa: B027  a task may have nothing to prepare
        """Load the data and check it: missing or damaged files are reported here, not in epoch 3."""

    def facts(self) -> dict[str, Any]:
        """Return facts about the prepared data, such as how much was left out; kept in ``config.json``."""
        return {}

    def data_files(self) -> Sequence[Path]:
        """Return the files that the data is read from, test data included, in a fixed order; none by default."""
        return ()

    def fingerprint(self) -> str | None:
        """Return a hash of the data, which is part of a run's id; None where there is no file to hash."""
        files = self.data_files()
        return fingerprint_files(files) if files else None

    def join_validation(self) -> None:
        """Train on the validation data too; only before the first batch."""
        raise LabError(f"{self.name} cannot train on its validation data: leave refit_on_all out")

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new model, its weights drawn from torch's global generator, which the run has seeded."""

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Tensor]:
        """Return the global batches of an epoch, as indices of examples, in an order drawn from (seed, epoch)."""

    @abstractmethod
    def collate(self, indices: Tensor, epoch: int) -> Any:
        """Return these examples as a batch: tensors, or tuples, lists and dicts of them.

        Augmentation is drawn for each example from (seed, epoch, index): whatever rank or run has it, it is the same.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int | Tensor]:
        """Return the loss *summed* over the batch and its number of terms; the loop divides by the global count."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: Split) -> dict[str, Any]:
        """Return metrics on held-out data, among them ``loss`` and the score's; the model is in eval mode already."""

    def training_loss(self, model: nn.Module) -> float:
        """Return the mean loss on all batches of the first epoch; the model is in eval mode already."""
        total, count = torch.zeros((), dtype=torch.float64), 0
        for indices in self.batches(0):
            loss, terms = self.loss(model, self.collate(indices, 0))
            total, count = total + loss.double().cpu(), count + int(terms)
        return float(total) / count

    def samples(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return samples to look at after an evaluation, such as translations; none by default."""
        return []

    def generator(self, *numbers: int) -> torch.Generator:
        """Return a new generator on the CPU for (seed, numbers)."""
        words = np.random.SeedSequence([self.seed, *numbers]).generate_state(2, np.uint32)
        return torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
