"""The table of ``python -m acmo.theory``: every statement that we hold to be true comes out so."""

import pytest

from acmo.theory.statements import TRIALS, run_trial


@pytest.mark.parametrize("name", TRIALS)
def test_every_statement_holds_on_its_random_cases(name: str) -> None:
    if "minimisers" in name:
        pytest.importorskip("scipy")
    for outcome in run_trial(name, seed=7):
        assert outcome.holds, outcome
        assert outcome.cases >= 16
