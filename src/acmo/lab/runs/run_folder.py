"""A run in its folder: begun, gone on with, or already done."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from acmo.lab import atomic
from acmo.lab.config.optimizers import build, state_bytes
from acmo.lab.config.run_options import RunConfig
from acmo.lab.errors import LabError
from acmo.lab.runs import checkpoints, provenance, randomness
from acmo.lab.runs.metrics import Metrics
from acmo.lab.runs.ranks import Ranks
from acmo.lab.runs.training import Progress, Training
from acmo.lab.tasks import find_task
from acmo.lab.tasks.base import Task

# Saving takes no more than a fiftieth of the time, however large the model.
_SAVING_SHARE = 50


@dataclass(frozen=True)
class Result:
    """How a run ended: what is in ``result.json``."""

    status: Literal["finished", "diverged"]
    phase: Literal["tune", "final"]
    valid: dict[str, Any]
    best_valid: dict[str, Any]
    test: dict[str, Any] | None
    steps: int
    epochs: float
    seconds: float
    ms_per_step_optimizer: float | None
    state_bytes: int
    parameters: int
    reason: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "Result | None":
        """The result of the run in a folder; None if it has not ended."""
        try:
            return cls(**json.loads((folder / "result.json").read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise LabError(
                f"{folder / 'result.json'} is damaged ({error}); delete it to have the run done again"
            ) from None


def run(config: RunConfig, folder: Path, progress: Callable[[Progress], None] | None = None) -> Result:
    """Do a run, or go on with it from its last checkpoint, or return its result if it has ended.

    Under torchrun every rank calls this; the first one writes. A second process with the same folder waits.

    Args:
      config: what to run.
      folder: of this run alone; made if it is not there.
      progress: called every few steps. What it raises ends the run, which can then be gone on with.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    ranks = Ranks(pick_device(config.device))
    with atomic.locked(folder / ".lock") if ranks.first else _nothing(), randomness.deterministic(config.deterministic):
        done = _told_result(ranks, folder)
        if done is not None:
            if ranks.first and _stored(folder).get("config", {}).get("data") != _where(config):
                task = find_task(config.task, config.data, config.seed)
                task.prepare()
                _check_data(task, folder)
            return done
        training = _begin(config, ranks)
        try:
            return _go(config, folder, ranks, training, progress if ranks.first else None)
        finally:
            if training.metrics is not None:
                training.metrics.close()


def pick_device(name: str) -> torch.device:
    """The device of that name, or the best there is for ``auto``; this rank's own under torchrun."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise LabError(f"the device {name!r} is not there: {str(error).splitlines()[0]}") from None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _begin(config: RunConfig, ranks: Ranks) -> Training:
    """Everything as it is before the first step."""
    task = find_task(config.task, config.data, config.seed)
    task.recipe = task.recipe.changed(config)
    task.device = ranks.device
    task.prepare()
    randomness.seed_all(config.seed)
    model = task.model().to(ranks.device)
    ranks.alike([*model.parameters(), *model.buffers()])
    if ranks.rank > 0:
        randomness.seed_all(config.seed + ranks.rank * 2**31)  # dropout must not be the same on every rank
    optimizer = build(config.optimizer, config.settings, model)
    return Training(task, model, optimizer, ranks, autocast=config.autocast, log_every=config.log_every)


def _go(
    config: RunConfig, folder: Path, ranks: Ranks, training: Training, progress: Callable[[Progress], None] | None
) -> Result:
    """Resume, train, evaluate, and write the result."""
    kept = folder / "checkpoints"
    lines = folder / "metrics.jsonl"
    if ranks.first:
        atomic.sweep(folder)
        atomic.sweep(kept)
    found = checkpoints.newest(kept, lines.stat().st_size if lines.exists() else 0) if ranks.first else None
    found = ranks.tell(found)
    size = 0
    if found is not None:
        state = checkpoints.load(found)
        size = state.pop("metrics_size")
        _check_fits(state, training, folder)
        _check_data(training.task, folder)
        training.load_state_dict(state)
        del found, state
    elif ranks.first:
        facts = training.task.facts()
        atomic.write_json(folder / "config.json", provenance.record(config) | ({"data": facts} if facts else {}))
    if ranks.first:
        training.metrics = Metrics(folder, size, step=training.at.step, tensorboard=config.tensorboard)

    saver = _Saver(config, ranks, kept, training)
    reason = training.run(progress, saver.due, saver.save)
    test = None
    if config.keep_checkpoints and reason is None:
        saver.save()  # before the test's line: one that a kill cuts off here must not come twice
    if config.phase == "final" and reason is None and ranks.first:
        test = training.evaluate("test")
    if ranks.first:
        assert training.metrics is not None
        training.metrics.sync()
        atomic.write_json(folder / "result.json", asdict(_result(config, training, reason, test)))
        if not config.keep_checkpoints:
            checkpoints.remove(kept)
    result = _told_result(ranks, folder)
    assert result is not None
    return result


class _Saver:
    """When to save, and saving."""

    def __init__(self, config: RunConfig, ranks: Ranks, folder: Path, training: Training) -> None:
        self.every, self.unit = config.cadence()
        self.ranks, self.folder, self.training = ranks, folder, training
        self.last, self.cost = time.monotonic(), 0.0

    def due(self, logged: bool) -> bool:
        """Whether to save now. By the clock, several ranks must agree, which they do where they meet to log anyway."""
        if self.unit == "steps":
            return self.training.at.step % max(1, int(self.every)) == 0
        if self.ranks.world > 1 and not logged:
            return False
        return self.ranks.agree(time.monotonic() - self.last >= max(self.every, _SAVING_SHARE * self.cost))

    def save(self) -> None:
        """Save; the metrics first, since the checkpoint says how long they are."""
        start = time.monotonic()
        state = self.training.state_dict()
        if self.training.metrics is not None:
            state["metrics_size"] = self.training.metrics.sync()
            checkpoints.save(self.folder, self.training.at.step, state)
        self.last = time.monotonic()
        self.cost = self.last - start


def _result(config: RunConfig, training: Training, reason: str | None, test: dict[str, Any] | None) -> Result:
    at, times = training.at, training.stepper.milliseconds
    return Result(
        status="finished" if reason is None else "diverged",
        phase=config.phase,
        valid=at.valid,
        best_valid=at.best_valid,
        test=test,
        steps=at.step,
        epochs=training.epoch,
        seconds=at.seconds,
        ms_per_step_optimizer=median(times) if times else None,
        state_bytes=state_bytes(training.optimizer),
        parameters=sum(p.numel() for p in training.model.parameters() if p.requires_grad),
        reason=reason,
    )


def _check_fits(state: dict[str, Any], training: Training, folder: Path) -> None:
    here = {"text": training.recipe.schedule.text, "steps": training.steps}
    if state["schedule"] != here:
        raise LabError(
            f"the checkpoint in {folder} is of a run of {state['schedule']['steps']} steps, this one has "
            f"{training.steps}: is the data another one? Take another folder, or delete this one"
        )


def _check_data(task: Task, folder: Path) -> None:
    """Raise if the folder's run had other data; that the same data lies elsewhere now is no matter."""
    before, now = _stored(folder).get("data", {}).get("hash"), task.facts().get("hash")
    if before is not None and now is not None and before != now:
        raise LabError(f"the run in {folder} is of other data: take another folder (--out), or delete this one")


def _stored(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError):
        return {}  # cut short, or by hand


def _where(config: RunConfig) -> Any:
    return provenance.scrub(config.model_dump(mode="json"))["data"]


def _told_result(ranks: Ranks, folder: Path) -> Result | None:
    """Rank 0's, on every rank."""
    if ranks.world == 1:
        return Result.read(folder)
    mine = Result.read(folder) if ranks.first else None
    told = ranks.tell(None if mine is None else json.dumps(asdict(mine)).encode())
    return None if told is None else Result(**json.loads(told))


@contextmanager
def _nothing() -> Iterator[None]:
    yield
