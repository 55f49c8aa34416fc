"""Folders with more than a comparison in them, or below the home folder: what belongs to it is found."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from acmo.lab.cli import main
from acmo.lab.cli.report_command import sum_up
from acmo.lab.config.plan import make_plan
from acmo.lab.errors import LabError
from acmo.lab.report import write
from acmo.lab.report.evidence import gather
from acmo.lab.results import load
from acmo.lab.results.tables import read_lines
from acmo.lab.studies.comparison import Compare
from acmo.lab.studies.storage import Store, sqlite_in
from tests.support.lab_folders import write_comparison, write_run
from tests.support.paths import SUPPORT

TASKS = SUPPORT / "lab_tasks.py"


def rewrite(path: Path, **values) -> None:
    stored = json.loads(path.read_text())
    stored["config"].update(values)
    path.write_text(json.dumps(stored))


def summary_after_report(folder: Path) -> dict:
    sum_up(folder)
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize(
    "stray",
    [
        {"settings": {"lr": 0.02}},  # not of the grid
        {"settings": {"lr": 0.01, "momentum": 0.5}},
        {"settings": {}},  # acmo train digits
        {"settings": {"lr": 0.01}, "epochs": 100},
        {"settings": {"lr": 0.01}, "batch_size": 7},
        {"settings": {"lr": 0.01}, "phase": "final"},  # of the seed that tunes, yet it has read the test data
        {"settings": {"lr": 0.01}, "seed": 99},
    ],
)
def test_train_run_in_the_same_folder_leaves_the_report_as_is(tmp_path, stray):
    folder = write_comparison(tmp_path)
    before = summary_after_report(folder)
    run = write_run(
        folder, "digits", "acmo", "acmo", 0.0101, stray.get("seed", 0), 10, "accuracy", -5
    )  # the best of all
    rewrite(run / "config.json", **{"epochs": None, "batch_size": None, "phase": "tune", **stray})
    plan = json.loads((folder / "comparison.json").read_text())
    plan["config"] |= {"epochs": None, "batch_size": None}
    (folder / "comparison.json").write_text(json.dumps(plan))
    assert summary_after_report(folder) == before
    assert run.name not in {r.run for r in load(folder).runs}


def test_runs_from_before_a_grid_changed_are_left_out(tmp_path):
    mine = {"label": "mine", "optimizer": "sgd-momentum", "grid": {"lr": [0.1, 0.01, 0.001]}}
    folder = write_comparison(tmp_path, contenders=[mine])
    assert len([r for r in load(folder).runs if r.label == "mine" and r.role == "tune"]) == 3
    rewrite(folder / "comparison.json", contender=[{**mine, "grid": {"lr": [0.01]}}])
    assert {r.settings["lr"] for r in load(folder).runs if r.label == "mine"} == {0.01}


def test_fixed_wd_accepts_any_weight_decay_found_for_sgd(tmp_path):
    folder = write_comparison(tmp_path, optimizers=["sgd-momentum", "adam"], protocol="fixed-wd")
    for path in folder.glob("runs/*/adam/*/config.json"):
        lr = json.loads(path.read_text())["config"]["settings"]["lr"]
        rewrite(path, settings={"lr": lr, "weight_decay": 0.00042})
    assert len([r for r in load(folder).runs if r.label == "adam"]) == 5


@pytest.mark.parametrize("content", ["[]", '"text"', "3", '{"config": {}}', '{"config": {"tasks": ["digits"]}}', "{"])
def test_damaged_comparison_file_is_read_as_far_as_possible(tmp_path, content):
    folder = write_comparison(tmp_path)
    (folder / "comparison.json").write_text(content)
    with (folder / "trials.jsonl").open("w") as file:
        file.write('{"run": "x", "label": "acmo"}\n[1]\n{"run"')
    load(folder)
    gather(folder)
    assert write(folder).stat().st_size > 1000


def test_published_rows_without_run_folders_can_be_reported(tmp_path):
    folder = write_comparison(tmp_path / "all")
    before = summary_after_report(folder)
    alone = tmp_path / "published"
    alone.mkdir()
    shutil.copy(folder / "comparison.json", alone)
    rows = [{k: v for k, v in row.items() if k != "folder"} for row in read_lines(folder / "trials.jsonl")]
    (alone / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert summary_after_report(alone) == before
    assert "elsewhere" in (alone / "report.html").read_text()


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home folder with a task and an optimizer of one's own in it."""
    home = tmp_path / "home-of-ann"
    home.mkdir()
    shutil.copy(TASKS, home / "own.py")
    (home / "opt.py").write_text("import torch\nclass Mine(torch.optim.SGD):\n    pass\n")
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.slow
def test_comparison_below_the_home_folder_resumes_and_reports(home, tmp_path, monkeypatch, capsys):
    values = {"tasks": [f"{home}/own.py:Steady"], "optimizers": ["sgd", f"{home}/opt.py:Mine"], "seeds": 1, "epochs": 1}
    values["grids"] = {"sgd": {"lr": [0.1]}, f"{home}/opt.py:Mine": {"lr": [0.1]}}
    out = tmp_path / "out"

    def compare() -> dict:
        return Compare(make_plan(values), out, Store(sqlite_in(out)), workers=1, quiet=True).run().summary

    first = compare()
    assert [row["label"] for row in first["tasks"][0]["rows"]] == ["sgd-momentum", "~/opt.py:Mine"]
    assert compare() == first  # the same command again: not "another comparison"
    for path in out.rglob("*"):
        assert "ann" not in path.relative_to(out).as_posix()
        if path.is_file() and path.suffix != ".db":
            assert home.name not in path.read_text(encoding="utf-8"), path
    monkeypatch.setattr(sys, "argv", ["acmo", "report", str(out)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, capsys.readouterr()
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(first))
    task = gather(out).tasks[0]
    assert [len(c.lines) for c in task["contestants"]] == [1, 1]
    assert all(c.lines[0]["valid"] for c in task["contestants"])


def test_task_file_may_be_named_by_its_path_below_home(home):
    from acmo.lab.tasks import find_task

    assert find_task("~/own.py:Steady").name == "steady"
    with pytest.raises(LabError, match="no file"):
        find_task("~/none.py:Steady")


def test_folder_is_locked_while_it_is_checked(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    comparison = Compare(make_plan({"tasks": ["digits"]}), tmp_path, Store(sqlite_in(tmp_path)), quiet=True)
    looked = []

    def read(path: Path) -> None:
        with (tmp_path / "study.lock").open("w") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        looked.append(path.name)

    monkeypatch.setattr("acmo.lab.results.comparison_folder.read_json", read)
    comparison._prepare()
    assert looked == ["comparison.json"]


def test_loading_results_imports_neither_torch_nor_a_rival(tmp_path):
    folder = write_comparison(tmp_path, rates=[0.1, 0.01])
    head = json.loads((folder / "comparison.json").read_text())
    head["grids"] = {name: {"lr": [0.1, 0.01]} for name in head["config"]["optimizers"]}
    (folder / "comparison.json").write_text(json.dumps(head))
    code = (
        "import sys; from acmo.lab.results import load; assert load(sys.argv[1]).runs; "
        "rivals = {m for m in sys.modules if m.startswith('acmo.rivals.')} - {'acmo.rivals.registry'}; "
        "sys.exit('torch' in sys.modules or bool(rivals))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
