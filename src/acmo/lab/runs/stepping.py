"""One step of the optimizer under study, unwrapped, on one global batch: over parts, over ranks, in any precision."""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acmo.lab.runs.ranks import Ranks
from acmo.lab.tasks.base import Task

_TIMED = 100  # steps whose optimizer is timed, about


class Stepper:
    """Take steps; nothing waits for the device, except for the few steps that are timed.

    Args:
      task: with the recipe to follow.
      model: on the device.
      optimizer: of the model's parameters.
      ranks: those that train together.
      autocast: ``off``, ``bfloat16`` or ``float16``.
      steps: of the whole training.
      steps_per_epoch: what a schedule in epochs counts with.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: Optimizer,
        ranks: Ranks,
        autocast: str,
        steps: int,
        steps_per_epoch: int,
    ) -> None:
        self.task, self.model, self.optimizer, self.ranks, self.recipe = task, model, optimizer, ranks, task.recipe
        self.steps, self.steps_per_epoch = steps, steps_per_epoch
        self.grad_norm: Tensor | None = None  # of the last step, where the loop clips
        self.milliseconds: list[float] = []  # of the optimizer alone
        self._params = [p for group in optimizer.param_groups for p in group["params"]]
        self._dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(autocast)
        self._scaler = torch.amp.GradScaler(ranks.device.type) if autocast == "float16" else None
        self._factor = math.nan  # of the schedule, as last set
        self._clip = self.recipe.max_grad_norm
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
            # ACMo clips in a pass of its own, and reports it; on unit steps clipping would have no effect.
            if self._clip is not None and "max_grad_norm" in group and not group["unit_step"]:
                group["max_grad_norm"] = group["max_grad_norm"] or self._clip
        if "max_grad_norm" in optimizer.defaults:
            self._clip = None

    def step(self, indices: Tensor, epoch: int, step: int) -> tuple[Tensor | None, int | Tensor]:
        """Step on a global batch; returns this rank's loss, summed, and of how many terms; None if it had no part.

        Args:
          indices: of the examples.
          epoch: that they are of.
          step: how many were taken before.
        """
        self._set_lr(step)
        self.optimizer.zero_grad()
        accumulate = self.recipe.accumulate
        parts = self.ranks.world * accumulate
        loss: Tensor | None = None
        count: int | Tensor = 0
        for part in range(self.ranks.rank * accumulate, (self.ranks.rank + 1) * accumulate):
            share = indices if parts == 1 else indices[part::parts]
            if len(share) == 0:
                continue
            batch = moved(self.task.collate(share, epoch), self.ranks.device)
            with self.autocast():
                total, terms = self.task.loss(self.model, batch)
            # Alone, the mean. Of several parts no one knows the global count yet: by the number of examples, for now.
            self._backward(total, terms if parts == 1 else len(indices))
            loss, count = total.detach() if loss is None else loss + total.detach(), count + terms
        if parts > 1:
            self._normalise(count, len(indices))
        self._apply(step)
        return loss, count

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put model and optimizer into evaluation mode: a schedule-free one has other weights then."""
        modes = [part for part in (self.model, self.optimizer) if hasattr(part, "eval")]
        for part in modes:
            part.eval()
        try:
            yield
        finally:
            self.train()

    def train(self) -> None:
        """Put model and optimizer into training mode."""
        self.model.train()
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the precision that the model runs in."""
        return nullcontext() if self._dtype is None else torch.autocast(self.ranks.device.type, self._dtype)

    def _backward(self, total: Tensor, count: int | Tensor) -> None:
        """Compute the gradients of total / count."""
        if self._scaler is not None:
            torch.autograd.backward(self._scaler.scale(total / count))
        elif isinstance(count, Tensor):
            torch.autograd.backward(total / count)
        else:  # without a division to record and go back through: 3 % of a step of digits
            torch.autograd.backward(total, self._one_in(count, total.dtype))

    @cache  # noqa: B019  as many as there are sizes of batches; and the stepper lives as long as its run
    def _one_in(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.tensor(1 / count, dtype=dtype, device=self.ranks.device)

    def _normalise(self, count: int | Tensor, examples: int) -> None:
        """Make gradients summed over parts those of the mean over the *global* count."""
        counted = self.ranks.sum_gradients(self._params, torch.as_tensor(count, device=self.ranks.device))
        grads = [p.grad for p in self._params if p.grad is not None]
        if grads and (isinstance(count, Tensor) or int(counted) != examples):  # else every example is one term
            torch._foreach_mul_(grads, (examples / counted).to(grads[0].dtype))

    def _apply(self, step: int) -> None:
        optimizer, scaler = self.optimizer, self._scaler
        if self._clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            self.grad_norm = nn.utils.clip_grad_norm_(self._params, self._clip)
        apart = max(1, self.steps // _TIMED)
        timed = step % apart == apart // 2  # not the first, which makes the state
        start = self._now() if timed else 0.0
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
        if timed:
            self.milliseconds.append((self._now() - start) * 1e3)
        if scaler is not None:
            scaler.update()

    def _now(self) -> float:
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)
        return time.perf_counter()

    def _set_lr(self, step: int) -> None:
        factor = self.recipe.schedule.factor(step, self.steps, self.steps_per_epoch)
        if factor != self._factor:
            self._factor = factor
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, its schedule, and the scaler of float16."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": {"text": self.recipe.schedule.text, "steps": self.steps},
            "scaler": self._scaler.state_dict() if self._scaler is not None else {},
            "milliseconds": self.milliseconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])
        self.milliseconds = list(state["milliseconds"])
        self._factor = math.nan  # the schedule sets the next step's, not the loaded groups


def moved(batch: Any, device: torch.device) -> Any:
    """Return the batch on the device, whatever it is made of."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(moved(value, device) for value in batch)
    return batch
