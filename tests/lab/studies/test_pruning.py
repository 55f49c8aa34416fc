"""``--prune``: tuning runs that fall behind are stopped, the same for every optimizer, and only those."""

import json
import re
from pathlib import Path

import pytest

from acmo.lab.config.plan import make_plan
from acmo.lab.errors import LabError
from acmo.lab.results.comparison_folder import load
from acmo.lab.results.run_record import Score
from acmo.lab.results.summary import choose, select
from acmo.lab.runs.run_folder import run
from acmo.lab.studies.stages import final_spec, tuning_spec
from tests.support.lab_command import run_command
from tests.support.lab_rows import row, summary_of
from tests.support.lab_runs import TASKS, task_config
from tests.support.lab_studies import LRS, record, spec, studies

acmo = run_command  # a fixture


def run_trial(found, score: float) -> int:
    """Report the same score at 25, 50 and 75 % of a trial's steps; return where it was stopped, or 100."""
    claim = found.claim()
    for percent in (25, 50, 75):
        if found.should_prune(claim, percent, score):
            found.finish(claim, record(claim, score, status="pruned"))
            return percent
    found.finish(claim, record(claim, score))
    return 100


def test_settings_behind_the_better_half_are_stopped(tmp_path):
    found = studies(tmp_path, spec(prune=True))
    scores = [0.5, 0.4, 0.6, 0.55, 0.7, 0.1]
    assert [run_trial(found, score) for score in scores] == [100, 25, 100, 50, 100, 25]
    assert found.claim() is None


def test_pruned_trials_are_done_and_stay_so(tmp_path):
    found = studies(tmp_path, spec(prune=True))
    for score in (0.5, 0.4, 0.6, 0.55, 0.7, 0.1):
        run_trial(found, score)
    again = studies(tmp_path, spec(prune=True))
    assert again.counts() == {"all": 6, "done": 6, "running": 0, "waiting": 0, "failed": 0}
    assert [r.status for r in again.records(spec(prune=True))].count("pruned") == 3


def test_without_the_option_nothing_is_reported_or_stopped(tmp_path):
    found = studies(tmp_path, spec())
    assert [run_trial(found, score) for score in (0.5, 0.4, 0.3, 0.2, 0.1, 0.0)] == [100] * 6


def test_only_tuning_is_pruned_and_it_is_another_study():
    plans = [make_plan({"tasks": ["digits"], "optimizers": ["acmo"], "prune": prune}) for prune in (False, True)]
    contender, score = plans[0].contenders()[0], Score()
    tunes = [tuning_spec(plan, contender, "digits", score) for plan in plans]
    assert [tune.prune for tune in tunes] == [False, True]
    assert tunes[0].name != tunes[1].name
    finals = [final_spec(plan, contender, "digits", score, {"lr": 0.1}) for plan in plans]
    assert finals[0] == finals[1]
    assert not finals[1].prune


def test_a_pruned_run_ends_there_and_is_not_done_again(tmp_path):
    asked: list[int] = []

    def prune(percent: int, score: float) -> bool:
        asked.append(percent)
        assert 0 <= score <= 1
        return percent >= 50

    ended = run(task_config(), tmp_path, prune=prune)
    assert asked == [25, 50]
    assert ended.status == "pruned"
    assert ended.steps == 20
    assert ended.reason == "behind other settings after 50 % of the steps"
    assert run(task_config(), tmp_path, prune=prune) == ended
    assert asked == [25, 50]


def test_the_last_evaluation_asks_nothing_and_no_pruning_redoes_it(tmp_path):
    asked: list[int] = []
    ended = run(task_config(), tmp_path, prune=lambda percent, _: bool(asked.append(percent)) or percent == 75)
    assert ended.status == "pruned"
    assert run(task_config(), tmp_path).status == "finished"
    run(task_config(), tmp_path / "whole", prune=lambda percent, _: bool(asked.append(percent)))
    assert asked == [25, 50, 75] * 2


def test_a_pruned_run_is_never_chosen_and_counts_with_its_score():
    rows = [row("acmo", "tune", 0, lr, valid) for lr, valid in ((0.1, 0.6), (0.01, 0.7))]
    pruned = row("acmo", "tune", 0, 0.001, 0.9, status="pruned", reason="behind")
    rows += [pruned, row("acmo", "tune", 0, 0.0001, None)]
    assert [r.settings["lr"] for r in select(rows, Score())] == [0.01, 0.1, 0.001, 0.0001]
    assert choose([pruned], Score()) is None
    summary = summary_of([*rows, *(row("acmo", "final", s, 0.01, 0.7, 0.7) for s in (1, 2))], prune=True)
    found = summary["rows"][0]
    assert found["settings"] == {"lr": 0.01}
    assert found["pruned"] == 1
    assert found["tried"] == 4
    assert found["budget"][0] == pytest.approx((0.7 + 0.6 + 0.9 + 0.0) / 4)


def test_prune_and_a_test_score_of_every_setting_contradict():
    with pytest.raises(LabError, match="prune leaves settings without a test score"):
        make_plan({"tasks": ["digits"], "prune": True, "test_every_setting": True})


@pytest.mark.slow
def test_a_comparison_prunes_tunes_resumes_and_reports(acmo, tmp_path):
    rates = ",".join(map(str, LRS))
    command = ["compare", f"{TASKS}:Steady", "--optimizers", "sgd,adam", "--try", f"all.lr={rates}", "--seeds", "2"]
    command += ["--epochs", "8", "--no-extend", "--prune", "--workers", "2", "--out", "out"]
    code, out, err = acmo(*command)
    assert code == 0, err
    assert re.search(r"pruned at step \d+ \(accuracy 0\.\d+\)", out)
    assert re.search(r"\d+ tuning runs stopped early \(--prune\)", out)
    found = load("out")
    pruned = [r for r in found.runs if r.status == "pruned"]
    assert {r.label for r in pruned} == {"sgd-momentum", "adam"}
    assert {r.role for r in pruned} == {"tune"}
    assert all(r.steps in (20, 40) for r in pruned)  # a quarter or a half of 80
    assert [r.status for r in found.runs if r.role == "final"] == ["finished"] * 4
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert f"{len(pruned)} were pruned" in page
    assert "settings pruned" in page
    trials = Path("out/trials.jsonl").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert acmo(*command)[0] == 0
    assert Path("out/trials.jsonl").read_text() == trials
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == stamps
    code, _, err = acmo(*[word for word in command if word != "--prune"])
    assert code == 2
    assert "holds another comparison (prune differs)" in err
    assert json.loads(Path("out/comparison.json").read_text())["config"]["prune"] is True
