"""What the paper claims, quoted with its lines in the LaTeX source, and how a comparison judges each claim.

A verdict uses the quantity that the claim is about, against every rival that it names. It is made of the intervals of
paired differences that `acmo.lab` computes; where those do not decide, the verdict is "not shown".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from acmo.lab.results.stats import paired_difference

Verdict = Literal["holds", "does not hold", "not shown"]
TEST_METRICS = ("accuracy", "bleu")  # what claims about test scores speak of; more is better
ADAM_TYPE = ("adam", "amsgrad", "adamw", "padam", "adabound")


class DifferenceInterval(NamedTuple):
    """ACMo's value minus a rival's, paired by seed: the ends of the 95 % interval; None if there are too few seeds."""

    low: float | None
    high: float | None


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Args:
      key: its name.
      quote: the paper's words.
      lines: where they stand in the LaTeX source of arXiv 2006.07065.
      quantity: what the claim is about, and so what judges it.
      best: whether more ("max") or less ("min") of the quantity is better.
      kind: "better" than every rival, "comparable" to every one (not worse by more than ``margin``), or "top" (at most
        ``margin`` − 1 rivals are better).
      rivals: whom the claim names.
      setting: the experiment it is made for.
      margin: see ``kind``; in the quantity's unit, accuracy in points. The margins are ours: the paper gives none.
    """

    key: str
    quote: str
    lines: str
    quantity: str
    best: Literal["max", "min"]
    kind: Literal["better", "comparable", "top"]
    rivals: tuple[str, ...]
    setting: str
    margin: float = 0.0


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "convergence", "ACMo has a comparable convergence to SOTA Adam-type optimizers", "134, 168, 448",
        "training loss at the end", "min", "comparable", ADAM_TYPE, "all tasks", 0.05,
    ),
    Claim(
        "convergence-fixed-decay",
        "it was significantly faster than not only the latter, but also Adam and AMSGrad in terms of convergence speed",
        "447", "training loss at the end", "min", "better", ("sgd-momentum", "adam", "amsgrad"),
        "CIFAR-100, fixed decay",
    ),
    Claim(
        "generalisation", "gains a better generalization performance in most cases", "134, 168",
        "test accuracy or BLEU", "max", "better", ADAM_TYPE, "all tasks; most of the pairs of task and rival",
    ),
    Claim(
        "second-to-sgd", "our ACMo outperformed all benchmarks except only SGD-momentum", "447, 449",
        "test accuracy", "max", "better", ADAM_TYPE, "CIFAR-100, fixed decay",
    ),
    Claim(
        "top-three", "ACMo obtains the top three results of generalization performance in different architectures",
        "473", "test accuracy", "max", "top", ("sgd-momentum", *ADAM_TYPE), "CIFAR-10, tuned decay", 3,
    ),
    Claim(
        "translation-sgd", "displayed better results than SGD momentum on the fixed learning rate settings", "488, 489",
        "test BLEU", "max", "better", ("sgd-momentum",), "translation, fixed learning rate",
    ),
    Claim(
        "translation-adam", "DevLoss and BLEU results that are comparable with those in Adam and AdamW", "488, 489",
        "test BLEU", "max", "comparable", ("adam", "adamw"), "translation, fixed learning rate", 0.5,
    ),
    Claim(
        "memory", "a lower memory overhead", "156, 211",
        "bytes of state per parameter", "min", "better", ADAM_TYPE, "any",
    ),
)  # fmt: skip


def judge(claim: Claim, differences: Mapping[str, DifferenceInterval]) -> Verdict:
    """Return whether the claim holds in one experiment, for all rivals that it names.

    Args:
      claim: one of `CLAIMS`.
      differences: by rival; a rival that is missing decides nothing.

    Example:
      >>> claim = next(c for c in CLAIMS if c.key == "translation-sgd")
      >>> judge(claim, {"sgd-momentum": DifferenceInterval(-1.03, 5.24)})
      'not shown'
    """
    ends = [_ahead(differences.get(rival), claim.best) for rival in claim.rivals]
    if claim.kind == "top":
        allowed = int(claim.margin) - 1
        if sum(high < 0 for _, high in ends) > allowed:
            return "does not hold"
        return "holds" if sum(low > 0 for low, _ in ends) >= len(ends) - allowed else "not shown"
    least = -claim.margin if claim.kind == "comparable" else 0.0
    if any(high < least for _, high in ends):
        return "does not hold"
    return "holds" if all(low > least for low, _ in ends) else "not shown"


def find_differences(claim: Claim, rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, DifferenceInterval]:
    """Return ACMo's differences to the rivals of a claim, in the quantity that the claim is about.

    Args:
      claim: one of `CLAIMS`.
      rows: of one task of a ``summary.json``.
      metric: its score; accuracy becomes points.
    """
    by_label = {row["label"]: row for row in rows}
    if "acmo" not in by_label:
        return {}
    found = {}
    for rival in claim.rivals:
        if rival not in by_label:
            continue
        ours, theirs = by_label["acmo"], by_label[rival]
        if claim.quantity.startswith("bytes"):
            apart = ours["cost"]["state_bytes_per_parameter"] - theirs["cost"]["state_bytes_per_parameter"]
            found[rival] = DifferenceInterval(apart, apart)
            continue
        if claim.quantity.startswith("test") and metric not in TEST_METRICS:
            continue  # the paper has no task that is scored by bits per byte
        mine, others = (_by_seed(row, claim, metric) for row in (ours, theirs))
        if mine is None or others is None:
            continue
        paired = paired_difference(mine, others, claim.best)
        found[rival] = DifferenceInterval(paired.low, paired.high)
    return found


def _by_seed(row: Mapping[str, Any], claim: Claim, metric: str) -> dict[int, float | None] | None:
    """Return the quantity of a claim by seed; None where it was not recorded."""
    if claim.quantity.startswith("training loss"):
        losses = row.get("losses")
        return None if losses is None else {int(seed): value for seed, value in losses["train_by_seed"].items()}
    scale = 100.0 if metric == "accuracy" else 1.0
    return {int(seed): scale * value for seed, value in row["test_by_seed"].items()}


def holm(p_values: Mapping[str, float], level: float = 0.05) -> dict[str, bool]:
    """Return which hypotheses are accepted at a level that holds for all of them together (Holm, 1979).

    Example:
      >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
      {'a': True, 'b': False, 'c': False}
    """
    accepted = dict.fromkeys(p_values, False)
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > level / (len(p_values) - i):
            break
        accepted[name] = True
    return accepted


def judge_most(claim: Claim, differences: Mapping[tuple[str, str], DifferenceInterval]) -> Verdict:
    """Return whether a claim about "most cases" holds: for more than half of the pairs of task and rival.

    Args:
      claim: a claim of the kind "better".
      differences: by task and rival; only rivals that the claim names count.
    """
    ends = [_ahead(x, claim.best) for (_, rival), x in differences.items() if rival in claim.rivals]
    if 2 * sum(low > 0 for low, _ in ends) > len(ends):
        return "holds"
    return "does not hold" if ends and 2 * sum(high < 0 for _, high in ends) >= len(ends) else "not shown"


def _ahead(difference: DifferenceInterval | None, best: str) -> tuple[float, float]:
    """Return the interval of how far ACMo is ahead; everything where there is no interval."""
    if difference is None or difference.low is None or difference.high is None:
        return float("-inf"), float("inf")
    low, high = difference.low, difference.high
    return (low, high) if best == "max" else (-high, -low)
