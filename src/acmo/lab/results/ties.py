"""What the seeds can distinguish: every pair of optimizers, groups instead of ranks, and the least difference shown."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import sqrt
from statistics import median, stdev
from typing import NamedTuple

from acmo.lab.results.stats import NO_DIFFERENCE, Best, Difference, paired_difference

POWER = 0.8
Scores = Mapping[int, float | None]  # by seed; None where the run diverged


class Pair(NamedTuple):
    """What ``first`` has over ``second``, and what difference between them their seeds could have shown."""

    first: str
    second: str
    mean: float | None
    low: float | None
    high: float | None
    n: int
    verdict: str
    detectable: float | None


def compare_pairs(tests: Mapping[str, Scores], best: Best) -> list[Pair]:
    """Return every pair of those that have a score, in the order of ``tests``."""
    scored = [label for label, scores in tests.items() if any(s is not None for s in scores.values())]
    pairs = []
    for first, second in combinations(scored, 2):
        found: Difference = paired_difference(tests[first], tests[second], best)
        pairs.append(Pair(first, second, *found, detectable_difference(_differences(tests[first], tests[second]))))
    return pairs


def detectable_difference(differences: Sequence[float]) -> float | None:
    """Return the minimum detectable effect: the true difference that a paired test shows with a power of 80 %.

    It is (t₀.₉₇₅ + t₀.₈) s/√n, of the standard deviation s of the paired differences; None for fewer than two of them,
    or if all are equal.
    """
    n = len(differences)
    spread = stdev(differences) if n > 1 else 0.0
    return _quantiles(n) * spread / sqrt(n) if spread > 0 else None


def typical_detectable(pairs: Sequence[Pair]) -> float | None:
    """Return the median of what the pairs could have shown."""
    known = [pair.detectable for pair in pairs if pair.detectable is not None]
    return median(known) if known else None


def group_ties(ranks: Mapping[str, int | None], pairs: Sequence[Pair]) -> dict[str, int | None]:
    """Return the group of each optimizer, 1 for the best; None without a score.

    A group is its best member and everyone of the rest against whom that member shows no difference.

    Args:
      ranks: by label, 1 for the best.
      pairs: of those that have a rank.

    Example:
      >>> shown = Pair("a", "c", 0.1, 0.05, 0.2, 5, "better", 0.1)
      >>> tied = Pair("a", "b", 0.0, -0.1, 0.1, 5, NO_DIFFERENCE, 0.1)
      >>> group_ties({"a": 1, "b": 2, "c": 3}, [tied, shown])
      {'a': 1, 'b': 1, 'c': 2}
    """
    apart = {frozenset((p.first, p.second)) for p in pairs if p.verdict != NO_DIFFERENCE}
    left = sorted((rank, label) for label, rank in ranks.items() if rank is not None)
    groups: dict[str, int | None] = dict.fromkeys(ranks)
    number = 0
    while left:
        number += 1
        leader = left[0][1]
        for _, label in left:
            if label == leader or frozenset((leader, label)) not in apart:
                groups[label] = number
        left = [entry for entry in left if groups[entry[1]] is None]
    return groups


def _differences(ours: Scores, theirs: Scores) -> list[float]:
    found = []
    for seed in sorted(ours.keys() & theirs.keys()):
        a, b = ours[seed], theirs[seed]
        if a is not None and b is not None:
            found.append(a - b)
    return found


@lru_cache
def _quantiles(n: int) -> float:
    from scipy.stats import t  # type: ignore[import-untyped, unused-ignore]

    return float(t.ppf(0.975, n - 1) + t.ppf(POWER, n - 1))
