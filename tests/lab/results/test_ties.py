"""Groups instead of ranks where no difference is shown, and what difference the seeds could have shown."""

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmo.lab.results.stats import NO_DIFFERENCE
from acmo.lab.results.ties import Pair, compare_pairs, detectable_difference, group_ties, typical_detectable


def pair(first: str, second: str, verdict: str = NO_DIFFERENCE) -> Pair:
    return Pair(first, second, 0.0, None, None, 5, verdict, None)


@given(st.integers(1, 7), st.data())
def test_groups_start_with_a_leader_and_hold_who_is_tied_with_it(n, data):
    labels = [chr(97 + i) for i in range(n)]
    pairs = [pair(a, b, data.draw(st.sampled_from([NO_DIFFERENCE, "better"]))) for a, b in combinations(labels, 2)]
    groups = group_ties({label: i + 1 for i, label in enumerate(labels)}, pairs)
    verdicts = {(p.first, p.second): p.verdict for p in pairs}
    assert groups["a"] == 1
    for number in set(groups.values()):
        members = [label for label in labels if groups[label] == number]
        assert all(verdicts[members[0], other] == NO_DIFFERENCE for other in members[1:])
        behind = [label for label in labels if groups[label] > number]
        assert all(verdicts[members[0], other] == "better" for other in behind)


def test_optimizers_without_a_score_have_no_group():
    assert group_ties({"a": 1, "b": None}, []) == {"a": 1, "b": None}


def test_every_pair_is_compared_once_as_row_minus_column():
    tests = {"a": {1: 0.9, 2: 0.8}, "b": {1: 0.5, 2: 0.6}, "c": {1: None, 2: None}, "d": {1: 0.7, 2: 0.1}}
    pairs = compare_pairs(tests, "max")
    assert [(p.first, p.second) for p in pairs] == [("a", "b"), ("a", "d"), ("b", "d")]
    assert [p.mean for p in pairs] == pytest.approx([0.3, 0.45, 0.15])
    assert typical_detectable(pairs) == sorted(p.detectable for p in pairs)[1]


def test_detectable_difference_is_shown_in_four_of_five_trials():
    """Simulate normal differences with exactly this mean: Student's test shows them at its power of 80 %."""
    from scipy.stats import ttest_1samp

    n, spread = 5, 2.0
    sample = np.linspace(-1, 1, n)
    sample *= spread / sample.std(ddof=1)
    effect = detectable_difference(sample.tolist())
    assert effect == pytest.approx((2.7764 + 0.9410) * spread / sqrt(n), rel=1e-3)
    drawn = np.random.default_rng(0).normal(effect, spread, (20_000, n))
    # The formula is the usual approximation; of five seeds it errs by a few per cent.
    assert 0.72 < (ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean() < 0.85


def test_equal_or_single_differences_have_no_detectable_one():
    assert detectable_difference([]) is None
    assert detectable_difference([0.1]) is None
    assert detectable_difference([0.1, 0.1]) is None
