"""The statistics of a comparison against brute force, against their promises, and on cases with known answers."""

from fractions import Fraction
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmo.lab.results.run_record import CurvePoint, Score, thin_curve
from acmo.lab.results.stats import (
    NO_DIFFERENCE,
    bootstrap_interval,
    budget_curve,
    edges,
    paired_difference,
    ranks,
    target_score,
    time_to_target,
)

scores = st.floats(0, 1)


def test_interval_is_that_of_all_3125_resamples_of_five_values():
    from scipy.stats import norm, t

    x = np.array([0.91, 0.95, 0.93, 0.99, 0.90])
    means = np.sort([np.mean(draw) for draw in product(x, repeat=5)])
    tail = norm.cdf(-np.sqrt(5 / 4) * t.ppf(0.975, 4))
    got = bootstrap_interval(x)
    assert got.low == pytest.approx(means[int(np.ceil(tail * len(means))) - 1])
    assert got.high == pytest.approx(means[-int(np.ceil(tail * len(means)))])
    assert got.mean == pytest.approx(x.mean())


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8])
def test_interval_covers_the_mean_at_its_nominal_rate(n):
    rng = np.random.default_rng(n)
    intervals = [bootstrap_interval(rng.normal(size=n)) for _ in range(2000)]
    assert 0.91 < np.mean([i.low <= 0 <= i.high for i in intervals]) < 0.98


def test_many_values_are_resampled_the_same_way_each_time():
    x = np.random.default_rng(0).normal(size=30)
    assert bootstrap_interval(x) == bootstrap_interval(x)
    assert bootstrap_interval(x).high - bootstrap_interval(x).low == pytest.approx(4 * x.std() / np.sqrt(30), rel=0.15)


@given(st.lists(scores, min_size=2, max_size=8), st.floats(-3, 3))
def test_the_interval_holds_the_mean_and_moves_with_the_values(values, shift):
    here, there = bootstrap_interval(values), bootstrap_interval([v + shift for v in values])
    assert here.low <= here.mean <= here.high
    assert there.low == pytest.approx(here.low + shift, abs=1e-6)
    assert there.high == pytest.approx(here.high + shift, abs=1e-6)


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert bootstrap_interval([0.5]) == (0.5, None, None, 1)
    assert bootstrap_interval([]) == (None, None, None, 0)


def test_a_difference_is_paired_by_seed():
    base = {1: 0.1, 2: 0.5, 3: 0.9, 4: 0.3, 5: 0.7}  # far apart: unpaired, nothing could be shown
    ours = {seed: score + 0.01 + 0.001 * seed for seed, score in base.items()}
    assert paired_difference(ours, base).verdict == "better"
    assert paired_difference(ours, base, best="min").verdict == "worse"
    assert paired_difference(base, ours).verdict == "worse"
    assert paired_difference(ours, base).mean == pytest.approx(0.013)


def test_what_covers_zero_is_no_difference_shown():
    ours, theirs = {1: 0.9, 2: 0.8, 3: 0.7, 4: 0.9, 5: 0.8}, {1: 0.8, 2: 0.9, 3: 0.7, 4: 0.8, 5: 0.9}
    assert paired_difference(ours, theirs).verdict == NO_DIFFERENCE


def test_one_seed_or_unshared_seeds_show_no_difference():
    assert paired_difference({1: 0.9}, {1: 0.1}) == (pytest.approx(0.8), None, None, 1, NO_DIFFERENCE)
    assert paired_difference({1: 0.9, 2: 0.9}, {3: 0.1, 4: 0.1}).n == 0


def test_two_seeds_that_agree_by_chance_show_nothing():
    assert paired_difference({1: 0.92, 2: 0.91}, {1: 0.90, 2: 0.905}).verdict == NO_DIFFERENCE


def test_target_is_the_mean_of_the_weaker_baseline():
    assert target_score({"sgd": [0.9, 0.92], "adam": [0.95, 0.97]}) == pytest.approx(0.91)
    assert target_score({"sgd": [2.0], "adam": [1.0]}, best="min") == 2.0
    assert target_score({"sgd": []}) is None


def test_time_to_target_is_the_median_with_unfinished_runs_last():
    fast, slow, never = (
        [(10, 1.0, 0.5), (20, 2.0, 0.9)],
        [(10, 1.0, None), (20, 2.0, 0.8), (30, 3.0, 0.95)],
        [(30, 3.0, 0.1)],
    )
    assert time_to_target([fast, slow, never], 0.9) == (30, 3.0, 2, 3)
    assert time_to_target([fast, never, never], 0.9) == (None, None, 1, 3)
    assert time_to_target([fast], None) == (None, None, 0, 1)
    assert time_to_target([[(5, 0.5, 3.0), (10, 1.0, 1.0)]], 1.5, best="min").steps == 10


@given(st.lists(scores, min_size=1, max_size=7))
def test_the_budget_curve_is_the_mean_over_all_subsets(outcomes):
    for k, expected in enumerate(budget_curve(outcomes), start=1):
        chosen = [outcomes[min(subset)] for subset in combinations(range(len(outcomes)), k)]
        assert expected == pytest.approx(np.mean(chosen), abs=1e-12)


def test_budget_curve_of_a_grid_is_finite_and_ends_at_the_choice():
    outcomes = list(np.linspace(0.9, 0.1, 480))
    curve = budget_curve(outcomes)
    assert curve[-1] == pytest.approx(0.9)
    assert curve[0] == pytest.approx(np.mean(outcomes))
    assert np.all(np.diff(curve) > 0)


def test_edges_are_flagged_but_not_zero_nor_what_has_no_order():
    grid = {"lr": [0.1, 0.01, 0.001], "weight_decay": [0.0, 1e-3], "betas": [[0.9, 0.99], [0.9, 0.999]], "eps": [1e-8]}
    assert edges({"lr": 0.01, "weight_decay": 0.0, "betas": [0.9, 0.99], "eps": 1e-8}, grid) == []
    assert edges({"lr": 0.1, "weight_decay": 1e-3}, grid) == [
        "lr=0.1 is the greatest tried",
        "weight_decay=0.001 is the greatest tried",
    ]
    assert edges({"lr": 0.001}, grid) == ["lr=0.001 is the least tried"]


def test_a_rate_drawn_between_the_extremes_is_flagged_near_them():
    grid = {"lr": [1.0, 0.1, 0.01]}
    assert edges({"lr": 0.0124}, grid) == ["lr=0.0124 is near the least tried"]
    assert edges({"lr": 0.81}, grid) == ["lr=0.81 is near the greatest tried"]
    assert edges({"lr": 0.0127}, grid) == edges({"lr": 0.3}, grid) == edges({"lr": 0.79}, grid) == []


def test_ranks_are_shared_by_equals_and_missing_without_a_score():
    assert ranks({"a": 0.9, "b": 0.9, "c": 0.5, "d": None}) == {"a": 1, "b": 1, "c": 3, "d": None}
    assert ranks({"a": 0.9, "b": 0.5}, best="min") == {"a": 2, "b": 1}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=5, max_size=5))
def test_interval_of_five_values_equals_exact_counting(values):
    """Ties among the values too: low is the least mean that a tail of all resamples is at or below; high likewise."""
    from scipy.stats import norm, t

    tail = norm.cdf(-np.sqrt(5 / 4) * t.ppf(0.975, 4))
    sums = sorted(sum(draw) for draw in product(values, repeat=5))
    low = next(s for s in sums if sum(other <= s for other in sums) >= tail * len(sums))
    high = next(s for s in reversed(sums) if sum(other >= s for other in sums) >= tail * len(sums))
    got = bootstrap_interval(values)
    assert got.low == pytest.approx(low / 5)
    assert got.high == pytest.approx(high / 5)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_interval_of_negated_values_is_the_negated_interval(values):
    here, there = bootstrap_interval(values), bootstrap_interval([-v for v in values])
    assert (there.low, there.high) == (pytest.approx(-here.high, abs=1e-12), pytest.approx(-here.low, abs=1e-12))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_budget_curve_is_the_mean_over_all_orders_of_the_grid(outcomes):
    orders = list(permutations(range(len(outcomes))))
    for k, expected in enumerate(budget_curve(outcomes), start=1):
        mean = Fraction(sum(outcomes[min(order[:k])] for order in orders), len(orders))
        assert expected == pytest.approx(float(mean), abs=1e-12)


def test_lead_is_not_shown_where_only_the_leader_diverged():
    base = {seed: 0.5 + 0.01 * seed for seed in range(1, 7)}
    ours = {seed: score + 0.1 + 0.001 * seed for seed, score in base.items()}
    assert paired_difference(ours, base).verdict == "better"
    assert paired_difference({**ours, 3: None}, base).verdict == NO_DIFFERENCE
    assert paired_difference({**ours, 3: None}, base).n == 5
    assert paired_difference({**ours, 3: None}, {**base, 3: None}).verdict == "better"
    assert paired_difference(ours, {**base, 3: None}).verdict == "better"  # it makes the other one no better
    assert paired_difference({**base, 3: None}, ours).verdict == "worse"
    assert paired_difference(base, {**ours, 3: None}).verdict == NO_DIFFERENCE
    assert paired_difference({**ours, 3: None}, base, best="min").verdict == "worse"


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_a_few_differences_that_happen_to_be_equal_show_nothing(seeds):
    """Accuracies on 360 images have 361 values: two seeds often differ by the same one."""
    theirs = {seed: (300 + seed) / 360 for seed in range(seeds)}
    ours = {seed: (301 + seed) / 360 for seed in range(seeds)}
    assert paired_difference(ours, theirs).verdict == NO_DIFFERENCE


def test_who_lost_runs_ranks_behind_who_lost_fewer():
    scores = {"a": 0.99, "b": 0.9, "c": 0.8, "d": None, "e": 0.95}
    assert ranks(scores, "max", {"a": 1, "e": 3}) == {"a": 3, "b": 1, "c": 2, "d": None, "e": 4}
    assert ranks(scores, "min", {"c": 1}) == {"a": 3, "b": 1, "c": 4, "d": None, "e": 2}


@pytest.mark.parametrize("best", ["max", "min"])
def test_thinned_curve_keeps_the_time_to_every_target(best):
    draw = np.random.default_rng(0)
    scores = np.linspace(0, 1, 3000) * (1 if best == "max" else -1) + 0.2 * draw.normal(size=3000)
    curve = [CurvePoint(i, i / 10, None if i == 7 else float(s)) for i, s in enumerate(scores)]
    short = thin_curve(curve, Score("accuracy", best))
    assert 200 <= len(short) < 300
    assert short[-1] == curve[-1]
    for target in np.quantile(scores, np.linspace(0.01, 0.999, 50)):
        assert time_to_target([short], target, best) == time_to_target([curve], target, best)
    assert thin_curve(curve[:400], Score("accuracy", best)) == curve[:400]
