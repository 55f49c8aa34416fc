"""The loop: steps, log lines, evaluations, and the state that a resumed run needs."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acmo.lab.results.metrics_file import MetricsWriter
from acmo.lab.results.run_record import finite_or_none
from acmo.lab.runs import randomness
from acmo.lab.runs.ranks import Ranks
from acmo.lab.runs.stepping import Stepper
from acmo.lab.tasks.base import Split, Task

HALF_LIFE = 50  # the smoothed training loss forgets half in one fiftieth of the steps
EXPLODED = 1e3  # times the first loss (or 1, if that is smaller): what counts as diverged while still finite


class Progress(NamedTuple):
    """How far a run is."""

    step: int
    steps: int
    epoch: float
    loss: float
    seconds: float


@dataclass(frozen=True)
class Watched:
    """What an evaluation looks at: validation data, test data (never to select by), all training data."""

    valid: bool = True
    test: bool = False
    train: bool = False


@dataclass
class Position:
    """Where a run is: what a checkpoint has to know beside tensors."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch: the next one
    seconds: float = 0.0  # spent training, not evaluating
    first_loss: float | None = None
    valid: dict[str, Any] = field(default_factory=dict)
    best_valid: dict[str, Any] = field(default_factory=dict)
    curve: list[tuple[int, float, float | None]] = field(default_factory=list)  # as in `RunRecord`
    test_curve: list[tuple[int, float, float | None]] = field(default_factory=list)
    train_curve: list[tuple[int, float, float | None]] = field(default_factory=list)
    smooth: tuple[float, float] = (0.0, 0.0)  # sum and weight of the smoothed training loss


class Training:
    """A task, a model and an optimizer under way.

    Args:
      task: with the recipe to follow, and data prepared.
      model: on the device.
      optimizer: of the model's parameters.
      ranks: those that train together.
      autocast: ``off``, ``bfloat16`` or ``float16``.
      log_every: steps between two lines; None: 100 lines in all, but at least one every 50 steps.
      watched: what is evaluated on the way.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: Optimizer,
        ranks: Ranks,
        *,
        autocast: str = "off",
        log_every: int | None = None,
        watched: Watched | None = None,
    ) -> None:
        self.task, self.model, self.optimizer, self.ranks, self.recipe = task, model, optimizer, ranks, task.recipe
        self.watched = watched or Watched()
        self.metrics: MetricsWriter | None = None  # on the rank that writes
        self.prune: Callable[[int, float], bool] | None = None  # (per cent of the steps, score) → whether to stop
        self.pruned = False
        self.at = Position()
        self._batches: tuple[int, Sequence[Tensor]] = (0, task.batches(0))
        per_epoch = len(self._batches[1])
        self.steps = self.recipe.steps or (self.recipe.epochs or 0) * per_epoch
        self.log_every = log_every or max(1, min(50, self.steps // 100))
        self.stepper = Stepper(task, model, optimizer, ranks, autocast, self.steps, per_epoch)
        # Since the last line. Added up where they are: reading them is what waits.
        wide = torch.float32 if ranks.device.type == "mps" else torch.float64
        self._span = torch.zeros((), dtype=wide, device=ranks.device)
        self._count: int | Tensor = 0

    @property
    def done(self) -> bool:
        """Return whether the recipe is fulfilled."""
        return self.at.step >= self.steps if self.recipe.epochs is None else self.at.epoch >= self.recipe.epochs

    @property
    def epoch(self) -> float:
        """Return the epochs done, with the fraction of the current one."""
        return self.at.epoch + (self.at.batch / len(self._batches[1]) if self.at.batch else 0)

    def run(
        self, progress: Callable[[Progress], None] | None, due: Callable[[bool], bool], save: Callable[[], None]
    ) -> str | None:
        """Train to the end; return why it ended before, if it diverged or was pruned.

        Args:
          progress: called with every line that is logged.
          due: returns whether to save now; its argument is whether a line was just logged.
          save: called between two steps.
        """
        self.stepper.train()
        clock = time.perf_counter()
        while not self.done:
            try:
                self._step()
            except (FloatingPointError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined, unused-ignore]
                # Of an optimizer with nonfinite="raise", or that decomposes a matrix which is not finite.
                return f"step {self.at.step + 1}: {str(error).splitlines()[0]}"
            every = self.recipe.evaluate_every
            evaluates = self.done or (self.at.batch == 0 if every is None else self.at.step % every == 0)
            logs = evaluates or self.at.step == 1 or self.at.step % self.log_every == 0
            if not logs and not due(False):
                continue
            self.at.seconds += time.perf_counter() - clock
            reason = self._log(progress) if logs else None
            if reason is None and evaluates:
                reason = self._validate()
            if reason is not None:
                return reason
            if not self.done and (not logs or due(True)):
                save()
            clock = time.perf_counter()
        return None

    def _step(self) -> None:
        at = self.at
        if self._batches[0] != at.epoch:
            self._batches = (at.epoch, self.task.batches(at.epoch))
        batches = self._batches[1]
        loss, count = self.stepper.step(batches[at.batch], at.epoch, at.step)
        if loss is not None:
            self._span += loss
        self._count = self._count + count
        at.step, at.batch = at.step + 1, at.batch + 1
        if at.batch == len(batches):
            at.epoch, at.batch = at.epoch + 1, 0

    def _log(self, progress: Callable[[Progress], None] | None) -> str | None:
        """Write a line about the steps since the last one; return why, if the run diverged."""
        total, count = self.ranks.sum(self._totals()).tolist()
        loss = total / count
        self._span, self._count = torch.zeros_like(self._span), 0
        smoothed = self._smooth(loss)
        values: dict[str, Any] = {
            "loss": loss,
            "smoothed_loss": smoothed,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
        }
        if hasattr(self.optimizer, "telemetry"):
            values |= {key: value for key, value in self.optimizer.telemetry().items() if key != "scopes"}
        elif self.stepper.grad_norm is not None:
            values["grad_norm"] = float(self.stepper.grad_norm)
        self._write("train", values)
        if progress is not None:
            progress(Progress(self.at.step, self.steps, self.epoch, loss, self.at.seconds))
        if self.at.first_loss is None:
            self.at.first_loss = loss
        limit = EXPLODED * max(1.0, self.at.first_loss)
        if not math.isfinite(loss):
            return f"the training loss was {loss} by step {self.at.step}"
        return f"the training loss was {loss:.3g} at step {self.at.step}, over {limit:.3g}" if loss > limit else None

    def _smooth(self, loss: float) -> float:
        """Return the training loss, averaged with weights that halve in a fiftieth of the steps."""
        at = self.at
        since = at.step - (at.train_curve[-1][0] if at.train_curve else 0)
        kept = 0.5 ** (since * HALF_LIFE / self.steps)
        at.smooth = (kept * at.smooth[0] + (1 - kept) * loss, kept * at.smooth[1] + 1 - kept)
        smoothed = at.smooth[0] / at.smooth[1]
        at.train_curve.append((at.step, round(at.seconds, 6), finite_or_none(smoothed)))
        return smoothed

    def _totals(self) -> Tensor:
        return torch.stack([self._span, torch.as_tensor(self._count).to(self._span)])

    def evaluate(self, split: Split, kind: str | None = None) -> dict[str, Any]:
        """Return the task's metrics, and write them as a line of ``kind``, which is the split by default."""
        with self.stepper.evaluating(), torch.no_grad(), self.stepper.autocast():
            values = self.task.evaluate(self.model, split)
            samples = self.task.samples(self.model) if split == "valid" else []
            if self.watched.train and split == "valid":
                values["train_loss"] = self.task.training_loss(self.model)
        self._write(kind or split, values)
        for sample in samples:
            self._write("sample", dict(sample))
        return values

    def _validate(self) -> str | None:
        reason = None
        if self.ranks.first and self.watched.valid:
            values = self.evaluate("valid")
            score, seen = self.task.score, {**values, "step": self.at.step, "epoch": self.epoch}
            self.at.valid = seen
            self.at.curve.append(self._point(values))
            if not self.at.best_valid or score.better(values[score.metric], self.at.best_valid[score.metric]):
                self.at.best_valid = seen
            if not math.isfinite(values["loss"]):
                reason = f"the validation loss was {values['loss']} at step {self.at.step}"
            elif self.prune is not None and not self.done:
                percent = 100 * self.at.step // self.steps
                self.pruned = self.prune(percent, values[score.metric])
                reason = f"behind other settings after {percent} % of the steps" if self.pruned else None
        if self.ranks.first and self.watched.test:
            self.at.test_curve.append(self._point(self.evaluate("test", "test_curve")))
        first_reason = self.ranks.broadcast(reason.encode() if reason is not None else None)
        return first_reason.decode() if first_reason is not None else None

    def _point(self, values: dict[str, Any]) -> tuple[int, float, float | None]:
        return self.at.step, round(self.at.seconds, 6), finite_or_none(values[self.task.score.metric])

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.write(kind, self.at.step, self.epoch, self.at.seconds, **values)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on: tensors, numbers and text. Every rank has to call it."""
        return {
            "model": self.model.state_dict(),
            "position": asdict(self.at),
            "span": self._totals().cpu(),
            "random": self.ranks.gather(randomness.pack(self.ranks.device)),
            **self.stepper.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.stepper.load_state_dict(state)
        self.at = Position(**state["position"])
        span, self._count = state["span"].to(self.ranks.device).unbind()
        self._span = span.clone()
        if self.ranks.rank < len(state["random"]):
            randomness.unpack(state["random"][self.ranks.rank], self.ranks.device)
