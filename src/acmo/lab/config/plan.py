"""What a comparison is: tasks, contenders, how they are tuned, how many seeds; from flags or from a TOML file."""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from acmo.lab.config.preset_files import TomlText, line_of, open_toml
from acmo.lab.config.run_options import RunOptions, Setting, sentence
from acmo.lab.errors import LabError
from acmo.lab.objects import nearest
from acmo.lab.redaction import redact, redact_value

PAPER = ("acmo", "sgd-momentum", "adam", "amsgrad", "adamw", "padam", "adabound")
ALIASES = {"sgd": "sgd-momentum"}

# More seeds or contenders, or another place of the data: still the same comparison. Anything else makes another one.
MAY_CHANGE = {
    "title", "needs", "optimizers", "contender", "seeds", "trials", "baselines", "extend",
    "data", "device", "log", "tensorboard", "keep_checkpoints", "checkpoint_every",
}  # fmt: skip

Values = Annotated[list[Setting], Field(min_length=1)]


class Contender(BaseModel):
    """Name an optimizer with its options, so that one optimizer can enter several times.

    Args:
      label: its name in tables, figures and folders.
      optimizer: a name of `acmo.rivals.REGISTRY`, ``module:Class`` or ``path/to/file.py:Class``.
      settings: options that are fixed.
      grid: options that are tuned, with the values to try; they replace the registry's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: Annotated[str, Field(min_length=1, max_length=120)]
    optimizer: str
    settings: dict[str, Setting] = {}
    grid: dict[str, Values] = {}

    @model_validator(mode="after")
    def _fixed_or_tuned(self) -> "Contender":
        for option in self.settings.keys() & self.grid.keys():
            raise ValueError(f"{option} of {self.label} is fixed in settings and tuned in grid: one of the two")
        return self


class Plan(RunOptions):
    """Describe a comparison; what its runs share is as in `RunOptions`.

    Args:
      title: one line about it.
      needs: what it takes: data, machine, time.
      tasks: the tasks, as in `RunConfig`.
      optimizers: names; `contender` adds entries with settings and grids of their own.
      protocol: ``default-wd`` leaves each optimizer's weight decay at its default; ``fixed-wd`` takes for all the one
        that is best for SGD-momentum; ``tuned-wd`` gives each its own best.
      grid: ``equal`` tunes the learning rate alone (and the weight decay as the protocol says), over four values for
        everyone; ``lr`` over the paper's eight for its optimizers; ``full`` is the paper's whole grid, ``paper`` the
        same without any extension.
      extend: where the best learning rate lies at the edge of its grid, try the next one out, up to four times.
      grids: by label, or ``all``: values to try instead of the registry's.
      sampler: ``grid`` tries every point; ``tpe`` and ``random`` draw ``trials`` of them.
      seeds: runs of the best setting, with the seeds after ``tune_seed``, which alone is used to select it.
      baselines: whom the target and the paired differences refer to.
      prune: stop tuning runs early by successive halving, within one optimizer; final runs never.
      test_every_setting: read the test data at the end of tuning runs too: for the budget curve, never to select.
    """

    title: str = ""
    needs: str = ""
    tasks: Annotated[list[str], Field(min_length=1)]
    optimizers: list[str] = Field(list(PAPER))
    contender: list[Contender] = Field([])
    protocol: Literal["default-wd", "fixed-wd", "tuned-wd"] = "default-wd"
    grid: Literal["equal", "lr", "full", "paper"] = "equal"
    extend: bool = True
    grids: dict[str, dict[str, Values]] = Field({})
    sampler: Literal["grid", "tpe", "random"] = "grid"
    trials: Annotated[int, Field(ge=1)] | None = None
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 5
    tune_seed: Annotated[int, Field(ge=0, lt=2**31 - 10_000)] = 0
    baselines: list[str] = Field(["sgd-momentum", "adam"])
    prune: bool = False
    test_every_setting: bool = False

    @field_validator("optimizers", "baselines")
    @classmethod
    def _without_aliases(cls, names: list[str]) -> list[str]:
        return [ALIASES.get(name, name) for name in names]

    @field_validator("grids")
    @classmethod
    def _grids_without_aliases(cls, grids: dict[str, dict[str, Values]]) -> dict[str, dict[str, Values]]:
        return {ALIASES.get(name, name): grid for name, grid in grids.items()}

    @model_validator(mode="after")
    def _consistent(self) -> "Plan":
        labels = [c.label for c in self.contenders()]
        if not labels:
            raise ValueError("there is no optimizer to compare")
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError("a task is named twice")
        if len({slug(label) for label in labels}) < len(labels):
            raise ValueError("an optimizer is named twice")
        for name in self.grids:
            if name not in (*labels, "all"):
                raise ValueError(f"grids.{name} is for no optimizer of this comparison{nearest(name, labels)}")
        if self.sampler != "grid" and self.trials is None:
            raise ValueError(f"sampler {self.sampler} needs trials: how many settings it may try")
        if self.sampler == "grid" and self.trials is not None:
            raise ValueError("trials is for the samplers tpe and random; the grid is tried whole")
        if self.prune and self.test_every_setting:
            raise ValueError("prune leaves settings without a test score: give either prune or test_every_setting")
        if self.protocol == "fixed-wd" and "sgd-momentum" not in labels:
            raise ValueError(
                "protocol fixed-wd takes the weight decay from sgd-momentum, which is not among the optimizers"
            )
        for contender in self.contenders() if self.protocol == "fixed-wd" else ():
            own = {*contender.grid, *self.grids.get(contender.label, {})}
            if "weight_decay" in own and contender.label != "sgd-momentum":
                raise ValueError(f"protocol fixed-wd sets the weight decay of {contender.label}: there is none to tune")
        return self

    def contenders(self) -> list[Contender]:
        """Return all optimizers that take part, in order."""
        return list(self._contenders)

    @cached_property
    def _contenders(self) -> list[Contender]:
        return [Contender(label=name, optimizer=name) for name in self.optimizers] + self.contender

    def final_seeds(self) -> list[int]:
        """Return the seeds of the runs that are reported: none of them was used to select."""
        return [self.tune_seed + 1 + i for i in range(self.seeds)]

    def run_options(self) -> dict[str, Any]:
        """Return what all runs of the comparison share."""
        return {key: getattr(self, key) for key in RunOptions.model_fields}

    def differs_from(self, stored: Mapping[str, Any]) -> list[str]:
        """Return the options that make this another comparison than the one read from a ``comparison.json``."""
        whole = redact_value(self.model_dump(mode="json"))
        # A contender that enters or leaves takes its own grid along.
        both = {"all", *labels_of(whole)} & {"all", *labels_of(stored)}
        mine, theirs = ({**plan, "grids": _only(plan.get("grids") or {}, both)} for plan in (whole, dict(stored)))
        return sorted(k for k, v in mine.items() if k not in MAY_CHANGE and k in stored and theirs[k] != v)


def labels_of(plan: Mapping[str, Any]) -> list[str]:
    """Return the labels of all contenders of a plan as it is stored."""
    return [*plan.get("optimizers", []), *(c["label"] for c in plan.get("contender", []))]


def slug(text: str) -> str:
    """Return the text as a name of a file or folder: other characters become dashes, and home folders are redacted."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", redact(text)).strip("-.") or "x"


def make_plan(values: Mapping[str, Any], toml: TomlText | Path | None = None) -> Plan:
    """Return a `Plan`, or a `LabError` that says what is wrong, and where if the values come from a TOML file."""
    try:
        return Plan.model_validate(dict(values))
    except ValidationError as error:
        text = sentence(error)
        if toml is not None:
            line = line_of(toml, [str(k) for k in error.errors()[0]["loc"]])
            text = f"{open_toml(toml).name}{f', line {line}' if line else ''}: {text}"
        raise LabError(text) from None


def parse_values(text: str) -> tuple[str, str, list[Setting]]:
    """Split ``label.option=v1,v2`` into (label, option, values); a value is JSON, or else text.

    Example:
      >>> parse_values("adam.betas=[0.9,0.99],[0.9,0.999]")
      ('adam', 'betas', [[0.9, 0.99], [0.9, 0.999]])
    """
    left, equals, right = text.partition("=")
    label, dot, option = left.rpartition(".")
    if not (equals and dot and label and option and right):
        raise LabError(f"{text!r} is not of the form optimizer.option=value,value")
    return ALIASES.get(label, label), option, [parse_value(part) for part in _split(right)]


def parse_value(text: str) -> Setting:
    """Return a number, true, false, null or a list as in JSON (1/8 also); everything else is text."""
    if re.fullmatch(r"\d+/[1-9]\d*", text):
        top, bottom = text.split("/")
        return int(top) / int(bottom)
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _only(grids: Mapping[str, Any], labels: set[str]) -> dict[str, Any]:
    return {label: grid for label, grid in grids.items() if label in labels}


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]
