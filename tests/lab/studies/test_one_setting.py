"""Comparisons in which an optimizer has one setting: it is not tuned; folders of versions that tuned it are read."""

import json
import shutil
from pathlib import Path

import pytest

from acmo.lab.cli.report_command import sum_up
from acmo.lab.config.plan import make_plan
from acmo.lab.errors import LabError
from acmo.lab.report.publish import publish
from acmo.lab.results import load
from acmo.lab.results.comparison_folder import Comparison
from acmo.lab.results.summary import summarise
from acmo.lab.studies.comparison import Compare
from acmo.lab.studies.storage import Store, sqlite_in

ONE = {"sgd": {"lr": [0.1]}, "adam": {"lr": [0.001], "betas": [[0.9, 0.99]]}}
PLAN = {"tasks": ["digits"], "optimizers": ["sgd", "adam"], "grids": ONE, "seeds": 2, "steps": 12}
FINALS = [("adam", "final", 1), ("adam", "final", 2), ("sgd-momentum", "final", 1), ("sgd-momentum", "final", 2)]
NOT_TUNED = "With one setting, so not tuned: SGD-momentum, Adam."


def compare(out: Path, *, final: bool = True, **changes) -> Comparison:
    plan = make_plan({**PLAN, **changes})
    return Compare(plan, out, Store(sqlite_in(out)), workers=1, quiet=True).run(final=final)


def roles(found: Comparison) -> list[tuple[str, str, int]]:
    return sorted((run.label, run.role, run.seed) for run in found.runs)


def results(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("runs/*/*/*/result.json")}


@pytest.fixture(scope="module")
def untuned(tmp_path_factory) -> Comparison:
    return compare(tmp_path_factory.mktemp("untuned"))


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    """A folder as earlier versions left it: they ran the only setting with the seed that tunes, too."""
    out = tmp_path_factory.mktemp("earlier")
    assert roles(compare(out, final=False)) == [("adam", "tune", 0), ("sgd-momentum", "tune", 0)]
    return out


def test_one_setting_has_final_runs_only(untuned):
    assert roles(untuned) == FINALS
    assert len(results(untuned.folder)) == 4
    settings = [row["settings"] for row in untuned.summary["tasks"][0]["rows"]]
    assert settings == [{"lr": 0.1}, {"lr": 0.001, "betas": [0.9, 0.99]}]
    for row in untuned.summary["tasks"][0]["rows"]:
        assert row["test"]["n"] == 2
        assert (row["tried"], row["valid"], row["budget"], row["edges"], row["extended"]) == (0, None, [], [], [])


def test_untuned_folders_load_and_sum_up_the_same(untuned):
    found = load(untuned.folder)
    assert roles(found) == FINALS
    assert summarise(make_plan(found.plan), found.runs, found.scores) == untuned.summary


def test_report_and_published_page_name_who_was_not_tuned(untuned, tmp_path, capsys):
    sum_up(untuned.folder)
    assert NOT_TUNED in " ".join(capsys.readouterr().out.split())
    assert NOT_TUNED in (untuned.folder / "report.html").read_text()
    written = publish(untuned.folder, tmp_path / "p")
    assert NOT_TUNED in (tmp_path / "p" / "README.md").read_text()
    assert not [path for path in written if path.name.startswith("rates-")]
    assert json.loads((tmp_path / "p" / "summary.json").read_text()) == json.loads(json.dumps(untuned.summary))


def test_a_final_run_that_is_missing_is_not_published(untuned, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(untuned.folder, copy, ignore=shutil.ignore_patterns("adam", "trials.*", "summary.*"))
    with pytest.raises(LabError, match=r"not finished \(2 runs missing\)"):
        publish(copy, tmp_path / "p")


def test_one_setting_beside_a_grid_is_not_tuned(tmp_path):
    found = compare(tmp_path, grids={**ONE, "sgd": {"lr": [0.1, 0.03]}}, seeds=1, extend=False)
    tuning = [("sgd-momentum", "tune", 0)] * 2
    assert roles(found) == [("adam", "final", 1), ("sgd-momentum", "final", 1), *tuning]
    sgd, adam = found.summary["tasks"][0]["rows"]
    assert (sgd["tried"], len(sgd["budget"]), adam["tried"], adam["budget"]) == (2, 2, 0, [])
    assert found.summary["tasks"][0]["target"]["from"] == ["adam", "sgd-momentum"]


@pytest.mark.slow
def test_fixed_wd_takes_the_only_weight_decay_of_sgd(tmp_path):
    grids = {"sgd": {"lr": [0.1], "weight_decay": [0.002]}, "adam": {"lr": [0.001]}}
    found = compare(tmp_path, grids=grids, protocol="fixed-wd", seeds=1)
    assert roles(found) == [("adam", "final", 1), ("sgd-momentum", "final", 1)]
    assert {run.settings["weight_decay"] for run in found.runs} == {0.002}
    assert found.summary["tasks"][0]["weight_decay"] == 0.002
    assert roles(load(tmp_path)) == roles(found)


def test_resumed_folder_of_an_earlier_version_keeps_its_runs(earlier, untuned):
    before = results(earlier)
    found = compare(earlier)
    assert before.items() <= results(earlier).items()
    assert len(results(earlier)) == 6
    assert roles(found) == roles(load(earlier)) == sorted([*FINALS, ("adam", "tune", 0), ("sgd-momentum", "tune", 0)])
    for row, other in zip(found.summary["tasks"][0]["rows"], untuned.summary["tasks"][0]["rows"], strict=True):
        assert {key: row[key] for key in ("settings", "test_by_seed")} == {
            key: other[key] for key in ("settings", "test_by_seed")
        }
        assert (row["tried"], len(row["budget"])) == (1, 1)
        assert row["valid"] is not None
    finished = results(earlier)
    assert compare(earlier).summary == found.summary
    assert results(earlier) == finished
    reported = sum_up(earlier)
    assert json.loads(json.dumps(reported.summary)) == json.loads(json.dumps(found.summary))


@pytest.mark.slow
def test_a_tuning_run_that_was_killed_is_not_missed(tmp_path):
    compare(tmp_path, final=False, seeds=1)
    killed = next(tmp_path.glob("runs/*/adam/*/result.json"))
    killed.unlink()
    (tmp_path / "study.db").unlink()
    (tmp_path / "trials.jsonl").unlink()
    assert [run.status for run in load(tmp_path).runs if run.label == "adam"] == ["unfinished"]
    found = compare(tmp_path, seeds=1)
    assert not killed.exists()
    assert roles(found) == roles(load(tmp_path))
    assert {run.status for run in load(tmp_path).runs} == {"finished"}
