"""Random cases: shapes, dtypes, layouts, options, extreme gradients, groups added and states reloaded in between."""

import pytest

from tests.support import fuzz


@pytest.mark.parametrize("seed", range(20))
def test_backends_agree_on_twenty_random_cases(seed):
    fuzz.check(fuzz.draw_case(seed))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(20, 520, 100))
def test_backends_agree_on_500_random_cases(start):
    for seed in range(start, start + 100):
        fuzz.check(fuzz.draw_case(seed))


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(520, 5520, 100))
def test_backends_agree_on_5000_random_cases(start):
    for seed in range(start, start + 100):
        fuzz.check(fuzz.draw_case(seed))


def test_failing_case_shrinks_to_its_cause():
    case = next(c for c in map(fuzz.draw_case, range(100)) if any("huge" in kinds for _, kinds in c.steps))
    least = fuzz.shrink(case, lambda c: any("huge" in kinds for _, kinds in c.steps))
    assert least.steps == ((None, ("huge",)),)
    assert not least.options
    assert "replay(" in str(least)


def test_nan_of_another_column_does_not_move_a_resting_one():
    fuzz.replay(
        {
            "seed": 4707,
            "optimizer": "ACMo",
            "options": {"nonfinite": "propagate", "norm_scope": "column", "momentum_dtype": "int8"},
            "dtype": "float32",
            "params": (((40, 3), "contiguous"),),
            "steps": ((None, ("inf",)), (None, ("zero",))),
        }
    )
