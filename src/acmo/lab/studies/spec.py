"""What a study is: the settings, or the seeds, of one contender on one task."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from acmo.lab.config.run_options import RunConfig, run_config
from acmo.lab.results.run_record import Score


@dataclass(frozen=True)
class Spec:
    """What a worker must know of a study; plain values, so that it travels to other processes.

    Args:
      name: unique in the store; it holds a hash of what the outcomes depend on.
      label: the contender.
      task: the task.
      phase: ``tune`` tries settings, ``final`` tries seeds of one setting.
      run: the run's options, except for those of a point.
      folder: where its runs lie, relative to the output folder.
      score: what is reported to Optuna, of the validation data (tune) or of the test data (final).
      points: what is tried; empty if TPE chooses.
      grid: for each option, the values that are tried or lie around what the sampler tries.
      sampler: "grid", "tpe" or "random".
      trials: how many.
      prune: stop those early that fall behind the others.
    """

    name: str
    label: str
    task: str
    phase: Literal["tune", "final"]
    run: dict[str, Any]
    folder: str
    score: Score
    points: list[dict[str, Any]]
    grid: dict[str, list[Any]] = field(default_factory=dict)
    sampler: str = "grid"
    trials: int = 0
    prune: bool = False

    def __len__(self) -> int:
        return self.trials if self.sampler == "tpe" else len(self.points)

    def config(self, point: dict[str, Any]) -> RunConfig:
        """Return the run of a point."""
        values = {**self.run, "phase": self.run.get("phase", self.phase)}
        if self.phase == "final":
            return run_config(**{**values, "seed": point["seed"]})
        return run_config(**{**values, "settings": {**self.run.get("settings", {}), **point}})


def encode(value: Any) -> Any:
    """Return a value as Optuna stores categories: a list as JSON."""
    return json.dumps(value) if isinstance(value, list | tuple) else value


def decode(encoded: Any, values: Sequence[Any]) -> Any:
    """Return the value that Optuna stored as `encoded`."""
    return next(v for v in values if encode(v) == encoded)
