"""The registered questions, answered from comparisons whose outcome is known."""

import dataclasses

import pytest

pytest.importorskip("optuna", reason='needs the lab: pip install "acmo[lab]"')

from acmo.lab.published import Published, seconds_per_step
from acmo.lab.questions import answer_questions, count_near_the_best
from acmo.lab.results.run_record import CurvePoint
from tests.support.lab_published import published, record, text, without_tuning

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
    ablation = published("ablation", levels)
    assert verdicts(ablation=ablation)["Calibration matters"] == "does not hold"
    untuned = without_tuning(ablation, "spectral, plain β = 0.9")
    assert verdicts(ablation=untuned)["Calibration matters"] == "not judged"


def test_what_is_near_the_best_is_counted_among_diverged_rates():
    found = text()
    rates = ((1.0, 1.15), (0.3, 1.2), (0.1, 2.0))
    runs = [record("adamw", 0, value, metric="bits_per_byte", phase="tune", settings={"lr": lr}) for lr, value in rates]
    fell = record("adamw", 0, 0.0, metric="bits_per_byte", phase="tune", settings={"lr": 3.0}, diverged=True)
    with_tuning = Published(found.name, found.tasks, [*found.runs, *runs, fell])
    assert count_near_the_best(with_tuning, "adamw") == (2, 5)  # 1.15 and 1.2 of these and 1.3


TUNING = "RowACMo needs no more tuning than AdamW"
IMAGES = "On image tasks RowACMo is not worse than SGD-momentum"
BEHIND = "SpectralACMo is not behind Muon, with one learning rate and no second moment"


def test_tuning_holds_where_as_many_rates_are_near_the_best():
    both = {"text_char": text(), "multi30k": text("multi30k")}
    assert verdicts(**both)[TUNING] == "holds"
    assert verdicts(text_char=text())[TUNING] == "not judged"
    assert verdicts(text_char=text(), multi30k=without_tuning(text("multi30k"), "adamw"))[TUNING] == "not judged"
    far = record("row-acmo", 0, 9.0, metric="bits_per_byte", phase="tune", settings={"lr": 3.0})
    both["multi30k"] = Published("multi30k", both["multi30k"].tasks, [*both["multi30k"].runs, far])
    assert verdicts(**both)[TUNING] == "does not hold"


@pytest.mark.parametrize(("points", "verdict"), [(0.3, "holds"), (-0.3, "holds"), (-0.9, "does not hold")])
def test_accuracy_is_no_worse_down_to_half_a_point(points, verdict):
    def accuracy(ahead):
        return {"metric": "accuracy", "best": "max", "levels": {"row-acmo": 0.7 + ahead / 100, "sgd-momentum": 0.7}}

    cifar10, fashion = (published(name, **accuracy(points)) for name in ("cifar10", "fashion-mnist"))
    found = verdicts(cifar10=cifar10, fashion_mnist=fashion)
    assert found[IMAGES] == verdict
    alone = verdicts(cifar10=cifar10)[IMAGES]
    assert alone == ("does not hold" if verdict == "does not hold" else "not judged")


def test_muon_is_judged_by_less_bits_and_more_bleu():
    def bleu(spectral):
        return published("multi30k", {"spectral-acmo": spectral, "muon": 20.0}, metric="bleu", best="max")

    level = text(spectral_acmo=1.0, muon=1.0)
    assert verdicts(text_char=level, multi30k=bleu(20.0))[BEHIND] == "holds"
    assert verdicts(text_char=level, multi30k=bleu(15.0))[BEHIND] == "does not hold"
    assert verdicts(text_char=text(spectral_acmo=1.2), multi30k=bleu(25.0))[BEHIND] == "does not hold"
    assert verdicts(text_char=level)[BEHIND] == "not judged"


def test_the_cost_of_orthogonalisation_is_the_fastest_runs():
    found, fine = text(), text("text-char-fine")
    fast = record("muon", 0, 1.0, metric="bits_per_byte", phase="tune", ms=0.5)
    fine = Published(fine.name, fine.tasks, [*fine.runs, fast])  # on the same task
    answer = {a.question: a for a in answer_questions({"text-char": found, fine.name: fine})}[
        "What orthogonalisation costs"
    ]
    assert answer.verdict == "measured"
    assert answer.numbers.endswith("text-char: Spectral-Acmo 2.0, Muon 0.5, Row-Acmo 2.0, Adamw 2.0")
    assert [q.value for q in answer.evidence] == [2.0, 0.5, 2.0, 2.0]


def test_a_pause_does_not_change_the_pace():
    assert seconds_per_step(record("adamw", 1, 1.0, metric="loss")) == pytest.approx(0.004)  # of 0.004 and 0.004
    paused = dataclasses.replace(
        record("adamw", 1, 1.0, metric="loss"),
        train_curve=[CurvePoint(step, step * 0.1 + 1000 * (step > 30), 1.0) for step in range(0, 100, 10)],
    )
    assert seconds_per_step(paused) == pytest.approx(0.1)


def test_runs_of_a_setting_that_was_not_chosen_do_not_count():
    found = text()
    other = record("muon", 1, 0.0, metric="bits_per_byte", settings={"lr": 9.0})
    both = Published(found.name, found.tasks, [other, *found.runs])
    assert both.valid_losses("muon") == found.valid_losses("muon")
