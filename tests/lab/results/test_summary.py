"""The summary of a comparison: choices, targets, ranks and budget curves from rows."""

from dataclasses import replace

import pytest

from acmo.lab.report.publish import verdict
from acmo.lab.results.run_record import Score
from acmo.lab.results.stats import NO_DIFFERENCE
from acmo.lab.results.summary import choose, describe_untuned
from acmo.lab.results.tables import flatten
from tests.support.lab_rows import full_rows, row, summary_of


def test_the_target_does_not_hang_on_acmo():
    assert summary_of(full_rows(0.1))["target"] == summary_of(full_rows(0.99))["target"]
    assert summary_of(full_rows(0.1))["target"]["score"] == pytest.approx(0.7)


def test_a_better_test_score_changes_no_choice():
    rows = [row("acmo", "tune", 0, 0.1, 0.9, 0.1), row("acmo", "tune", 0, 0.01, 0.8, 0.99)]
    assert choose(rows, Score("accuracy", "max")).settings == {"lr": 0.1}


def test_equal_scores_are_ordered_by_validation_loss():
    rows = [row("acmo", "tune", 0, 0.1, 0.9), row("acmo", "tune", 0, 0.01, 0.9)]
    rows[0].valid["loss"], rows[1].valid["loss"] = 0.5, 0.3
    assert choose(rows, Score("accuracy", "max")).settings == {"lr": 0.01}


def test_optimizer_that_always_diverges_has_no_score():
    rows = full_rows(0.9)
    rows = [r for r in rows if r.label != "adam"] + [row("adam", "tune", 0, lr, None) for lr in (0.1, 0.01)]
    task = summary_of(rows)
    by_label = {r["label"]: r for r in task["rows"]}
    assert by_label["acmo"]["diverged"] == {"tune": 1, "final": 0}
    assert by_label["adam"]["diverged"]["tune"] == 2
    assert by_label["adam"]["settings"] is None
    assert by_label["adam"]["rank"] is None
    assert by_label["acmo"]["budget"] == pytest.approx([0.45, 0.9])  # half of the single draws diverge, and count as 0
    assert task["target"]["from"] == ["sgd-momentum"]


def test_only_setting_that_diverges_keeps_its_row():
    rows = [r for r in full_rows(0.9) if r.label != "adam"] + [row("adam", "final", s, 3.0, None) for s in (1, 2)]
    task = summary_of(rows, grids={"adam": {"lr": [3.0]}})
    adam = task["rows"][2]
    assert (adam["settings"], adam["rank"], adam["tried"]) == ({"lr": 3.0}, None, 0)
    assert adam["diverged"] == {"tune": 0, "final": 2}
    assert task["target"]["from"] == ["sgd-momentum"]
    assert describe_untuned(task["rows"]) == "With one setting, so not tuned: Adam."
    assert describe_untuned(task["rows"][:2]) == ""
    assert "lr=3 (2 of 2 seeds diverged) |" in verdict(task)[4]


def test_the_budget_curve_is_of_test_scores_when_those_were_read():
    rows = [row("acmo", "tune", 0, 0.1, 0.9, 0.5), row("acmo", "tune", 0, 0.01, 0.8, 0.7)]
    assert summary_of(rows, test_every_setting=True)["rows"][0]["budget"] == pytest.approx([0.6, 0.5])
    assert summary_of(rows)["rows"][0]["budget"] == pytest.approx([0.85, 0.9])


def test_flattened_rows_have_one_level():
    assert flatten({"a": {"b": {"c": 1}}, "d": [1, 2]}) == {"a.b.c": 1, "d": "[1, 2]"}


def test_a_summary_does_not_rank_the_luckiest_survivor_first():
    rows = []
    for label, score in (("acmo", 0.9), ("sgd-momentum", 0.8), ("adam", 0.7)):
        rows += [row(label, "tune", 0, 0.1, score)]
        rows += [row(label, "final", seed, 0.1, score, score + 0.001 * seed) for seed in range(1, 7)]
    lucky = next(i for i, r in enumerate(rows) if r.label == "acmo" and r.role == "final")
    rows[lucky] = replace(rows[lucky], status="diverged", test=None)
    task = summary_of(rows, seeds=6)
    by = {r["label"]: r for r in task["rows"]}
    assert [by[label]["rank"] for label in ("acmo", "sgd-momentum", "adam")] == [3, 1, 2]
    assert by["acmo"]["test"]["n"] == len(by["acmo"]["test_by_seed"]) == 5
    assert by["acmo"]["differences"]["adam"]["verdict"] == NO_DIFFERENCE
    assert by["sgd-momentum"]["differences"]["adam"]["verdict"] == "better"


def test_an_interval_of_accuracies_ends_at_all_or_nothing():
    rows = [row("acmo", "tune", 0, 0.1, 0.9), *(row("acmo", "final", s, 0.1, 0.9, 0.9 + 0.04 * s) for s in (1, 2))]
    test = summary_of(rows)["rows"][0]["test"]
    assert (test["mean"], test["high"]) == (pytest.approx(0.96), 1.0)
    assert 0 < test["low"] < 0.9
