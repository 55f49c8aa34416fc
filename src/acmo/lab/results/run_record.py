"""What is known of a run: one typed record, from `run` to the summary, the tables and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, isfinite
from typing import Any, Literal, NamedTuple

Best = Literal["max", "min"]
Role = Literal["tune", "final"]
Values = dict[str, Any]  # what a task's evaluation returns: numbers, and some text about them


@dataclass(frozen=True)
class Score:
    """Name the number by which settings are chosen and optimizers compared.

    Args:
      metric: a key of what `Task.evaluate` returns: ``accuracy``, ``bleu``, ``loss``.
      best: whether large or small is good.
    """

    metric: str = "accuracy"
    best: Best = "max"

    def better(self, a: float, b: float) -> bool:
        """Return whether a is better than b."""
        return a > b if self.best == "max" else a < b

    @property
    def sign(self) -> int:
        """Return 1 if more is better, and -1 if less is."""
        return 1 if self.best == "max" else -1


class CurvePoint(NamedTuple):
    """One evaluation on validation data, or the training loss by then; the score is None where it was not finite."""

    step: int
    seconds: float
    score: float | None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Hold one run: one task, one optimizer, one setting, one seed, and how it ended.

    Args:
      task: as the configuration names it.
      label: the contender; the optimizer's name outside of a comparison.
      optimizer: a name of `acmo.rivals.REGISTRY`, or where its class is.
      role: whether it was used to select a setting ("tune") or to judge it ("final").
      seed: of the split, the weights and the order of the data.
      settings: the optimizer's options that were given.
      status: how it ended: ``pruned`` was stopped early by ``--prune``, ``failed`` with an error, which is the reason.
      phase: whether the test data was read ("final") or not ("tune").
      valid, best_valid: the last and the best evaluation on validation data.
      test: the evaluation on test data; None where that was not read.
      steps, epochs, seconds: how far it got, and how long it trained.
      ms_per_step_optimizer: median over the steps that were timed.
      state_bytes: what the optimizer keeps beside the parameters.
      parameters: how many are trained.
      reason: why it diverged, was pruned or failed.
      run: its identifier, which is the name of its folder.
      curve: its evaluations on validation data.
      test_curve: its evaluations on test data on the way, which nothing is selected by; usually there are none.
      train_curve: its smoothed training loss; empty in results of earlier versions.
      folder: relative to the comparison's; None where it is on another machine.
    """

    task: str
    label: str
    optimizer: str
    role: Role
    seed: int
    settings: dict[str, Any]
    status: Literal["finished", "diverged", "pruned", "failed", "unfinished"]
    phase: Role | None = None
    valid: Values = field(default_factory=dict)
    best_valid: Values = field(default_factory=dict)
    test: Values | None = None
    steps: int | None = None
    epochs: float | None = None
    seconds: float | None = None
    ms_per_step_optimizer: float | None = None
    state_bytes: int | None = None
    parameters: int | None = None
    reason: str | None = None
    run: str = ""
    curve: Sequence[CurvePoint] = ()
    test_curve: Sequence[CurvePoint] = ()
    train_curve: Sequence[CurvePoint] = ()
    folder: str | None = None

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "RunRecord":
        """Return the record that `to_json` made; keys of other versions are left out, missing ones have defaults."""
        if row.keys() - _NAMES:
            row = {name: row[name] for name in FIELDS if name in row}
        values = {"optimizer": row["label"], **row}
        for key in ("valid", "best_valid"):
            values[key] = row.get(key) or {}
        for key in CURVES:
            values[key] = tuple(map(CurvePoint._make, row.get(key) or ()))
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return dict(vars(self))

    def outcome(self) -> dict[str, Any]:
        """Return what the run itself found out, as plain values: all but who it is."""
        return {name: getattr(self, name) for name in OUTCOME}

    def training_loss(self, share: float = 1.0) -> float | None:
        """Return the smoothed training loss after a share of the steps; None unless the run got so far."""
        if self.status != "finished" or not self.steps:
            return None
        for point in reversed(self.train_curve):
            if point.step <= share * self.steps:
                return point.score
        return None

    def score_on(self, split: Literal["valid", "test"], metric: str) -> float | None:
        """Return the score at the end; None unless the run finished and has one."""
        values = self.valid if split == "valid" else self.test
        return values.get(metric) if self.status == "finished" and values else None

    def tuning_score(self, split: Literal["valid", "test"], metric: str) -> float | None:
        """Return `score_on`; of a pruned run, its validation score where it was stopped."""
        values = self.valid if split == "valid" else self.test
        ended = self.status == "finished" or (self.status == "pruned" and split == "valid")
        return values.get(metric) if ended and values else None


CURVES = ("curve", "test_curve", "train_curve")
FIELDS = tuple(f.name for f in fields(RunRecord))
_NAMES = frozenset(FIELDS)
REQUIRED = frozenset({"task", "label", "run", "role", "seed", "settings", "status"})
OUTCOME = (*FIELDS[FIELDS.index("status") : FIELDS.index("reason") + 1], *CURVES)


def thin_curve(curve: Sequence[CurvePoint], score: Score) -> list[CurvePoint]:
    """Keep a long curve at every so many points, and wherever it was better than before: a target is reached there."""
    every, sign = len(curve) // 200 if len(curve) > 400 else 1, score.sign
    top, kept = -inf, []
    for i, point in enumerate(curve):
        ahead = point.score is not None and sign * point.score > top
        if ahead and point.score is not None:
            top = sign * point.score
        if ahead or i % every == 0 or i == len(curve) - 1:
            kept.append(point)
    return kept


def finite_or_none(value: Any) -> float | None:
    """Return the value if it is a finite number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None
