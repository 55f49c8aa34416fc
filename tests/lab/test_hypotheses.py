"""The registered hypotheses, judged from comparisons whose outcome is known."""

import pytest

pytest.importorskip("optuna", reason='needs the lab: pip install "acmo[lab]"')

from scipy.stats import ttest_rel

from acmo.lab.hypotheses import compare, judge_primary
from acmo.lab.questions import answer_questions
from acmo.lab.report.results_tables import write_tables
from tests.support.lab_published import published, text, without_tuning


def test_the_test_is_scipys_paired_one_sided_one():
    ours, theirs = {1: 1.0, 2: 1.3, 3: 0.9}, {1: 1.1, 2: 1.2, 3: 1.4}
    expected = ttest_rel(list(ours.values()), list(theirs.values()), alternative="less").pvalue
    assert compare("", ours, theirs, "min").p == pytest.approx(expected, rel=1e-12)
    assert compare("", theirs, ours, "max").p == pytest.approx(expected, rel=1e-12)


def test_who_diverges_where_its_rival_finishes_cannot_win():
    ours, theirs = {1: 1.0, 2: 1.01, 3: None}, {1: 2.0, 2: 2.02, 3: 2.0}
    assert compare("", ours, theirs, "min").p == 1.0
    assert compare("", theirs, ours, "max").p < 0.01


def test_h1_needs_all_four_parts():
    assert [p.n for p in judge_primary({"text-char": text()})["H1"]] == [5, 5]
    both = {"text-char": text(), "multi30k": text("multi30k")}
    parts = judge_primary(both)["H1"]
    assert len(parts) == 4
    assert all(p.p < 1e-4 and p.ahead == pytest.approx(0.1, abs=0.01) for p in parts)
    assert "| H1 | Spectral-Acmo below Muon on text-char, validation loss | 0.1" in write_tables(both)
    worse = judge_primary({**both, "multi30k": text("multi30k", row_acmo=1.4)})["H1"]
    assert max(p.p for p in worse) > 0.9


def test_h2_takes_the_better_of_ours_by_validation():
    levels = {"row-acmo": 0.80, "spectral-acmo": 0.90, "sgd-momentum": 0.85}
    found = published("cifar10", levels, metric="accuracy", best="max")
    (part,) = judge_primary({"cifar10": found})["H2"]
    assert part.text.startswith("Spectral-Acmo")
    assert part.ahead == pytest.approx(5, abs=0.2)  # points
    assert part.p < 1e-4
    assert judge_primary({"cifar10": without_tuning(found, "row-acmo")})["H2"] == []


def test_h3_is_against_the_mean_of_the_adam_type():
    levels = {"acmo": 0.5, "adam": 0.4, "amsgrad": 0.4, "adamw": 0.6, "padam": 0.4, "adabound": 0.4}
    (part,) = judge_primary({"cifar10": published("cifar10", levels, metric="accuracy", best="max")})["H3"]
    assert part.ahead == pytest.approx(6, abs=0.2)


def test_nothing_is_judged_without_its_comparison():
    assert judge_primary({}) == {"H1": [], "H2": [], "H3": []}
    assert {a.verdict for a in answer_questions({})} == {"not judged"}
    assert "4 parts of 4 not run yet" in write_tables({})
