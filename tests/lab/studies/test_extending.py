"""Comparisons whose best learning rate is at the edge of its grid: more are run, once, whoever resumes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acmo.lab.config.plan import make_plan
from acmo.lab.results import load
from acmo.lab.results.comparison_folder import Comparison
from acmo.lab.results.summary import summarise
from acmo.lab.studies.comparison import Compare
from acmo.lab.studies.storage import Store, sqlite_in

# Twelve steps at such rates change next to nothing: more is better, whatever the machine.
RATES = [0.0002, 0.0001]
BEYOND = [0.0004, 0.0008, 0.0016, 0.0032]
PLAN = {"tasks": ["digits"], "optimizers": ["sgd"], "grids": {"all": {"lr": RATES}}, "seeds": 1, "steps": 12}
FLAGS = ["--optimizers", "sgd", "--try", "all.lr=0.0002,0.0001", "--seeds", "1", "--steps", "12"]

OWN = """
import torch

class Fragile(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            if self.param_groups[0]["lr"] > 0.0006:
                p.data.fill_(float("nan"))

class Strict(torch.optim.SGD):
    def __init__(self, params, lr=1e-3):
        if lr > 0.0006:
            raise ValueError("that is too much")
        super().__init__(params, lr)
"""


def compare(out: Path, **changes) -> Comparison:
    plan = make_plan({**PLAN, **changes})
    return Compare(plan, out, Store(sqlite_in(out)), workers=2, quiet=True).run()


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    out = tmp_path_factory.mktemp("extended")
    before = compare(out, extend=False)
    files = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*/*/*")}
    return before, compare(out), files


def row_of(found: Comparison) -> dict:
    return found.summary["tasks"][0]["rows"][0]


def test_an_edge_is_extended_four_times_and_said_so(extended):
    before, after, _ = extended
    assert row_of(before)["extended"] == []
    row = row_of(after)
    assert row["extended"] == BEYOND
    assert row["tried"] == len(row["budget"]) == 6
    assert row["settings"]["lr"] == 0.0032
    assert row["edges"] == ["lr=0.0032 is the greatest tried"]  # four are the most


def test_runs_of_the_grid_keep_their_ids_and_files(extended):
    before, after, files = extended
    assert {r.run for r in before.runs if r.role == "tune"} < {r.run for r in after.runs if r.role == "tune"}
    assert files == {p: p.stat().st_mtime_ns for p in files}


def test_extended_folders_load_and_sum_up_the_same(extended):
    _, after, _ = extended
    found = load(after.folder)
    assert {r.run for r in found.runs if r.role == "tune"} == {r.run for r in after.runs if r.role == "tune"}
    assert summarise(make_plan(found.plan), found.runs, found.scores) == after.summary


def test_the_report_names_the_rates_beyond_the_grid(extended):
    from acmo.lab.report import write

    page = write(extended[1]).read_text()
    assert "grid extended by lr=0.0004, 0.0008, 0.0016, 0.0032" in page
    assert "Grids were extended, since the best learning rate was at the edge: SGD-momentum by 0.0004" in page


@pytest.mark.slow
def test_extension_ends_where_runs_diverge_or_cannot_be(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    for name in ("Fragile", "Strict"):
        label = f"{tmp_path}/own.py:{name}"
        found = compare(tmp_path / name, optimizers=[label], grids={label: {"lr": RATES}}, baselines=[])
        row = row_of(found)
        assert row["settings"]["lr"] == 0.0004
        assert row["extended"] == ([0.0004, 0.0008] if name == "Fragile" else [0.0004])
        assert row["diverged"]["tune"] == (name == "Fragile")
        assert bool(row["edges"]) == (name == "Strict")


def start(out: Path, *more: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "acmo", "compare", "digits", *FLAGS, "--quiet", "--out", str(out), *more]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)


def results(out: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in out.glob("runs/*/*/*/result.json")}


@pytest.mark.slow
def test_a_kill_within_an_extension_costs_no_finished_run(extended, tmp_path):
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while len(results(tmp_path)) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = results(tmp_path)
    assert 4 <= len(before) < 7
    assert start(tmp_path).wait() == 0
    assert before.items() <= results(tmp_path).items()
    found = json.loads((tmp_path / "summary.json").read_text())["tasks"][0]["rows"][0]
    assert {key: found[key] for key in ("extended", "settings", "test")} == {
        key: row_of(extended[1])[key] for key in ("extended", "settings", "test")
    }


@pytest.mark.slow
def test_two_machines_extend_one_grid_without_a_run_twice(tmp_path):
    url = f"sqlite:///{tmp_path}/shared.db"
    processes = [start(tmp_path / name, "--storage", url, "--workers", "1") for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    a, b = (results(tmp_path / name) for name in "ab")
    assert not a.keys() & b.keys()
    assert len(a) + len(b) == 7
    rows = [json.loads((tmp_path / name / "summary.json").read_text())["tasks"][0]["rows"][0] for name in "ab"]
    assert rows[0]["extended"] == rows[1]["extended"] == BEYOND
