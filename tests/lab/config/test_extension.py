"""By which learning rate a grid is extended, as a function of the finished runs alone."""

from math import log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmo.lab.config.extension import LIMIT, extends, next_rate, rates_beyond
from acmo.lab.config.plan import make_plan

GRIDS = st.lists(st.integers(-40, 10), min_size=2, max_size=8, unique=True).map(
    lambda powers: [float(f"{10 ** (p / 4):.4g}") for p in powers]
)


@given(GRIDS, st.integers(-60, 30))
def test_extension_ends_within_four_rates_at_best_or_edge(grid, peak):
    def score(rate):  # one peak, wherever
        return -abs(log10(rate) - peak / 4)

    tried = set(grid)
    added = []
    while (rate := next_rate(grid, tried, max(tried, key=score))) is not None:
        assert rate > max(tried) or rate < min(tried)
        added.append(rate)
        tried.add(rate)
    assert len(added) <= LIMIT
    assert set(added) <= set(rates_beyond(grid))
    best = max(tried, key=score)
    assert min(tried) < best < max(tried) or len(added) == LIMIT


def test_rates_go_on_in_the_ratio_of_the_two_outermost():
    paper = [0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0001, 5e-05]
    assert rates_beyond(paper) == [2.5e-05, 1.25e-05, 6.25e-06, 3.125e-06, 0.2, 0.4, 0.8, 1.6]
    assert next_rate([1.0, 0.1], {1.0, 0.1}, 1.0) == 10.0
    assert next_rate([1.0, 0.1], {1.0, 0.1, 10.0}, 10.0) == 100.0
    assert next_rate([1.0, 0.1], {1.0, 0.1, 10.0}, 1.0) is None  # it lies inside, or 10 diverged
    assert next_rate([1.0, 0.1], {1.0, 0.1, 10.0}, 0.1) == 0.01


def test_grids_without_a_ratio_stay_as_they_are():
    for grid in ([0.1], [0.0, 0.1], ["a", "b"], [-1.0, 1.0]):
        assert next_rate(grid, grid[:1], grid[0]) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),
        ({"grid": "full"}, True),
        ({"grid": "paper"}, False),
        ({"extend": False}, False),
        ({"sampler": "random", "trials": 3}, False),
    ],
)
def test_grids_extend_but_for_the_papers_and_drawn_ones(values, expected):
    assert extends(make_plan({"tasks": ["digits"], **values})) is expected
