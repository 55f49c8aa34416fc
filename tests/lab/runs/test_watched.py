"""What a run looks at on the way: all training data, test data, and validation data that it also trains on."""

import pytest

from acmo.lab.config.plan import make_plan
from acmo.lab.errors import LabError
from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.results.run_record import Score
from acmo.lab.runs import run
from acmo.lab.studies.stages import final_spec, tuning_spec
from acmo.lab.tasks import find_task
from tests.support.lab_runs import TASKS, task_config


def test_refitting_trains_on_all_examples_and_validates_on_none(tmp_path):
    record = run(task_config("Steady", epochs=2, phase="final", refit_on_all=True), tmp_path)
    assert record.steps == 2 * 11  # 210 examples in batches of 20; 189 without those for validation
    assert record.valid == {}
    assert record.curve == ()
    assert record.test["accuracy"] > 0
    assert not read_metrics(tmp_path).of("valid")


def test_refitting_has_every_example_once_in_an_epoch():
    task = find_task("digits")
    task.join_validation()
    indices = [int(i) for batch in task.batches(0) for i in batch]
    assert sorted(indices) == list(range(1437))


def test_a_comparison_refits_its_final_runs_alone():
    plan = make_plan({"tasks": ["digits"], "optimizers": ["adam"], "refit_on_all": True})
    contender = plan.contenders()[0]
    assert tuning_spec(plan, contender, "digits", Score()).run["refit_on_all"] is None
    assert final_spec(plan, contender, "digits", Score(), {"lr": 0.1}).run["refit_on_all"] is True


def test_a_task_that_cannot_refit_is_an_error():
    with pytest.raises(LabError, match="leave refit_on_all out"):
        find_task("text:char").join_validation()


def test_test_curves_are_recorded_in_final_runs_alone(tmp_path):
    what = {"epochs": 3, "test_curves": True}
    final = run(task_config("Steady", phase="final", **what), tmp_path / "final")
    assert [point.step for point in final.test_curve] == [point.step for point in final.curve]
    assert final.test_curve[-1].score == final.test["accuracy"]
    assert len(read_metrics(tmp_path / "final").of("test")) == 1
    assert run(task_config("Steady", phase="tune", **what), tmp_path / "tune").test_curve == ()


def test_watching_changes_nothing_that_is_learnt(tmp_path):
    plain = run(task_config(epochs=2, phase="final"), tmp_path / "plain")
    watched = task_config(epochs=2, phase="final", test_curves=True, full_train_loss=True)
    seen = run(watched, tmp_path / "watched")
    assert seen.test == plain.test
    assert {k: v for k, v in seen.valid.items() if k != "train_loss"} == plain.valid


def test_the_full_training_loss_is_that_of_all_examples(tmp_path):
    record = run(task_config("Steady", epochs=3, batch_size=189, settings={"lr": 0.0}, full_train_loss=True), tmp_path)
    assert record.valid["train_loss"] == pytest.approx(record.train_curve[-1].score, rel=1e-5)


def test_runs_without_these_options_keep_their_ids():
    assert task_config("Steady").run_id() == task_config("Steady", refit_on_all=None, test_curves=None).run_id()
    assert task_config("Steady").run_id() != task_config("Steady", refit_on_all=True).run_id()
    assert TASKS.is_file()
