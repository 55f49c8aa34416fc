"""What a run is: one task, one optimizer, one setting, one seed."""

import hashlib
import json
import re
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from acmo.lab.errors import LabError

# Where and how a run works and logs. A run that moved to another machine is the same run.
_NOT_IDENTITY = {"data", "device", "threads", "log", "tensorboard", "keep_checkpoints", "checkpoint_every"}
_CADENCE = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|it)")


def _setting(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        value = handler(value)
    except ValidationError:
        raise ValueError("must be a number, a text, true, false or a list of numbers") from None
    if not all(isfinite(v) for v in (value if isinstance(value, list) else [value]) if isinstance(v, float)):
        raise ValueError("must be finite")
    return value


Setting = Annotated[bool | float | str | list[float] | None, WrapValidator(_setting)]


class RunOptions(BaseModel):
    """How runs work: what one run has, and what a comparison passes on to all of its own.

    Args:
      data: the folder of the data; None: what the task downloads.
      device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
      autocast: run the model in this dtype where that is safe.
      deterministic: the same bits on each run.
      epochs, steps, batch_size, accumulate, schedule, max_grad_norm, evaluate_every: None: as the task's recipe says;
        max_grad_norm 0: no clipping.
      log_every: steps between two lines of training metrics; None: 100 lines a run, but at least one every 50 steps.
      refit_on_all: train on the validation data too, as the paper did; a comparison does so in its final runs alone.
        Nothing is evaluated on validation data then.
      test_curves: evaluate on test data at every evaluation of a final run too: to be looked at, never to select.
      full_train_loss: compute the loss on all training data at every evaluation.
      log: where metrics go beside the run's own files: ``wandb``, ``mlflow``, ``tensorboard``.
      tensorboard: the last of these by another name.
      keep_checkpoints: keep the last of a finished run: its weights.
      checkpoint_every: ``60s``, ``5m``, ``1h``, or ``200it`` for iterations.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Path | None = None
    device: str = "auto"
    autocast: Literal["off", "bfloat16", "float16"] = "off"
    deterministic: bool = True
    epochs: Annotated[int, Field(ge=1, le=10**6)] | None = None
    steps: Annotated[int, Field(ge=1, le=10**10)] | None = None
    batch_size: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    accumulate: Annotated[int, Field(ge=1, le=10**6)] | None = None
    schedule: str | None = None
    max_grad_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    evaluate_every: Annotated[int, Field(ge=1, le=10**10)] | None = None
    log_every: Annotated[int, Field(ge=1, le=10**10)] | None = None
    refit_on_all: bool | None = None  # None and not False: runs without it keep their ids
    test_curves: bool | None = None
    full_train_loss: bool | None = None
    log: list[Literal["wandb", "mlflow", "tensorboard"]] = []
    tensorboard: bool = False
    keep_checkpoints: bool = False
    checkpoint_every: str = "60s"

    @field_validator("checkpoint_every")
    @classmethod
    def _known_cadence(cls, text: str) -> str:
        if not _CADENCE.fullmatch(text):
            raise ValueError(f"{text!r} is not of the form 60s, 5m, 1h or 200it")
        return text

    @model_validator(mode="after")
    def _one_length(self) -> "RunOptions":
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps cannot both be given")
        return self


class RunConfig(RunOptions):
    """Describe one run.

    Args:
      task: ``name:size/net`` such as ``cifar10:tiny/resnet20``, or ``path/to/file.py:Class``.
      optimizer: a name of `acmo.rivals.REGISTRY`, ``module:Class`` or ``path/to/file.py:Class``.
      settings: the optimizer's options, where they differ from its defaults.
      seed: of the split, the weights, the order of the data and its augmentation.
      phase: the test data is read in ``"final"`` alone, once, at the end.
      threads: of torch in this process; None: leave them.
      fingerprint: of the task's data (`Task.fingerprint`): a run on other data is another run.

    Example:
      >>> RunConfig(task="digits", optimizer="acmo", settings={"lr": 0.3}).run_id()
      '39b4ad703dd0'
    """

    task: str
    optimizer: str
    settings: dict[str, Setting] = {}
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    phase: Literal["tune", "final"] = "tune"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    fingerprint: str | None = None

    def identity(self) -> dict[str, Any]:
        """Return what the outcome depends on: the data itself, not where it is nor how it is logged."""
        return self.model_dump(mode="json", exclude=_NOT_IDENTITY)

    def run_id(self) -> str:
        """Return twelve hexadecimal digits of the identity: the name of the run's folder."""
        # What is None or missing is the same, so that a field added later leaves the ids as they are.
        known = {key: value for key, value in self.identity().items() if value is not None}
        text = json.dumps(known, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def cadence(self) -> tuple[float, Literal["seconds", "steps"]]:
        """Return how often a checkpoint is written."""
        found = _CADENCE.fullmatch(self.checkpoint_every)
        assert found is not None
        seconds = {"s": 1, "m": 60, "h": 3600}
        number, unit = float(found[1]), found[2]
        return (number, "steps") if unit == "it" else (number * seconds[unit], "seconds")


def sentence(error: ValidationError) -> str:
    """Return what pydantic found wrong, as one sentence."""
    parts = []
    for problem in error.errors():
        where = ".".join(str(key) for key in problem["loc"] if not str(key).startswith("function-"))
        if problem["type"] == "extra_forbidden":
            parts.append(f"{where} is not a known option")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            got = "" if isinstance(problem["input"], dict) else f", got {problem['input']!r}"
            parts.append(f"{where}: {text}{got}" if where else text)
    return "; ".join(parts)


def run_config(**values: Any) -> RunConfig:
    """Return a `RunConfig`, or raise a `LabError` that names the wrong value."""
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise LabError(sentence(error)) from None
