"""The registered questions, answered from comparisons whose outcome is known."""

import pytest

pytest.importorskip("optuna", reason='needs the lab: pip install "acmo[lab]"')

from acmo.lab.published import Published
from acmo.lab.questions import answer_questions, share_near_the_best
from tests.support.lab_published import published, record, text

AS_FAST = "RowACMo trains Transformers as fast as AdamW or faster, with half of its state"


def verdicts(**found):
    """Return the verdicts by question."""
    return {a.question: a.verdict for a in answer_questions({k.replace("_", "-"): v for k, v in found.items()})}


def test_no_worse_by_the_margin_holds_and_beyond_it_does_not():
    equal = {"muon": 1.0, "adamw": 1.2}
    found = verdicts(text_char=text(**equal), multi30k=text("multi30k", **equal))
    assert found[AS_FAST] == "holds"
    assert verdicts(text_char=text(**equal))[AS_FAST] == "not judged"
    assert verdicts(text_char=text(row_acmo=1.4))[AS_FAST] == "does not hold"


def test_calibration_is_judged_against_the_better_plain_momentum():
    levels = {"row": 1.0, "row, plain β = 0.9": 1.2, "row, plain β = 0.95": 1.1, "row, int8": 1.001,
              "spectral": 0.9, "spectral, plain β = 0.9": 0.95, "spectral, plain β = 0.95": 1.2}  # fmt: skip
    found = {a.question: a for a in answer_questions({"ablation": published("ablation", levels)})}
    assert found["Calibration matters"].verdict == "holds"
    assert "row − row, plain β = 0.95: −0.099 [" in found["Calibration matters"].numbers
    assert found["int8 moments cost nothing"].verdict == "holds"
    levels["spectral"] = 1.0
    assert verdicts(ablation=published("ablation", levels))["Calibration matters"] == "does not hold"


def test_the_share_near_the_best_counts_diverged_rates():
    found = text()
    rates = ((1.0, 1.15), (0.3, 1.2), (0.1, 2.0))
    runs = [record("adamw", 0, value, metric="bits_per_byte", phase="tune", settings={"lr": lr}) for lr, value in rates]
    fell = record("adamw", 0, 0.0, metric="bits_per_byte", phase="tune", settings={"lr": 3.0}, diverged=True)
    with_tuning = Published(found.name, found.tasks, [*found.runs, *runs, fell])
    assert share_near_the_best(with_tuning, "adamw") == 2 / 5  # 1.15 and 1.2 of these and 1.3


def test_runs_of_a_setting_that_was_not_chosen_do_not_count():
    found = text()
    other = record("muon", 1, 0.0, metric="bits_per_byte", settings={"lr": 9.0})
    both = Published(found.name, found.tasks, [other, *found.runs])
    assert both.valid_losses("muon") == found.valid_losses("muon")
