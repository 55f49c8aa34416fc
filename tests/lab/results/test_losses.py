"""Training losses of a comparison: by share of the steps, paired by seed, and when a target is reached."""

import pytest

from acmo.lab.report.publish import losses
from acmo.lab.results.losses import summarise_losses
from acmo.lab.results.run_record import CurvePoint, RunRecord


def run_of(label: str, seed: int, values: list[float]) -> RunRecord:
    curve = tuple(CurvePoint(step, step / 10, value) for step, value in zip((25, 50, 75, 100), values, strict=True))
    about = {"task": "t", "label": label, "optimizer": label, "role": "final", "seed": seed, "settings": {}}
    return RunRecord(**about, status="finished", steps=100, valid={"loss": values[-1] + 1}, train_curve=curve)


FINALS = {
    "adam": [run_of("adam", seed, [2.0, 1.5, 1.2, 1.0 + seed / 100]) for seed in range(1, 6)],
    "acmo": [run_of("acmo", seed, [1.5, 1.0, 0.9, 0.8 + seed / 50]) for seed in range(1, 6)],
}


def test_losses_are_read_at_shares_and_paired_by_seed():
    found = summarise_losses(FINALS, ["adam"])
    assert {k: v["mean"] for k, v in found["adam"]["train"].items()} == pytest.approx(
        {"25": 2.0, "50": 1.5, "100": 1.03}
    )
    apart = found["acmo"]["train_differences"]["adam"]
    assert apart["mean"] == pytest.approx(0.86 - 1.03)
    assert apart["verdict"] == "better"
    assert found["acmo"]["valid_by_seed"]["1"] == pytest.approx(1.82)


def test_the_target_is_the_worst_baselines_mean_at_the_end():
    found = summarise_losses(FINALS, ["adam"])
    assert found["acmo"]["target"] == pytest.approx(1.03)
    assert found["acmo"]["to_target"]["steps"] == 50


def test_nothing_is_said_of_runs_without_a_training_loss():
    bare = [RunRecord(task="t", label="a", optimizer="a", role="final", seed=1, settings={}, status="finished")]
    assert summarise_losses({"a": bare}, []) == {}
    assert losses({"rows": [{"label": "a", "title": "A"}]}) == []


def test_the_published_table_has_the_least_loss_first():
    found = summarise_losses(FINALS, ["adam"])
    rows = [{"label": label, "title": label, "losses": found[label]} for label in FINALS]
    lines = losses({"rows": rows})
    assert lines[3].startswith("| acmo | 1.5")
    assert lines[4].startswith("| adam | 2")
    assert "The target is 1.03." in lines[-1]


def test_interval_of_two_seeds_does_not_go_below_zero():
    finals = {"adam": [run_of("adam", seed, [2.0, 1.5, 1.2, end]) for seed, end in ((1, 0.1), (2, 0.9))]}
    end = summarise_losses(finals, ["adam"])["adam"]["train"]["100"]
    assert end["low"] == 0
    assert end["high"] > 1
