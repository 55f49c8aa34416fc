"""A run in its folder: new, resumed, or already done."""

import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from acmo.lab import atomic
from acmo.lab.config.optimizers import build, required_schedule, state_bytes
from acmo.lab.config.run_options import RunConfig
from acmo.lab.config.schedules import Schedule
from acmo.lab.errors import LabError
from acmo.lab.redaction import redact_value
from acmo.lab.results.metrics_file import NAME, MetricsWriter
from acmo.lab.results.run_files import read_config, require_outcome, write_config, write_outcome
from acmo.lab.results.run_record import CurvePoint, RunRecord, Score, thin_curve
from acmo.lab.runs import checkpoints, provenance, randomness
from acmo.lab.runs.effective import describe_settings
from acmo.lab.runs.ranks import Ranks
from acmo.lab.runs.trackers import open_trackers
from acmo.lab.runs.training import Progress, Training, Watched
from acmo.lab.tasks import find_task
from acmo.lab.tasks.base import Task

# Saving takes no more than a fiftieth of the time, however large the model.
_SAVING_SHARE = 50


def run(
    config: RunConfig,
    folder: Path,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    prune: Callable[[int, float], bool] | None = None,
) -> RunRecord:
    """Run, or resume from the last checkpoint, or return the record of a run that has ended.

    Under torchrun every rank calls this; the first one writes. A second process with the same folder waits.

    Args:
      config: what to run.
      folder: of this run alone; made if it is not there.
      progress: called every few steps. What it raises ends the run as a kill would: the last checkpoint is kept.
      stop: asked after every step (after every line under torchrun). Where it returns True, a checkpoint is written and
        `KeyboardInterrupt` raised.
      prune: asked at every evaluation but the last, with the per cent of the steps that are done and the score. Where
        it returns True, the run ends as ``pruned``; without it, a run that was pruned before is done again.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    ranks = Ranks(pick_device(config.device))
    task = find_task(config.task, config.data, config.seed)
    with (
        atomic.locked(folder / ".lock") if ranks.first else nullcontext(),
        randomness.deterministic(config.deterministic),
    ):
        done = _finished_record(config, folder, ranks, task.score, or_pruned=prune is not None)
        if done is not None:
            if ranks.first and read_config(folder).get("config", {}).get("data") != _data_folder(config):
                task.prepare()
                _check_data(task, folder)
            return done
        training = _begin(config, task, ranks)
        training.prune = prune
        ended = None
        try:
            ended = _go(config, folder, ranks, training, progress if ranks.first else None, stop)
            return ended
        finally:
            if training.metrics is not None:
                training.metrics.close(None if ended is None else ended.status)


def pick_device(name: str) -> torch.device:
    """Return the device of that name, or the best there is for ``auto``; this rank's own under torchrun."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.zeros(1, device=device).item()  # a device without memory, such as meta, fails here
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        reason = f" ({reason.rstrip('.')})" if name.startswith("cuda") else ""
        raise LabError(f"the device {name!r} is not there{reason}; use auto, cpu, cuda, cuda:1 or mps") from None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _begin(config: RunConfig, task: Task, ranks: Ranks) -> Training:
    """Make everything as it is before the first step."""
    task.recipe = task.recipe.changed(config)
    if schedule := required_schedule(config.optimizer):
        task.recipe = replace(task.recipe, schedule=Schedule(schedule))
    if config.refit_on_all:
        task.join_validation()
    task.device = ranks.device
    task.prepare()
    if config.fingerprint not in (None, task.fingerprint()):
        raise LabError(f"the data of {config.task} is not what it was when the run was planned; give the command again")
    randomness.seed_all(config.seed)
    model = task.model().to(ranks.device)
    ranks.broadcast_tensors([*model.parameters(), *model.buffers()])
    if ranks.rank > 0:
        randomness.seed_all(config.seed + ranks.rank * 2**31)  # dropout must not be the same on every rank
    optimizer = build(config.optimizer, config.settings, model)
    watched = Watched(
        valid=not config.refit_on_all,
        test=bool(config.test_curves) and config.phase == "final",
        train=bool(config.full_train_loss),
    )
    return Training(
        task, model, optimizer, ranks, autocast=config.autocast, log_every=config.log_every, watched=watched
    )


def _go(
    config: RunConfig,
    folder: Path,
    ranks: Ranks,
    training: Training,
    progress: Callable[[Progress], None] | None,
    stop: Callable[[], bool] | None,
) -> RunRecord:
    """Resume, train, evaluate, and write the result."""
    kept = folder / "checkpoints"
    lines = folder / NAME
    if ranks.first:
        atomic.sweep(folder)
        atomic.sweep(kept)
    found = checkpoints.newest(kept, lines.stat().st_size if lines.exists() else 0) if ranks.first else None
    found = ranks.broadcast(found)
    size = 0
    if found is not None:
        state = checkpoints.load(found)
        size = int(state.pop("metrics_size"))
        _check_data(training.task, folder)
        _load(state, training, folder)
        del found, state
    elif ranks.first:
        about = {"effective": describe_settings(training), "data": provenance.describe_data(training.task)}
        write_config(folder, provenance.record(config) | about)
    if ranks.first:
        trackers = open_trackers(folder, config, read_config(folder), training.at.step)
        training.metrics = MetricsWriter(folder, size, trackers)

    saver = _Saver(config, ranks, kept, training, stop)
    reason = training.run(progress, saver.due, saver.save_or_stop)
    test = None
    if config.keep_checkpoints and reason is None:
        with training.stepper.evaluating():  # the weights that are tested
            saver.save()  # before the test's line: one that a kill cuts off here must not come twice
    if config.phase == "final" and reason is None and ranks.first:
        test = training.evaluate("test")
    record = _record(config, folder, training, reason, test)
    if ranks.first:
        assert training.metrics is not None
        training.metrics.sync()
        write_outcome(folder, record)
        if not config.keep_checkpoints:
            checkpoints.remove(kept)
    shared = _share(ranks, record)
    assert shared is not None
    return shared


class _Saver:
    """When to save, and saving."""

    def __init__(
        self, config: RunConfig, ranks: Ranks, folder: Path, training: Training, stop: Callable[[], bool] | None
    ) -> None:
        self.every, self.unit = config.cadence()
        self.ranks, self.folder, self.training = ranks, folder, training
        self.last, self.cost = time.monotonic(), 0.0
        self.stop = stop or (lambda: False)

    def due(self, logged: bool) -> bool:
        """Return whether to save now. Several ranks agree about the clock where they meet to log anyway."""
        if self.unit == "steps" and self.training.at.step % max(1, int(self.every)) == 0:
            return True
        if self.ranks.world > 1 and not logged:
            return False
        late = self.unit != "steps" and time.monotonic() - self.last >= max(self.every, _SAVING_SHARE * self.cost)
        return self.ranks.broadcast_flag(late or self.stop())

    def save_or_stop(self) -> None:
        """Save, and end the run if that was asked for."""
        self.save()
        if self.ranks.broadcast_flag(self.stop()):
            raise KeyboardInterrupt

    def save(self) -> None:
        """Save; the metrics first, since the checkpoint has their length."""
        start = time.monotonic()
        state = self.training.state_dict()
        if self.training.metrics is not None:
            state["metrics_size"] = self.training.metrics.sync()
            checkpoints.save(self.folder, self.training.at.step, state)
        self.last = time.monotonic()
        self.cost = self.last - start


def _record(
    config: RunConfig, folder: Path, training: Training, reason: str | None, test: dict[str, Any] | None
) -> RunRecord:
    at, times = training.at, training.stepper.milliseconds
    outcome = {
        "status": "finished" if reason is None else "pruned" if training.pruned else "diverged",
        "phase": config.phase,
        "valid": at.valid,
        "best_valid": at.best_valid,
        "test": test,
        "steps": at.step,
        "epochs": training.epoch,
        "seconds": at.seconds,
        "ms_per_step_optimizer": median(times) if times else None,
        "state_bytes": state_bytes(training.optimizer),
        "parameters": sum(p.numel() for p in training.model.parameters() if p.requires_grad),
        "reason": reason,
        "curve": thin_curve([CurvePoint(*point) for point in at.curve], training.task.score),
        "test_curve": thin_curve([CurvePoint(*point) for point in at.test_curve], training.task.score),
        "train_curve": thin_curve([CurvePoint(*point) for point in at.train_curve], Score("loss", "min")),
    }
    return _identified(config, folder, atomic.strict(outcome))


def _identified(config: RunConfig, folder: Path, outcome: dict[str, Any]) -> RunRecord:
    """Return the outcome as a record, with task, optimizer, seed and settings."""
    about = {"task": config.task, "label": config.optimizer, "optimizer": config.optimizer, "role": config.phase}
    settings = config.model_dump(mode="json", include={"settings"})["settings"]
    return RunRecord.from_json({**about, "seed": config.seed, "settings": settings, **outcome, "run": folder.name})


def _load(state: dict[str, Any], training: Training, folder: Path) -> None:
    """Load a checkpoint, or raise a `LabError` if it is of another run."""
    try:
        _check_fits(state, training, folder)
        training.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LabError(
            f"the checkpoint in {folder} is not of this run ({type(error).__name__}: {reason}); "
            "delete its folder checkpoints to begin again"
        ) from error


def _check_fits(state: dict[str, Any], training: Training, folder: Path) -> None:
    here = {"text": training.recipe.schedule.text, "steps": training.steps}
    if state["schedule"] != here:
        raise LabError(
            f"the checkpoint in {folder} is of a run of {state['schedule']['steps']} steps, this one has "
            f"{training.steps}: is the data another one? Take another folder, or delete this one"
        )


def _check_data(task: Task, folder: Path) -> None:
    """Raise if the folder's run had other data; that the same data lies elsewhere now is no matter."""
    before, now = read_config(folder).get("data", {}).get("fingerprint"), task.fingerprint()
    if before is not None and now is not None and before != now:
        raise LabError(f"the run in {folder} is of other data: take another folder (--out), or delete this one")


def _data_folder(config: RunConfig) -> Any:
    """Return where the data is, as ``config.json`` has it."""
    return redact_value(config.model_dump(mode="json", include={"data"}))["data"]


def _finished_record(
    config: RunConfig, folder: Path, ranks: Ranks, score: Score, *, or_pruned: bool
) -> RunRecord | None:
    """Return rank 0's record of a run that has ended, on every rank; None if it has not."""
    outcome = require_outcome(folder, score) if ranks.first else None
    if outcome is not None and outcome["status"] == "pruned" and not or_pruned:
        outcome = None
    return _share(ranks, None if outcome is None else _identified(config, folder, outcome))


def _share(ranks: Ranks, record: RunRecord | None) -> RunRecord | None:
    """Return rank 0's, on every rank."""
    if ranks.world == 1:
        return record
    content = ranks.broadcast(None if record is None or not ranks.first else json.dumps(record.to_json()).encode())
    return None if content is None else RunRecord.from_json(json.loads(content))
