"""The paper's claims: what judges them, and when intervals decide."""

from typing import Any

import pytest

from acmo.lab.claims import ADAM_TYPE, CLAIMS, Claim, DifferenceInterval, find_differences, holm, judge, judge_most
from tests.support.paths import ROOT

BY_KEY = {claim.key: claim for claim in CLAIMS}
AHEAD, BEHIND, OPEN = DifferenceInterval(0.1, 2.0), DifferenceInterval(-2.0, -0.6), DifferenceInterval(-1.0, 1.0)


def against(claim: Claim, usual: DifferenceInterval, **others: DifferenceInterval) -> dict[str, DifferenceInterval]:
    return {rival: others.get(rival.replace("-", "_"), usual) for rival in claim.rivals}


@pytest.mark.parametrize(
    ("key", "usual", "others", "verdict"),
    [
        ("second-to-sgd", AHEAD, {}, "holds"),
        ("second-to-sgd", AHEAD, {"padam": OPEN}, "not shown"),
        ("second-to-sgd", AHEAD, {"padam": BEHIND}, "does not hold"),
        ("top-three", AHEAD, {"adam": BEHIND, "sgd_momentum": OPEN}, "holds"),
        ("top-three", AHEAD, {"adam": BEHIND, "sgd_momentum": BEHIND}, "holds"),
        ("top-three", OPEN, {}, "not shown"),
        ("top-three", OPEN, {"adam": BEHIND, "adamw": BEHIND, "padam": BEHIND}, "does not hold"),
        ("translation-adam", DifferenceInterval(-0.4, 0.1), {}, "holds"),
        ("translation-adam", DifferenceInterval(-0.6, 0.1), {}, "not shown"),
        ("translation-adam", BEHIND, {}, "does not hold"),
        ("convergence-fixed-decay", BEHIND, {}, "holds"),  # less loss is better
        ("convergence-fixed-decay", AHEAD, {}, "does not hold"),
        ("translation-sgd", DifferenceInterval(None, None), {}, "not shown"),
    ],
)
def test_a_claim_is_judged_by_intervals_against_all_rivals(
    key: str, usual: DifferenceInterval, others: dict[str, DifferenceInterval], verdict: str
) -> None:
    assert judge(BY_KEY[key], against(BY_KEY[key], usual, **others)) == verdict


def test_a_rival_that_was_not_run_decides_nothing() -> None:
    assert judge(BY_KEY["second-to-sgd"], {"adam": AHEAD}) == "not shown"
    assert judge(BY_KEY["second-to-sgd"], {"adam": BEHIND}) == "does not hold"


def test_most_cases_means_more_than_half_of_task_and_rival() -> None:
    claim = BY_KEY["generalisation"]
    pairs = [("a", r) for r in ADAM_TYPE] + [("b", "adam")]
    assert judge_most(claim, {p: AHEAD if k < 4 else OPEN for k, p in enumerate(pairs)}) == "holds"
    assert judge_most(claim, {p: AHEAD if k < 3 else OPEN for k, p in enumerate(pairs)}) == "not shown"
    assert judge_most(claim, {p: BEHIND if k < 3 else OPEN for k, p in enumerate(pairs)}) == "does not hold"
    assert judge_most(claim, {("a", "sgd-momentum"): AHEAD}) == "not shown"
    assert judge_most(claim, {}) == "not shown"


def test_the_results_page_quotes_every_claim_with_its_lines() -> None:
    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    for claim in CLAIMS:
        assert f"“{claim.quote}” ({claim.lines})" in page, claim.key
    assert "robust hyper-parameter" in page
    assert "like SGD" not in page


def row_of(label: str, test: list[float], train: list[float] | None, state: float) -> dict[str, Any]:
    by_seed = {str(seed): value for seed, value in enumerate(test, 1)}
    losses = {"train_by_seed": {str(seed): value for seed, value in enumerate(train, 1)}} if train else None
    row = {"label": label, "test_by_seed": by_seed, "cost": {"state_bytes_per_parameter": state}}
    return {**row, **({"losses": losses} if losses else {})}


def test_training_loss_judges_the_claims_about_convergence() -> None:
    rows = [row_of("acmo", [0.9] * 5, [0.50, 0.51, 0.52, 0.50, 0.51], 4.0)]
    rows += [row_of(rival, [0.8] * 5, [0.60, 0.62, 0.61, 0.60, 0.63], 8.0) for rival in ("sgd-momentum", *ADAM_TYPE)]
    for key in ("convergence", "convergence-fixed-decay", "memory"):
        assert judge(BY_KEY[key], find_differences(BY_KEY[key], rows, "accuracy")) == "holds"
    points = find_differences(BY_KEY["second-to-sgd"], rows, "accuracy")
    assert points["adam"].low == pytest.approx(10.0)


def test_runs_without_a_training_loss_decide_nothing_about_it() -> None:
    rows = [row_of(name, [0.9] * 5, None, 4.0) for name in ("acmo", "sgd-momentum", *ADAM_TYPE)]
    assert find_differences(BY_KEY["convergence"], rows, "accuracy") == {}
    assert judge(BY_KEY["convergence"], {}) == "not shown"


def test_holm_stops_at_the_first_hypothesis_that_fails() -> None:
    assert holm({"a": 0.001, "b": 0.02, "c": 0.2}) == {"a": True, "b": True, "c": False}
    assert holm({"a": 0.02, "b": 0.02, "c": 0.02}) == dict.fromkeys("abc", False)


def test_a_test_score_of_which_less_is_better_judges_no_claim() -> None:
    rows = [row_of(label, [2.0] * 5, [0.5] * 5, 4.0) for label in ("acmo", *ADAM_TYPE)]
    assert find_differences(BY_KEY["generalisation"], rows, "bits_per_byte") == {}
    assert find_differences(BY_KEY["generalisation"], rows, "bleu").keys() == set(ADAM_TYPE)
    assert find_differences(BY_KEY["convergence"], rows, "bits_per_byte").keys() == set(ADAM_TYPE)
