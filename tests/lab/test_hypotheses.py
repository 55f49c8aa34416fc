"""The registered hypotheses and questions, judged from comparisons whose outcome is known."""

import numpy as np
import pytest

pytest.importorskip("optuna", reason='needs the lab: pip install "acmo[lab]"')

from scipy.stats import ttest_rel

from acmo.lab.hypotheses import Published, answer_questions, compare, judge_primary, share_near_the_best
from acmo.lab.report.results_tables import write_tables
from acmo.lab.results.run_record import CurvePoint, RunRecord

SEEDS = (1, 2, 3, 4, 5)


def record(label, seed, value, *, metric, phase="final", settings=None, diverged=False):
    return RunRecord(
        task="t", label=label, optimizer=label, role=phase, seed=seed, settings=settings or {"lr": 1.0}, phase=phase,
        status="diverged" if diverged else "finished", valid={"loss": value, metric: value},
        test={metric: value} if phase == "final" else None, steps=100,
        train_curve=[CurvePoint(25, 0.1, value + 0.2), CurvePoint(50, 0.2, value + 0.1), CurvePoint(100, 0.4, value)],
    )  # fmt: skip


def published(name, levels, *, metric="bits_per_byte", best="min", diverged=()):
    """Return a comparison whose final scores are a level and the seed's own share, which pairing removes."""
    rng, runs, rows = np.random.default_rng(0), [], []
    for label, level in levels.items():
        values = {seed: level + 0.1 * seed + 0.001 * rng.normal() for seed in SEEDS}
        runs.append(record(label, 0, level, metric=metric, phase="tune"))
        for seed, value in values.items():
            runs.append(record(label, seed, value, metric=metric, diverged=(label, seed) in diverged))
        mean = float(np.mean(list(values.values())))
        rows.append({
            "label": label, "title": label.title(), "settings": {"lr": 1.0}, "valid": level, "group": 1,
            "test": {"mean": mean, "low": mean - 0.05, "high": mean + 0.05, "n": 5},
            "cost": {"state_bytes_per_parameter": 4.0, "ms_per_step_optimizer": 1.0},
            "to_target": {"steps": 10.0, "seconds": 1.0}, "losses": {"to_target": {"steps": 5.0}},
        })  # fmt: skip
    return Published(name, [{"metric": metric, "best": best, "seeds": SEEDS, "rows": rows}], runs)


def text(name="text-char", **levels):
    usual = {"spectral-acmo": 1.0, "muon": 1.1, "row-acmo": 1.2, "adamw": 1.3}
    return published(name, {**usual, **{key.replace("_", "-"): level for key, level in levels.items()}})


def verdicts(**found):
    """Return the verdicts by question."""
    return {a.question: a.verdict for a in answer_questions({k.replace("_", "-"): v for k, v in found.items()})}


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
    (part,) = judge_primary({"cifar10": published("cifar10", levels, metric="accuracy", best="max")})["H2"]
    assert part.text.startswith("Spectral-Acmo")
    assert part.ahead == pytest.approx(5, abs=0.2)  # points
    assert part.p < 1e-4


def test_h3_is_against_the_mean_of_the_adam_type():
    levels = {"acmo": 0.5, "adam": 0.4, "amsgrad": 0.4, "adamw": 0.6, "padam": 0.4, "adabound": 0.4}
    (part,) = judge_primary({"cifar10": published("cifar10", levels, metric="accuracy", best="max")})["H3"]
    assert part.ahead == pytest.approx(6, abs=0.2)


def test_contenders_with_names_of_their_own_are_not_among_the_scores():
    tables = write_tables({"text-char": text(), "ablation": published("ablation", {"row": 1.0, "row, int8": 1.0})})
    assert "| text-char |" in tables
    assert "ablation |" not in tables
    assert "| int8 moments cost nothing | **holds**" in tables


def test_one_seed_gives_rates_and_no_scores():
    rows = {label: {"label": label, "title": label, "tried": 6, "valid": 2.5} for label in ("row-acmo", "adamw")}
    tasks = [
        {"task": task, "metric": "bits_per_byte", "best": "min", "seeds": [1],
         "rows": [{**rows["row-acmo"], "settings": {"lr": lr}}, {**rows["adamw"], "settings": {"lr": 0.001}}]}
        for task, lr in (("narrow", 0.004), ("wide", 0.002))
    ]  # fmt: skip
    one_rate = {**tasks[0], "rows": [{**tasks[0]["rows"][0], "tried": 1}]}
    tables = write_tables(
        {"text-char": text(), "width": Published("width", tasks, []), "gpt-10m": Published("gpt-10m", [one_rate], [])}
    )
    scores, rates = tables.split("### Best rates")
    assert "width" not in scores
    assert "gpt-10m" not in tables
    assert "| width | `narrow` | 0.004 (2.5) | 0.001 (2.5) |\n| width | `wide` | 0.002 (2.5) | 0.001 (2.5) |" in rates


def test_nothing_is_judged_without_its_comparison():
    assert judge_primary({}) == {"H1": [], "H2": [], "H3": []}
    assert {a.verdict for a in answer_questions({})} == {"not judged"}
    assert "4 parts of 4 not run yet" in write_tables({})


AS_FAST = "RowACMo trains Transformers as fast as AdamW or faster, with half of its state"


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
