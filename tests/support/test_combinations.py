"""The choice of cases: every combination of values is in a chosen case, and few cases are chosen."""

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from tests.support.combinations import covering


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 3))
def test_chosen_cases_hold_every_combination(sizes: list[int], strength: int):
    cases = [list(enumerate(values)) for values in product(*map(range, sizes))]
    chosen = covering(cases, strength)
    for columns in combinations(range(len(sizes)), min(strength, len(sizes))):
        wanted = set(product(*(range(sizes[column]) for column in columns)))
        assert {tuple(cases[index][column][1] for column in columns) for index in chosen} == wanted


def test_seven_options_need_few_cases():
    cases = [list(enumerate(values)) for values in product(*map(range, (3, 2, 3, 2, 2, 2, 3)))]
    assert len(cases) == 432
    assert len(covering(cases, 2)) <= 15
    assert len(covering(cases, 3)) <= 45


def test_no_case_gives_no_choice():
    assert covering([]) == set()
