"""The primary hypotheses of docs/results/PROTOCOL.md, judged from the published comparisons.

A comparison that is not published leaves the parts out that it would decide.
"""

from collections.abc import Mapping
from statistics import mean
from typing import Literal, NamedTuple

from acmo.lab.claims import ADAM_TYPE
from acmo.lab.published import Published, Seeds, find

PARTS = {"H1": 4, "H2": 1, "H3": 1}


class Part(NamedTuple):
    """One comparison of a hypothesis: how far ours is ahead on average, and the one-sided p-value."""

    text: str
    ahead: float
    p: float
    n: int


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


def judge_primary(published: Mapping[str, Published]) -> dict[str, list[Part]]:
    """Return the parts of H1, H2 and H3 that can be judged; `PARTS` says how many each has. All of them must hold."""
    return {"H1": _judge_h1(published), "H2": _judge_h2(published), "H3": _judge_h3(published)}


def _judge_h1(published: Mapping[str, Published]) -> list[Part]:
    parts = []
    for task in ("text-char", "multi30k"):
        for ours, theirs in (("spectral-acmo", "muon"), ("row-acmo", "adamw")):
            found = find(published, task, ours, theirs)
            if found is None:
                continue
            text = f"{found.title(ours)} below {found.title(theirs)} on {task}, validation loss"
            parts.append(compare(text, found.valid_losses(ours), found.valid_losses(theirs), "min"))
    return parts


def _judge_h2(published: Mapping[str, Published]) -> list[Part]:
    found = find(published, "cifar10", "row-acmo", "spectral-acmo", "sgd-momentum")
    both = ("row-acmo", "spectral-acmo")
    if found is None or any(found.rows[label]["valid"] is None for label in both):  # not tuned: nothing to choose by
        return []
    ours = max(both, key=lambda label: found.rows[label]["valid"])
    text = f"{found.title(ours)} above SGD-momentum on cifar10, test accuracy in points"
    return [compare(text, found.tests(ours), found.tests("sgd-momentum"), "max")]


def _judge_h3(published: Mapping[str, Published]) -> list[Part]:
    found = find(published, "cifar10", "acmo", *ADAM_TYPE)
    if found is None:
        return []
    ours, rivals = found.tests("acmo"), [found.tests(label) for label in ADAM_TYPE]
    means: dict[int, float | None] = {}
    for seed in ours:
        known = [x for x in (rival.get(seed) for rival in rivals) if x is not None]
        means[seed] = mean(known) if known else None
    return [compare("ACMo above the mean of the Adam-type on cifar10, test accuracy in points", ours, means, "max")]
