"""A whole comparison on digits, small but real: processes, files, selection, resumption, a worker that is killed."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from acmo.lab.config.plan import make_plan
from acmo.lab.errors import LabError
from acmo.lab.results.comparison_folder import load, write_summary
from acmo.lab.results.summary import summarise
from acmo.lab.results.tables import read_lines
from acmo.lab.studies.comparison import Compare
from acmo.lab.studies.storage import Store, sqlite_in
from tests.support.paths import ROOT

SMALL = {
    "tasks": ["digits"],
    "optimizers": ["acmo", "sgd", "adam"],
    "grids": {"all": {"lr": [0.1, 0.01]}},
    "seeds": 2,
    "epochs": 1,
    "extend": False,
}


def compare(out: Path, workers: int = 1, **changes) -> tuple[dict, Compare]:
    comparison = Compare(make_plan({**SMALL, **changes}), out, Store(sqlite_in(out)), workers, quiet=True)
    return comparison.run().summary, comparison


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison")
    return out, *compare(out, workers=2)


def test_every_optimizer_has_a_row_with_all_that_was_asked_for(done):
    _, summary, _ = done
    task = summary["tasks"][0]
    assert [row["label"] for row in task["rows"]] == ["acmo", "sgd-momentum", "adam"]
    for row in task["rows"]:
        assert row["test"]["n"] == 2
        assert row["test"]["low"] <= row["test"]["mean"] <= row["test"]["high"]
        assert row["tried"] == 2
        assert row["settings"]["lr"] in (0.1, 0.01)
        assert len(row["edges"]) == 1  # two values: each is an edge
        assert len(row["budget"]) == 2
        assert row["cost"]["state_bytes_per_parameter"] == pytest.approx(8 if row["label"] == "adam" else 4, rel=0.01)
        assert set(row["differences"]) == {"sgd-momentum", "adam"} - {row["label"]}
    assert task["target"]["from"] == ["adam", "sgd-momentum"]


def test_choice_uses_validation_data_and_test_data_is_read_last(done):
    out, summary, comparison = done
    for run in comparison.records:
        assert (run.test is None) == (run.role == "tune")
        kinds = [line["kind"] for line in read_lines(out / run.folder / "metrics.jsonl")]
        assert kinds.count("test") == (run.role == "final")
    for row in summary["tasks"][0]["rows"]:
        tuned = {
            r.settings["lr"]: r.valid["accuracy"]
            for r in comparison.records
            if r.label == row["label"] and r.role == "tune"
        }
        assert tuned[row["settings"]["lr"]] == max(tuned.values()) == row["valid"]


def test_no_reported_run_has_the_seed_that_was_selected_with(done):
    _, _, comparison = done
    assert {r.seed for r in comparison.records if r.role == "tune"} == {0}
    assert {r.seed for r in comparison.records if r.role == "final"} == {1, 2}


def test_the_same_command_again_does_nothing_and_says_the_same(done):
    out, summary, _ = done
    before = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*/*/*")}
    again, _ = compare(out)
    assert again == summary
    assert before == {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*/*/*")}


@pytest.mark.slow
def test_a_lost_database_costs_no_run(done, tmp_path):
    import shutil

    out, summary, _ = done
    shutil.copytree(out, tmp_path / "copy")
    (tmp_path / "copy" / "study.db").unlink()
    again, _ = compare(tmp_path / "copy")
    assert again == summary


@pytest.mark.slow
def test_other_options_in_a_folder_are_refused_more_seeds_added(done):
    out, summary, _ = done
    with pytest.raises(LabError, match=r"another comparison \(epochs differs\)"):
        compare(out, epochs=2)
    more, _ = compare(out, seeds=3)
    rows = {r["label"]: r for r in more["tasks"][0]["rows"]}
    for row in summary["tasks"][0]["rows"]:
        assert rows[row["label"]]["test"]["n"] == 3
        assert row["test_by_seed"].items() <= rows[row["label"]]["test_by_seed"].items()
    fewer, _ = compare(out)
    assert fewer == summary


def test_the_files_are_plain_and_whole(done):
    out, summary, comparison = done
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
    with (out / "summary.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["test.mean"]) for row in table] == [row["test"]["mean"] for row in summary["tasks"][0]["rows"]]
    with (out / "trials.csv").open() as file:
        assert (
            len(list(csv.DictReader(file)))
            == len(list(read_lines(out / "trials.jsonl")))
            == len(comparison.records)
            == 12
        )
    head = json.loads((out / "comparison.json").read_text())
    assert head["config"]["seeds"] == 2
    assert head["provenance"]["versions"]["torch"]
    assert str(Path.home()) not in (out / "comparison.json").read_text() or str(Path.home()) == "/"


def test_what_is_loaded_is_what_was_run(done):
    out, summary, comparison = done
    found = load(out)
    assert sorted(found.runs, key=lambda r: r.run) == sorted(comparison.records, key=lambda r: r.run)
    assert found.summary == json.loads(json.dumps(summary))
    assert {m["kind"] for m in found.metrics} == {"train", "valid", "test"}
    assert all(m["label"] in ("acmo", "sgd-momentum", "adam") for m in found.metrics)
    for run in found.runs:
        lines = found.metrics_of(run, "valid")
        assert run.curve == tuple((line["step"], line["seconds"], line["accuracy"]) for line in lines)
    assert summarise(make_plan(found.plan), found.runs, found.scores) == summary


def test_half_a_line_and_a_run_under_way_are_no_error(done, tmp_path):
    import shutil

    out, _, comparison = done
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    cut = copy / comparison.records[0].folder
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    (cut / "result.json").unlink()
    (copy / "summary.json").write_text('{"tasks": [')
    (copy / "trials.jsonl").unlink()
    found = load(copy)
    assert len(found.runs) == 12
    assert [r.status for r in found.runs].count("unfinished") == 1
    assert found.summary is None
    assert all("kind" in m for m in found.metrics)
    summary = write_summary(copy, make_plan(found.plan), found.runs, found.scores)
    assert sum(row["tried"] for row in summary["tasks"][0]["rows"]) == 5
    with pytest.raises(LabError, match="there is no folder"):
        load(tmp_path / "nowhere")


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_trial_done(tmp_path):
    plan = make_plan({**SMALL, "optimizers": ["sgd"], "baselines": ["sgd"], "epochs": 6, "seeds": 1})
    comparison = Compare(plan, tmp_path, Store(sqlite_in(tmp_path)), workers=2, quiet=True)
    killed = []

    def kill() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not killed:
            if any(tmp_path.glob("runs/*/*/*/metrics.jsonl")):
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
                for pid in children:
                    if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(int(pid), signal.SIGKILL)
                        killed.append(pid)
                        break
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    summary = comparison.run().summary
    killer.join()
    assert killed
    assert summary["tasks"][0]["rows"][0]["tried"] == 2
    assert summary["tasks"][0]["rows"][0]["test"]["n"] == 1


@pytest.mark.slow
def test_fixed_wd_gives_everyone_the_weight_decay_that_sgd_chose(tmp_path):
    values = {"protocol": "fixed-wd", "optimizers": ["sgd", "adamw"], "seeds": 1, "steps": 5}
    grids = {"all": {"lr": [0.1]}, "sgd": {"weight_decay": [0.0, 0.3]}}
    summary, comparison = compare(tmp_path, **{**SMALL, **values, "grids": grids, "epochs": None})
    picked = summary["tasks"][0]["weight_decay"]
    assert picked in (0.0, 0.3)
    assert all(r.settings["weight_decay"] == picked for r in comparison.records if r.label == "adamw")


@pytest.mark.slow
def test_the_demo_takes_under_four_minutes_on_two_cores(tmp_path):
    if os.getloadavg()[0] > 1.0 or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two quiet cores")
    (optimizers,) = re.findall(
        r"acmo compare digits --optimizers (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8")
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "acmo", "compare", "digits", "--workers", "2", "--optimizers", optimizers],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 240
    assert "Results: runs/digits" in done.stdout
