"""The training loss of a run: smoothed, recorded, and found again."""

import pytest

from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.results.run_record import CurvePoint, RunRecord
from acmo.lab.runs import run
from acmo.lab.runs.training import HALF_LIFE
from tests.support.lab_runs import task_config


def test_the_smoothed_loss_halves_in_a_fiftieth_of_the_steps(tmp_path):
    record = run(task_config("Steady", steps=30, log_every=1, evaluate_every=30), tmp_path)
    losses = [row["loss"] for row in read_metrics(tmp_path).of("train")]
    kept = 0.5 ** (HALF_LIFE / 30)
    for point in record.train_curve:
        weights = [kept ** (point.step - 1 - t) for t in range(point.step)]
        mean = sum(w * x for w, x in zip(weights, losses, strict=False)) / sum(weights)
        assert point.score == pytest.approx(mean)
    assert len(record.train_curve) == 30


def test_the_loss_after_a_share_of_the_steps_is_looked_up():
    curve = (CurvePoint(1, 0.1, 2.0), CurvePoint(5, 0.5, 1.5), CurvePoint(10, 1.0, 1.0))
    about = {"task": "t", "label": "l", "optimizer": "o", "role": "final", "seed": 1, "settings": {}}
    record = RunRecord(**about, status="finished", steps=10, train_curve=curve)
    assert [record.training_loss(share) for share in (0.05, 0.25, 0.5, 1.0)] == [None, 2.0, 1.5, 1.0]
    assert RunRecord(**about, status="diverged", steps=10, train_curve=curve).training_loss() is None


def test_an_evaluation_uses_the_averages_of_schedule_free(tmp_path):
    pytest.importorskip("schedulefree")
    what = task_config("Steady", "schedule-free", steps=12, schedule="cosine", keep_checkpoints=True)
    record = run(what, tmp_path)
    assert record.valid["accuracy"] > 0.3
    rates = [row["lr"] for row in read_metrics(tmp_path).of("train")]
    assert set(rates) == {0.1}  # its schedule stays constant, whatever is asked for
