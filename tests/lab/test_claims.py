"""The paper's claims: what judges them, and when intervals decide."""

import pytest

from acmo.lab.claims import ADAM_TYPE, CLAIMS, Claim, DifferenceInterval, judge, judge_most
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
