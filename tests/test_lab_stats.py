"""The statistics of a comparison against brute force, against their promises, and on cases with known answers."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmo.lab.stats import (
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


def test_the_interval_is_that_of_all_3125_resamples_of_five_values():
    from scipy.stats import norm, t

    x = np.array([0.91, 0.95, 0.93, 0.99, 0.90])
    means = np.sort([np.mean(draw) for draw in product(x, repeat=5)])
    tail = norm.cdf(-np.sqrt(5 / 4) * t.ppf(0.975, 4))
    got = bootstrap_interval(x)
    assert got.low == pytest.approx(means[int(np.ceil(tail * len(means))) - 1])
    assert got.high == pytest.approx(means[-int(np.ceil(tail * len(means)))])
    assert got.mean == pytest.approx(x.mean())


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8])
def test_the_interval_covers_the_mean_about_as_often_as_it_says(n):
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


def test_nothing_is_shown_by_one_seed_or_by_seeds_that_are_not_shared():
    assert paired_difference({1: 0.9}, {1: 0.1}) == (pytest.approx(0.8), None, None, 1, NO_DIFFERENCE)
    assert paired_difference({1: 0.9, 2: 0.9}, {3: 0.1, 4: 0.1}).n == 0


def test_two_seeds_that_agree_by_chance_show_nothing():
    assert paired_difference({1: 0.92, 2: 0.91}, {1: 0.90, 2: 0.905}).verdict == NO_DIFFERENCE


def test_the_target_is_what_the_weaker_baseline_reaches_on_average():
    assert target_score({"sgd": [0.9, 0.92], "adam": [0.95, 0.97]}) == pytest.approx(0.91)
    assert target_score({"sgd": [2.0], "adam": [1.0]}, best="min") == 2.0
    assert target_score({"sgd": []}) is None


def test_time_to_target_is_the_median_over_runs_with_the_unfinished_ones_last():
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


def test_the_budget_curve_of_a_whole_grid_is_finite_and_ends_at_the_choice():
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
