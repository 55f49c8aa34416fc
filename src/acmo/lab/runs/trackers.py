"""The metrics of a run in other places too: Weights & Biases, MLflow, TensorBoard. Each is imported when it is used."""

import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from acmo.lab.config.grids import describe
from acmo.lab.config.run_options import RunConfig, RunOptions
from acmo.lab.errors import LabError, missing_extra
from acmo.lab.redaction import redact, redact_value
from acmo.lab.results.metrics_file import Tracker
from acmo.lab.results.tables import flatten

PROJECT = "acmo"
EXTRA = "track"


class WandbTracker:
    """A run of Weights & Biases, offline with ``WANDB_MODE=offline``: its files are then in the run's folder.

    Args:
      folder: the run's.
      config: what is run.
      about: the content of ``config.json``.
      step: how many steps were taken before.
    """

    def __init__(self, folder: Path, config: RunConfig, about: Mapping[str, Any], step: int) -> None:
        wandb = _import("wandb")
        # Another folder is another run; the same one is resumed. The step is a value, since lines may come again.
        place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:6]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=f"{config.run_id()}-{place}",
            name=_title(folder, config),
            group=redact(config.task)[-128:],
            job_type=config.phase,
            config=dict(about),
            dir=str(folder),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a line."""
        self._run.log({"step": step, **{f"{kind}/{key}": value for key, value in values.items()}})

    def close(self, status: str | None) -> None:
        """End the run; without a status it was stopped, and may be resumed."""
        self._run.summary["status"] = status or "stopped"
        self._run.finish(exit_code=0 if status else 1)


class MlflowTracker:
    """A run of MLflow in the experiment of its task, on the server or in the file that ``MLFLOW_TRACKING_URI`` names.

    Args: as of `WandbTracker`.
    """

    def __init__(self, folder: Path, config: RunConfig, about: Mapping[str, Any], step: int) -> None:
        self._client = _import("mlflow.tracking").MlflowClient()
        experiment = prepare_experiment(self._client, config.task)
        place = redact(str(folder.resolve())).replace("'", "")
        known = self._client.search_runs([experiment], f"tags.`acmo.folder` = '{place}'")
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"acmo.folder": place, "acmo.run": config.run_id(), "acmo.phase": config.phase}
        self._id = self._client.create_run(experiment, tags=tags, run_name=_title(folder, config)).info.run_id
        known = {key: value for key, value in flatten(about).items() if value is not None}
        params = {re.sub(r"[^\w\-. :/]", "_", key)[-250:]: str(value)[:500] for key, value in known.items()}
        entity = _import("mlflow.entities").Param
        for start in range(0, len(params), 100):  # the most that a server takes at once
            batch = [entity(key, value) for key, value in [*params.items()][start : start + 100]]
            self._client.log_batch(self._id, params=batch)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a line."""
        metric, now = _import("mlflow.entities").Metric, int(time.time() * 1000)
        metrics = [metric(f"{kind}/{key}", value, now, step) for key, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, status: str | None) -> None:
        """End the run; without a status it was stopped, and may be resumed."""
        self._client.set_tag(self._id, "acmo.status", status or "stopped")
        self._client.set_terminated(self._id, "FINISHED" if status else "KILLED")


class TensorboardTracker:
    """TensorBoard's event files in the run's folder.

    Args: as of `WandbTracker`.
    """

    def __init__(self, folder: Path, config: RunConfig, about: Mapping[str, Any], step: int) -> None:
        writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(folder / "tensorboard", purge_step=step + 1)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a line."""
        for key, value in values.items():
            self._writer.add_scalar(f"{kind}/{key}", value, step)

    def close(self, status: str | None) -> None:
        """Close the file."""
        self._writer.close()


class GuardedTracker:
    """A tracker whose errors do not end the run: it warns, and is not used any more."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._failed = False

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a line."""
        self._guard(lambda: self._tracker.write(kind, step, values))

    def close(self, status: str | None) -> None:
        """End the run."""
        self._guard(lambda: self._tracker.close(status))

    def _guard(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:  # of a network, a server or a full disk
            self._failed = True
            said = redact(" ".join(str(error).split())[:300])
            warnings.warn(
                f"{self._name} gets no more of this run, whose metrics are in its own files as ever: {said}",
                TrackerLost,
                stacklevel=2,
            )


class TrackerLost(UserWarning):
    """A tracker failed while a run was under way."""


TRACKERS: dict[str, Callable[..., Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "tensorboard": TensorboardTracker,
}


def open_trackers(folder: Path, config: RunConfig, about: Mapping[str, Any], step: int) -> list[Tracker]:
    """Open what a run asks for; whatever goes wrong is a `LabError`."""
    opened: list[Tracker] = []
    for name in trackers_of(config):
        with explained(name):
            opened.append(GuardedTracker(name, TRACKERS[name](folder, config, redact_value(dict(about)), step)))
    return opened


def trackers_of(options: RunOptions) -> Sequence[str]:
    """Return the names that ``--log`` gives, with ``--tensorboard`` as one of them."""
    return list(dict.fromkeys([*options.log, *(["tensorboard"] if options.tensorboard else [])]))


def require_trackers(options: RunOptions, tasks: Iterable[str]) -> None:
    """Raise a `LabError` if a tracker is not installed or cannot be used, before any run begins."""
    names = trackers_of(options)
    for name in names:
        _import({"tensorboard": "torch.utils.tensorboard"}.get(name, name), name)
    if "mlflow" in names:  # one process makes the database and the experiments, before many use them
        with explained("mlflow"):
            client = _import("mlflow.tracking").MlflowClient()
            for task in tasks:
                prepare_experiment(client, task)


def prepare_experiment(client: Any, task: str) -> str:
    """Return the id of the experiment of a task, made if it is not there."""
    name = f"{PROJECT}/{redact(task)}"
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found is not None else client.create_experiment(name))


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn an error of a tracker into a sentence."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        said = redact(" ".join(str(error).split())[:300])
        raise LabError(f"{name} cannot be used: {said or type(error).__name__}") from error


def _import(module: str, package: str | None = None) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise missing_extra(package or module.partition(".")[0], EXTRA) from None


def _title(folder: Path, config: RunConfig) -> str:
    return redact(f"{folder.parent.name} {describe(config.settings)} seed {config.seed}")[-128:]
