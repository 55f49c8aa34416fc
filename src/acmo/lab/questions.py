"""The secondary questions of docs/results/PROTOCOL.md, answered from the published comparisons.

A comparison that is not published leaves what it would decide "not judged".
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from acmo.lab.config.plan import slug
from acmo.lab.published import Published, Seeds, find, find_fastest
from acmo.lab.report import words
from acmo.lab.results.losses import SHARES
from acmo.lab.results.stats import paired_difference

NOT_JUDGED: Literal["not judged"] = "not judged"
# What counts as no worse: in training loss and bits per byte, in points of accuracy, in BLEU.
LOSS_MARGIN, POINTS_MARGIN, BLEU_MARGIN = 0.02, 0.5, 0.5


class Difference(NamedTuple):
    """Ours minus theirs with its 95 % interval: what a question rests on, and its figure shows.

    Attributes:
      panel: the comparison and the quantity; differences with the same panel share a scale.
      label: ours and theirs, the task, or after how many steps.
      mean: paired by seed.
      low: lower end of the interval; −∞ where the seeds are too few.
      high: upper end.
      limit: the interval must lie on the better side of it.
    """

    panel: str
    label: str
    mean: float
    low: float
    high: float
    limit: float

    def __str__(self) -> str:
        if not isfinite(self.high - self.low):
            return "too few seeds"
        mean, low, high = (format(x, "+.3f").replace("-", "−") for x in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"


class Quantity(NamedTuple):
    """A number without an interval that a question rests on, in words, and the most that it can be."""

    panel: str
    label: str
    value: float
    text: str
    most: float | None = None


class Answer(NamedTuple):
    """A question, its verdict, and the numbers that it rests on: in words, and for a figure."""

    question: str
    verdict: Literal["holds", "does not hold", "not shown", "not judged", "measured"]
    numbers: str
    evidence: Sequence[Difference | Quantity] = ()

    def __str__(self) -> str:
        return f"{self.question}: {self.verdict}. {self.numbers}"

    @property
    def slug(self) -> str:
        """Return the name of its figure."""
        return slug(self.question.partition(",")[0])


def answer_questions(published: Mapping[str, Published]) -> list[Answer]:
    """Return the secondary questions, each with its verdict and numbers."""
    ask = (_training_speed, _tuning, _bytes, _calibration, _images, _not_behind_muon, _orthogonalisation)
    return [question(published) for question in ask]


def _training_speed(published: Mapping[str, Published]) -> Answer:
    question = "RowACMo trains Transformers as fast as AdamW or faster, with half of its state"
    differences, numbers = [], []
    for task in ("text-char", "multi30k"):
        found = find(published, task, "row-acmo", "adamw")
        if found is None:
            continue
        for name, share in SHARES.items():
            ours, theirs = (found.training_losses(label, share) for label in ("row-acmo", "adamw"))
            panel = f"{task}: training loss, RowACMo − AdamW (less is better)"
            differences.append(_difference(panel, f"after {name} % of the steps", ours, theirs, LOSS_MARGIN))
            numbers.append(f"{task}, training loss after {name} %: {differences[-1]}")
        state = [found.rows[x]["cost"]["state_bytes_per_parameter"] for x in ("row-acmo", "adamw")]
        numbers.append(f"{state[0]:.1f} against {state[1]:.1f} bytes per parameter")
    verdict = _no_worse([(d.low, d.high) for d in differences], LOSS_MARGIN, 6)
    return Answer(question, verdict, "; ".join(numbers), differences)


def _tuning(published: Mapping[str, Published]) -> Answer:
    numbers, shares, quantities = [], [], []
    for task in ("text-char", "multi30k"):
        found = find(published, task, "row-acmo", "adamw")
        if found is None:
            continue
        counts = [count_near_the_best(found, label) for label in ("row-acmo", "adamw")]
        if not all(tried for _, tried in counts):
            continue
        shares.append([near / tried for near, tried in counts])
        texts = [f"{near} of {tried}" for near, tried in counts]
        numbers.append(f"{task}: {texts[0]} against {texts[1]} rates tried")
        panel = f"{task}: share of the rates tried that end near the best"
        for label, share, text in zip(("row-acmo", "adamw"), shares[-1], texts, strict=True):
            quantities.append(Quantity(panel, found.title(label), share, text, most=1.0))
    verdict: Any = NOT_JUDGED
    if len(shares) == 2:
        verdict = "holds" if all(ours >= theirs for ours, theirs in shares) else "does not hold"
    return Answer("RowACMo needs no more tuning than AdamW", verdict, "; ".join(numbers), quantities)


def count_near_the_best(found: Published, label: str) -> tuple[int, int]:
    """Return how many of an optimizer's tuning runs end within one interval of its best, and of how many.

    The interval is the length of the 95 % interval of the chosen setting's test score over seeds. An optimizer with one
    setting has no tuning runs.
    """
    row, best, metric = found.rows[label], found.task["best"], found.task["metric"]
    runs = [run for run in found.runs if run.label == label and run.phase == "tune"]
    if not runs:
        return 0, 0
    width = row["test"]["high"] - row["test"]["low"]
    scores = [run.score_on("valid", metric) if run.status == "finished" else None for run in runs]
    known = [score for score in scores if score is not None]
    top = max(known) if best == "max" else min(known)
    return sum(abs(score - top) <= width for score in known), len(scores)


def _bytes(published: Mapping[str, Published]) -> Answer:
    found = find(published, "ablation", "row", "row, int8")
    if found is None:
        return Answer("int8 moments cost nothing", NOT_JUDGED, "")
    metric = words.name(found.task["metric"])
    panel = f"ablation: test {metric}, int8 − float32 (less is better)"
    difference = _difference(panel, "RowACMo", found.tests("row, int8"), found.tests("row"), LOSS_MARGIN)
    verdict = _no_worse([(difference.low, difference.high)], LOSS_MARGIN, 1)
    return Answer("int8 moments cost nothing", verdict, f"int8 − float32: {difference} {metric}", [difference])


def _calibration(published: Mapping[str, Published]) -> Answer:
    """Judge the calibrated moment against the better of the plain ones, by validation, for both kinds of steps."""
    question, numbers, differences = "Calibration matters", [], []
    for label in ("row", "spectral"):
        plain = [f"{label}, plain β = {beta}" for beta in ("0.9", "0.95")]
        found = find(published, "ablation", label, *plain)
        if found is None or any(found.rows[name]["valid"] is None for name in plain):  # not tuned: nothing to choose by
            return Answer(question, NOT_JUDGED, "")
        rows = found.rows
        rival = min(plain, key=lambda name: rows[name]["valid"])
        metric = words.name(found.task["metric"])
        panel = f"ablation: test {metric}, calibrated − plain moment (less is better)"
        difference = _difference(panel, f"{label} − {rival}", found.tests(label), found.tests(rival), 0.0)
        differences.append(difference)
        numbers.append(f"{difference.label}: {difference} {metric}")
    ahead, behind = (all(d.high < 0 for d in differences), any(d.low > 0 for d in differences))
    verdict: Any = "holds" if ahead else "does not hold" if behind else "not shown"
    return Answer(question, verdict, "; ".join(numbers), differences)


def _images(published: Mapping[str, Published]) -> Answer:
    question = "On image tasks RowACMo is not worse than SGD-momentum"
    differences, numbers = [], []
    for task in ("cifar10", "fashion-mnist"):
        found = find(published, task, "row-acmo", "sgd-momentum")
        if found is not None:
            panel = "test accuracy in points, RowACMo − SGD-momentum (more is better)"
            ours, theirs = found.tests("row-acmo"), found.tests("sgd-momentum")
            differences.append(_difference(panel, task, ours, theirs, -POINTS_MARGIN))
            numbers.append(f"{task}: {differences[-1]} points")
    verdict = _no_worse([(-d.high, -d.low) for d in differences], POINTS_MARGIN, 2)
    return Answer(question, verdict, "; ".join(numbers), differences)


def _not_behind_muon(published: Mapping[str, Published]) -> Answer:
    question = "SpectralACMo is not behind Muon, with one learning rate and no second moment"
    ends, numbers, differences = [], [], []
    for task, margin, sign in (("text-char", LOSS_MARGIN, 1), ("multi30k", BLEU_MARGIN, -1)):
        found = find(published, task, "spectral-acmo", "muon")
        if found is not None:
            metric = words.name(found.task["metric"])
            panel = f"{task}: test {metric} ({'less' if sign == 1 else 'more'} is better)"
            ours, theirs = found.tests("spectral-acmo"), found.tests("muon")
            difference = _difference(panel, "SpectralACMo − Muon", ours, theirs, sign * margin)
            differences.append(difference)
            worse = sorted((sign * difference.low / margin, sign * difference.high / margin))
            ends.append((worse[0], worse[1]))
            numbers.append(f"{task}: {difference} {metric}")
    return Answer(question, _no_worse(ends, 1.0, 2), "; ".join(numbers), differences)


def _orthogonalisation(published: Mapping[str, Published]) -> Answer:
    question, labels = "What orthogonalisation costs", ("spectral-acmo", "muon", "row-acmo", "adamw")
    compared = {name: found for name, found in published.items() if found.has_seeds}
    numbers, quantities = [], []
    for name in ("text-char", "multi30k", "cifar10"):
        found = find(published, name, *labels)
        if found is None:
            continue
        panel, texts = f"{name}: milliseconds per optimizer step, the fastest run's", []
        for label in labels:
            ms = find_fastest(compared, found, label, attrgetter("ms_per_step_optimizer")) or nan
            quantities.append(Quantity(panel, found.title(label), ms, f"{ms:.1f}"))
            texts.append(f"{found.title(label)} {ms:.1f}")
        numbers.append(f"{name}: {', '.join(texts)}")
    if not quantities:
        return Answer(question, NOT_JUDGED, "")
    text = "milliseconds per optimizer step, the fastest run's: " + "; ".join(numbers)
    return Answer(question, "measured", text, quantities)


def _no_worse(ends: Sequence[tuple[float, float]], margin: float, needed: int) -> Any:
    """Judge by intervals of how much worse ours is: all below the margin, one beyond it, or neither."""
    if any(low > margin for low, _ in ends):
        return "does not hold"
    if len(ends) < needed:
        return NOT_JUDGED
    return "holds" if all(high < margin for _, high in ends) else "not shown"


def _difference(panel: str, label: str, ours: Seeds, theirs: Seeds, limit: float) -> Difference:
    found = paired_difference(ours, theirs)
    if found.mean is None or found.low is None or found.high is None:
        return Difference(panel, label, nan, -inf, inf, limit)
    return Difference(panel, label, found.mean, found.low, found.high, limit)
