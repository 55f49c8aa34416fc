"""The statistics of a comparison, as pure functions of numbers: intervals, differences, targets, budgets, edges."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb, factorial, isfinite, log, prod, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np

Best = Literal["max", "min"]
NO_DIFFERENCE = "no difference shown"
EXACT_UP_TO = 8  # values; 6,435 different resamples, each with its multinomial weight
FEWEST = 5  # values that a bootstrap can make a 95 % interval of
RESAMPLES = 20_000


class Interval(NamedTuple):
    """Mean and interval; the ends are None where there are too few values for one."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


class Difference(NamedTuple):
    """Mean of the paired differences, its interval, and the verdict."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    verdict: str


class ToTarget(NamedTuple):
    """Median cost to the target over the runs (None when half of them or more never got there), and how many did."""

    steps: float | None
    seconds: float | None
    reached: int
    n: int


def bootstrap_interval(values: Iterable[float], level: float = 0.95) -> Interval:
    """Return the mean, and its expanded percentile bootstrap interval.

    The percentile bootstrap of five values covers the mean in some 83 % of all cases where it promises 95 %; reading
    the percentiles at Φ(−√(n/(n−1)) t) instead of 2.5 % corrects most of that (Hesterberg, The American Statistician,
    2015). All resamples are enumerated for up to eight values; beyond, 20,000 are drawn with a fixed seed. No resample
    of fewer than five values lies far enough out (from the least to the greatest of three is a 75 % interval): those
    get Student's t.

    Args:
      values: one number per run.
      level: how often the interval shall cover the mean.

    Returns:
      An `Interval`; without ends for fewer than two values.
    """
    x = np.asarray(list(values), dtype=float)
    n = len(x)
    if n == 0:
        return Interval(None, None, None, 0)
    if n == 1:
        return Interval(float(x[0]), None, None, 1)
    from scipy.stats import norm, t  # type: ignore[import-untyped, unused-ignore]

    mean = float(x.mean())
    quantile = t.ppf((1 + level) / 2, n - 1)
    if n < FEWEST:
        half = float(quantile * x.std(ddof=1) / sqrt(n))
        return Interval(mean, mean - half, mean + half, n)
    tail = norm.cdf(-sqrt(n / (n - 1)) * quantile)
    means, weights = _resampled_means(x)
    order = np.argsort(means)
    cumulative = np.cumsum(weights[order])
    last = len(means) - 1
    low = means[order[min(int(np.searchsorted(cumulative, tail * (1 - 1e-9))), last)]]
    high = means[order[min(int(np.searchsorted(cumulative, 1 - tail * (1 + 1e-9))), last)]]
    return Interval(mean, min(float(low), mean), max(float(high), mean), n)


def paired_difference(
    ours: Mapping[int, float | None], theirs: Mapping[int, float | None], best: Best = "max"
) -> Difference:
    """Return what ``ours`` has over ``theirs`` on the seeds that both finished; positive is more of the metric.

    Args:
      ours: score by seed; None where the run diverged.
      theirs: the same.
      best: whether more of the metric is better ("max") or less ("min").

    Returns:
      A `Difference` whose verdict is "better", "worse", or "no difference shown": where the interval covers 0 or is
      missing, where who leads has diverged on a seed that the other one finished, and where fewer than five
      differences are all the same, which happens to coarse scores and gives an interval without width.
    """
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    mean, low, high, n = bootstrap_interval(differences)
    verdict = NO_DIFFERENCE
    wide = n >= FEWEST or (n > 1 and max(differences) - min(differences) > 1e-9)
    if low is not None and high is not None and not low <= 0 <= high and wide:
        ahead = (low > 0) == (best == "max")
        leader, other = (0, 1) if ahead else (1, 0)
        fell = any([pair[leader] is None and pair[other] is not None for pair in pairs])  # noqa: C419
        verdict = NO_DIFFERENCE if fell else "better" if ahead else "worse"
    return Difference(mean, low, high, n, verdict)


def target_score(baselines: Mapping[str, Sequence[float]], best: Best = "max") -> float | None:
    """Return a score that every tuned baseline reaches at its end, on average: the worst of their mean final scores."""
    means = [float(np.mean(scores)) for scores in baselines.values() if len(scores)]
    if not means:
        return None
    return min(means) if best == "max" else max(means)


def time_to_target(
    curves: Sequence[Sequence[tuple[float, float, float | None]]], target: float | None, best: Best = "max"
) -> ToTarget:
    """Return how long the runs took until their validation score was first at the target.

    Args:
      curves: for each run, its (step, seconds, score) in order.
      target: the score to reach.
      best: "max" or "min".

    Returns:
      Medians over all runs, one that never got there counting as infinitely slow.
    """
    if target is None:
        return ToTarget(None, None, 0, len(curves))
    sign = 1 if best == "max" else -1
    hits = []
    for curve in curves:
        hit = None
        for point in curve:
            if point[2] is not None and sign * point[2] >= sign * target:
                hit = point
                break
        hits.append(hit)
    steps = _median_or_none([float("inf") if hit is None else hit[0] for hit in hits])
    seconds = _median_or_none([float("inf") if hit is None else hit[1] for hit in hits])
    return ToTarget(steps, seconds, len(curves) - hits.count(None), len(curves))


def budget_curve(outcomes: Sequence[float]) -> list[float]:
    """Return the exact expected outcome of the best of k settings drawn without replacement, k = 1 … n.

    The setting of rank r (1: best by validation) is the best of the k drawn with probability C(n − r, k − 1) / C(n, k).

    Args:
      outcomes: the outcome of each setting, in the order of the selection: the one that would be chosen is the first.

    Returns:
      n expectations; the last is the outcome of the setting that is chosen.
    """
    n = len(outcomes)
    return [
        sum([comb(n - r, k - 1) * outcome for r, outcome in enumerate(outcomes[: n - k + 1], start=1)]) / comb(n, k)
        for k in range(1, n + 1)
    ]


def edges(chosen: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the options whose best value is the least or the greatest that was tried: a wider grid might do better.

    Zero is no edge (nothing lies below a weight decay of 0), nor is a value of a grid without order, nor the only one.
    A learning rate that was drawn between the grid's extremes is at the edge in the outer 5 % of its decades.
    """
    flagged = []
    for option, values in grid.items():
        value = chosen.get(option)
        if len(values) < 2 or not _are_numbers([*values, value]):
            continue
        low, high = min(values), max(values)
        if value in (low, high) and value != 0:
            flagged.append(f"{option}={value:g} is the {'least' if value == low else 'greatest'} tried")
        elif value not in values and 0 < low < value < high:
            place = log(value / low) / log(high / low)
            if not 0.05 <= place <= 0.95:
                flagged.append(f"{option}={value:g} is near the {'least' if place < 0.5 else 'greatest'} tried")
    return flagged


def ranks(
    scores: Mapping[str, float | None], best: Best = "max", lost: Mapping[str, int] | None = None
) -> dict[str, int | None]:
    """Return 1 for the best score; the same rank for the same score; None without a score.

    Args:
      scores: by name.
      best: "max" or "min".
      lost: by name, how many runs diverged. Their scores are missing from the mean, so more of them rank behind fewer.
    """
    sign = -1 if best == "max" else 1
    keys = {name: ((lost or {}).get(name, 0), sign * s) for name, s in scores.items() if s is not None}
    order = sorted(keys.values())
    return {name: order.index(keys[name]) + 1 if name in keys else None for name in scores}


def _resampled_means(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of the resamples, and the probability of each."""
    n = len(x)
    if n <= EXACT_UP_TO:
        counts, weights = _multisets(n)
        return counts @ x / n, weights
    drawn = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    return x[drawn].mean(axis=1), np.full(RESAMPLES, 1 / RESAMPLES)


@lru_cache
def _multisets(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each of n values is in each of the C(2n − 1, n) resamples, and the resample's probability."""
    counts = np.array([np.bincount(chosen, minlength=n) for chosen in combinations_with_replacement(range(n), n)])
    ways = np.array([factorial(n) / prod(factorial(c) for c in row) for row in counts.tolist()])
    return counts, ways / float(n) ** n


def _median_or_none(values: Sequence[float]) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return middle if isfinite(middle) else None


def _are_numbers(values: Sequence[Any]) -> bool:
    return all([isinstance(value, int | float) and not isinstance(value, bool) for value in values])  # noqa: C419
