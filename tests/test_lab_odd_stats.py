"""Verdicts against brute force of another kind, and where runs diverge or scores are coarse."""

from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lab_compare import row, summary_of

from acmo.lab.stats import NO_DIFFERENCE, bootstrap_interval, budget_curve, paired_difference, ranks, time_to_target
from acmo.lab.worker import thinned


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=5, max_size=5))
def test_the_interval_of_five_values_is_what_counting_all_resamples_in_exact_numbers_gives(values):
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
def test_an_interval_of_the_negated_values_is_the_negated_interval(values):
    here, there = bootstrap_interval(values), bootstrap_interval([-v for v in values])
    assert (there.low, there.high) == (pytest.approx(-here.high, abs=1e-12), pytest.approx(-here.low, abs=1e-12))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_the_budget_curve_is_the_mean_over_all_orders_in_which_a_grid_can_be_gone_through(outcomes):
    orders = list(permutations(range(len(outcomes))))
    for k, expected in enumerate(budget_curve(outcomes), start=1):
        mean = Fraction(sum(outcomes[min(order[:k])] for order in orders), len(orders))
        assert expected == pytest.approx(float(mean), abs=1e-12)


def test_a_lead_is_not_shown_where_the_leader_diverged_and_the_other_did_not():
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


def test_a_summary_does_not_rank_the_luckiest_survivor_first():
    rows = []
    for label, score in (("acmo", 0.9), ("sgd-momentum", 0.8), ("adam", 0.7)):
        rows += [row(label, "tune", 0, 0.1, score)]
        rows += [row(label, "final", seed, 0.1, score, score + 0.001 * seed) for seed in range(1, 7)]
    lucky = [r for r in rows if r["label"] == "acmo" and r["role"] == "final"]
    lucky[0].update(status="diverged", test=None)
    task = summary_of(rows, seeds=6)
    by = {r["label"]: r for r in task["rows"]}
    assert [by[label]["rank"] for label in ("acmo", "sgd-momentum", "adam")] == [3, 1, 2]
    assert by["acmo"]["test"]["n"] == len(by["acmo"]["test_by_seed"]) == 5
    assert by["acmo"]["differences"]["adam"]["verdict"] == NO_DIFFERENCE
    assert by["sgd-momentum"]["differences"]["adam"]["verdict"] == "better"


def test_an_interval_of_accuracies_ends_at_all_or_nothing():
    rows = [row("acmo", "tune", 0, 0.1, 0.9), *(row("acmo", "final", s, 0.1, 0.9, 0.9 + 0.04 * s) for s in (1, 2))]
    test = summary_of(rows)["rows"][0]["test"]
    assert (test["mean"], test["high"]) == (pytest.approx(0.96), 1.0)
    assert 0 < test["low"] < 0.9


@pytest.mark.parametrize("best", ["max", "min"])
def test_a_long_curve_is_thinned_without_moving_the_time_to_any_target(best):
    draw = np.random.default_rng(0)
    scores = np.linspace(0, 1, 3000) * (1 if best == "max" else -1) + 0.2 * draw.normal(size=3000)
    curve = [[i, i / 10, float(s)] for i, s in enumerate(scores)]
    curve[7][2] = None
    short = thinned(curve, best)
    assert 200 <= len(short) < 300
    assert short[-1] == curve[-1]
    for target in np.quantile(scores, np.linspace(0.01, 0.999, 50)):
        assert time_to_target([short], target, best) == time_to_target([curve], target, best)
    assert thinned(curve[:400], best) == curve[:400]
