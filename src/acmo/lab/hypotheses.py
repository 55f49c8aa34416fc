"""The hypotheses and questions of docs/results/PROTOCOL.md, judged from the published comparisons.

A comparison that is not published leaves what it would decide "not judged".
:mod:`acmo.lab.report.results_tables` writes the tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from acmo.lab.claims import ADAM_TYPE
from acmo.lab.config.plan import slug
from acmo.lab.report import words
from acmo.lab.report.publish import recomputed
from acmo.lab.results import comparison_folder
from acmo.lab.results.losses import SHARES
from acmo.lab.results.run_record import RunRecord
from acmo.lab.results.stats import paired_difference

Row = Mapping[str, Any]
Seeds = Mapping[int, float | None]  # a quantity by seed; None where the run diverged
NOT_JUDGED = "not judged"
# What counts as no worse: in training loss and bits per byte, in points of accuracy, in BLEU.
LOSS_MARGIN, POINTS_MARGIN, BLEU_MARGIN = 0.02, 0.5, 0.5


@dataclass(frozen=True)
class Published:
    """A published comparison: the tasks of its summary, and its runs. What is judged has one task."""

    name: str
    tasks: Sequence[Row]
    runs: Sequence[RunRecord]

    @property
    def task(self) -> Row:
        """Return the first task."""
        return self.tasks[0]

    @property
    def rows(self) -> dict[str, Row]:
        """Return the optimizers' rows by label."""
        return {row["label"]: row for row in self.task["rows"]}

    def finals(self, label: str) -> list[RunRecord]:
        """Return the runs of an optimizer's chosen setting."""
        own, chosen = [run for run in self.runs if run.label == label], self.rows[label]["settings"]
        return [run for run in own if run.phase == "final" and run.settings == chosen]

    def by_seed(self, label: str, read: Callable[[RunRecord], float | None]) -> Seeds:
        """Return a quantity of the final runs by seed."""
        return {run.seed: read(run) if run.status == "finished" else None for run in self.finals(label)}

    def tests(self, label: str) -> Seeds:
        """Return the test scores by seed: accuracy in points."""
        metric = self.task["metric"]
        return self.by_seed(label, lambda run: _scaled(run.score_on("test", metric), metric))

    def valid_losses(self, label: str) -> Seeds:
        """Return the validation loss at the last step by seed."""
        return self.by_seed(label, lambda run: run.score_on("valid", "loss"))

    def training_losses(self, label: str, share: float) -> Seeds:
        """Return the smoothed training loss after a share of the steps by seed."""
        return self.by_seed(label, lambda run: run.training_loss(share))


class Part(NamedTuple):
    """One comparison of a hypothesis: how far ours is ahead on average, and the one-sided p-value."""

    text: str
    ahead: float
    p: float
    n: int


class Difference(NamedTuple):
    """Ours minus theirs with its 95 % interval: what a question rests on, and its figure shows.

    Attributes:
      where: the comparison and the quantity; differences of one and the same share a scale.
      who: ours and theirs, or after how many steps.
      mean: paired by seed.
      low: lower end of the interval; −∞ where the seeds are too few.
      high: upper end.
      limit: what the interval must be beyond.
    """

    where: str
    who: str
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
    """A number without an interval that a question rests on."""

    where: str
    who: str
    value: float
    text: str


class Answer(NamedTuple):
    """A question, its verdict, and the numbers that it rests on: in words, and for a figure."""

    question: str
    verdict: Literal["holds", "does not hold", "not shown", "not judged", "measured"]
    numbers: str
    evidence: Sequence[Difference | Quantity] = ()

    @property
    def slug(self) -> str:
        """Return the name of its figure."""
        return slug(self.question.partition(",")[0])


def read_published(results: Path) -> dict[str, Published]:
    """Return the comparisons of a results folder by name, without the archive."""
    found = {}
    for path in sorted(results.glob("*/summary.json")):
        folder = path.parent
        found[folder.name] = Published(folder.name, recomputed(folder)["tasks"], comparison_folder.load(folder).runs)
    return found


def compare(text: str, ours: Seeds, theirs: Seeds, best: Literal["min", "max"]) -> Part:
    """Return the paired t-test of "ours is better"; one that diverged where its rival finished cannot win.

    Example:
      >>> part = compare("a − b", {1: 1.0, 2: 1.2, 3: 1.1}, {1: 2.0, 2: 2.1, 3: 2.2}, "min")
      >>> round(part.ahead, 2), part.p < 0.01
      (1.0, True)
    """
    from scipy.stats import ttest_1samp  # type: ignore[import-untyped, unused-ignore]

    sign = 1 if best == "max" else -1
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    ahead = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
    fell = any(a is None and b is not None for a, b in pairs)
    p = 1.0 if fell or len(ahead) < 2 else float(ttest_1samp(ahead, 0, alternative="greater").pvalue)
    return Part(text, mean(ahead) if ahead else float("nan"), p, len(ahead))


PARTS = {"H1": 4, "H2": 1, "H3": 1}


def judge_primary(published: Mapping[str, Published]) -> dict[str, list[Part]]:
    """Return the parts of H1, H2 and H3 that can be judged; `PARTS` says how many each has. All of them must hold."""
    return {"H1": _judge_h1(published), "H2": _judge_h2(published), "H3": _judge_h3(published)}


def _judge_h1(published: Mapping[str, Published]) -> list[Part]:
    parts = []
    for task in ("text-char", "multi30k"):
        for ours, theirs in (("spectral-acmo", "muon"), ("row-acmo", "adamw")):
            found = _find(published, task, ours, theirs)
            if found is None:
                continue
            text = f"{_title(found, ours)} below {_title(found, theirs)} on {task}, validation loss"
            parts.append(compare(text, found.valid_losses(ours), found.valid_losses(theirs), "min"))
    return parts


def _judge_h2(published: Mapping[str, Published]) -> list[Part]:
    found = _find(published, "cifar10", "row-acmo", "spectral-acmo", "sgd-momentum")
    if found is None:
        return []
    ours = max(("row-acmo", "spectral-acmo"), key=lambda label: found.rows[label]["valid"])
    text = f"{_title(found, ours)} above SGD-momentum on cifar10, test accuracy in points"
    return [compare(text, found.tests(ours), found.tests("sgd-momentum"), "max")]


def _judge_h3(published: Mapping[str, Published]) -> list[Part]:
    found = _find(published, "cifar10", "acmo", *ADAM_TYPE)
    if found is None:
        return []
    ours, rivals = found.tests("acmo"), [found.tests(label) for label in ADAM_TYPE]
    means: dict[int, float | None] = {}
    for seed in ours:
        known = [x for x in (rival.get(seed) for rival in rivals) if x is not None]
        means[seed] = mean(known) if known else None
    return [compare("ACMo above the mean of the Adam-type on cifar10, test accuracy in points", ours, means, "max")]


def answer_questions(published: Mapping[str, Published]) -> list[Answer]:
    """Return the secondary questions, each with its verdict and numbers."""
    ask = (_training_speed, _tuning, _bytes, _calibration, _images, _not_behind_muon, _orthogonalisation)
    return [question(published) for question in ask]


def _training_speed(published: Mapping[str, Published]) -> Answer:
    question = "RowACMo trains Transformers as fast as AdamW or faster, with half of its state"
    differences, numbers = [], []
    for task in ("text-char", "multi30k"):
        found = _find(published, task, "row-acmo", "adamw")
        if found is None:
            continue
        for name, share in SHARES.items():
            ours, theirs = (found.training_losses(label, share) for label in ("row-acmo", "adamw"))
            where = f"{task}: training loss, RowACMo − AdamW (less is better)"
            differences.append(_difference(where, f"after {name} % of the steps", ours, theirs, LOSS_MARGIN))
            numbers.append(f"{task}, training loss after {name} %: {differences[-1]}")
        state = [found.rows[x]["cost"]["state_bytes_per_parameter"] for x in ("row-acmo", "adamw")]
        numbers.append(f"{state[0]:.1f} against {state[1]:.1f} bytes per parameter")
    verdict = _no_worse([(d.low, d.high) for d in differences], LOSS_MARGIN, 6)
    return Answer(question, verdict, "; ".join(numbers), differences)


def _tuning(published: Mapping[str, Published]) -> Answer:
    numbers, shares, bars = [], [], []
    for task in ("text-char", "multi30k"):
        found = _find(published, task, "row-acmo", "adamw")
        if found is not None:
            own = [share_near_the_best(found, label) for label in ("row-acmo", "adamw")]
            shares.append(own)
            numbers.append(f"{task}: {own[0]:.0%} against {own[1]:.0%} of the rates tried")
            where = f"{task}: share of the rates tried that end near the best"
            for label, share in zip(("row-acmo", "adamw"), own, strict=True):
                bars.append(Quantity(where, _title(found, label), share, f"{share:.0%}"))
    verdict: Any = NOT_JUDGED
    if len(shares) == 2:
        verdict = "holds" if all(ours >= theirs for ours, theirs in shares) else "does not hold"
    return Answer("RowACMo needs no more tuning than AdamW", verdict, "; ".join(numbers), bars)


def share_near_the_best(found: Published, label: str) -> float:
    """Return the share of an optimizer's tuning runs that end within one interval of its best.

    The interval is the length of the 95 % interval of the chosen setting's test score over seeds.
    """
    row, best, metric = found.rows[label], found.task["best"], found.task["metric"]
    width = row["test"]["high"] - row["test"]["low"]
    runs = [run for run in found.runs if run.label == label and run.phase == "tune"]
    scores = [run.score_on("valid", metric) if run.status == "finished" else None for run in runs]
    known = [score for score in scores if score is not None]
    top = max(known) if best == "max" else min(known)
    near: int = sum(abs(score - top) <= width for score in known)
    return near / len(scores)


def _bytes(published: Mapping[str, Published]) -> Answer:
    found = _find(published, "ablation", "row", "row, int8")
    if found is None:
        return Answer("int8 moments cost nothing", "not judged", "")
    metric = words.name(found.task["metric"])
    where = f"ablation: test {metric}, int8 − float32 (less is better)"
    one = _difference(where, "RowACMo", found.tests("row, int8"), found.tests("row"), LOSS_MARGIN)
    verdict = _no_worse([(one.low, one.high)], LOSS_MARGIN, 1)
    return Answer("int8 moments cost nothing", verdict, f"int8 − float32: {one} {metric}", [one])


def _calibration(published: Mapping[str, Published]) -> Answer:
    """Judge the calibrated moment against the better of the plain ones, by validation, for both kinds of steps."""
    question, ends, numbers, differences = "Calibration matters", [], [], []
    for label in ("row", "spectral"):
        plain = [f"{label}, plain β = {beta}" for beta in ("0.9", "0.95")]
        found = _find(published, "ablation", label, *plain)
        if found is None:
            return Answer(question, "not judged", "")
        sign = 1 if found.task["best"] == "min" else -1
        rows = found.rows
        rival = min(plain, key=lambda name: sign * rows[name]["valid"])
        metric = words.name(found.task["metric"])
        where = f"ablation: test {metric}, calibrated − plain moment (less is better)"
        one = _difference(where, f"{label} − {rival}", found.tests(label), found.tests(rival), 0.0)
        differences.append(one)
        ends.append((one.low, one.high) if sign == 1 else (-one.high, -one.low))
        numbers.append(f"{one.who}: {one} {metric}")
    ahead, behind = (all(high < 0 for _, high in ends), any(low > 0 for low, _ in ends))
    verdict: Any = "holds" if ahead else "does not hold" if behind else "not shown"
    return Answer(question, verdict, "; ".join(numbers), differences)


def _images(published: Mapping[str, Published]) -> Answer:
    question = "On image tasks RowACMo is not worse than SGD-momentum"
    differences, numbers = [], []
    for task in ("cifar10", "fashion-mnist"):
        found = _find(published, task, "row-acmo", "sgd-momentum")
        if found is not None:
            where, ours, theirs = "test accuracy in points", found.tests("row-acmo"), found.tests("sgd-momentum")
            one = _difference(f"{where}, RowACMo − SGD-momentum (more is better)", task, ours, theirs, -POINTS_MARGIN)
            differences.append(one)
            numbers.append(f"{task}: {one} points")
    verdict = _no_worse([(-d.high, -d.low) for d in differences], POINTS_MARGIN, 2)
    return Answer(question, verdict, "; ".join(numbers), differences)


def _not_behind_muon(published: Mapping[str, Published]) -> Answer:
    question = "SpectralACMo is not behind Muon, with one learning rate and no second moment"
    ends, numbers, differences = [], [], []
    for task, margin, sign in (("text-char", LOSS_MARGIN, 1), ("multi30k", BLEU_MARGIN, -1)):
        found = _find(published, task, "spectral-acmo", "muon")
        if found is not None:
            metric = words.name(found.task["metric"])
            ours, theirs = found.tests("spectral-acmo"), found.tests("muon")
            where = f"{task}: test {metric} ({'less' if sign == 1 else 'more'} is better)"
            one = _difference(where, "SpectralACMo − Muon", ours, theirs, sign * margin)
            differences.append(one)
            worse = sorted((sign * one.low / margin, sign * one.high / margin))
            ends.append((worse[0], worse[1]))
            numbers.append(f"{task}: {one} {metric}")
    return Answer(question, _no_worse(ends, 1.0, 2), "; ".join(numbers), differences)


def _orthogonalisation(published: Mapping[str, Published]) -> Answer:
    question, labels = "What orthogonalisation costs", ("spectral-acmo", "muon", "row-acmo", "adamw")
    numbers, bars = [], []
    for task in ("text-char", "cifar10"):  # those of multi30k vary fivefold: its runs had other work beside them
        found = _find(published, task, *labels)
        if found is not None:
            own = [found.rows[label]["cost"]["ms_per_step_optimizer"] for label in labels]
            titles = [_title(found, label) for label in labels]
            numbers.append(f"{task}: " + ", ".join(f"{t} {ms:.1f}" for t, ms in zip(titles, own, strict=True)))
            where = f"{task}: milliseconds per optimizer step"
            bars += [Quantity(where, t, ms, f"{ms:.1f}") for t, ms in zip(titles, own, strict=True)]
    if not bars:
        return Answer(question, "not judged", "")
    return Answer(question, "measured", "milliseconds per optimizer step: " + "; ".join(numbers), bars)


def _no_worse(ends: Sequence[tuple[float, float]], margin: float, needed: int) -> Any:
    """Judge by intervals of how much worse ours is: all below the margin, one beyond it, or neither."""
    if any(low > margin for low, _ in ends):
        return "does not hold"
    if len(ends) < needed:
        return NOT_JUDGED
    return "holds" if all(high < margin for _, high in ends) else "not shown"


def _difference(where: str, who: str, ours: Seeds, theirs: Seeds, limit: float) -> Difference:
    found = paired_difference(ours, theirs)
    if found.mean is None or found.low is None or found.high is None:
        return Difference(where, who, nan, -inf, inf, limit)
    return Difference(where, who, found.mean, found.low, found.high, limit)


def _find(published: Mapping[str, Published], name: str, *labels: str) -> Published | None:
    """Return a comparison if it is published and these optimizers have final runs in it."""
    found = published.get(name)
    return found if found is not None and all(found.rows.get(x, {}).get("test") for x in labels) else None


def _title(found: Published, label: str) -> str:
    return str(found.rows[label]["title"])


def _scaled(value: float | None, metric: str) -> float | None:
    return None if value is None else value * words.scale(metric)
