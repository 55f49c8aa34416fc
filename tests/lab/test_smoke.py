"""Every command of ``acmo`` once, on little work; all else about the lab is in the slow tier."""

import json
from pathlib import Path

import pytest
import typer

from acmo.lab.cli.app import app
from tests.support.lab_command import run_command
from tests.support.lab_folders import write_comparison
from tests.support.paths import SUPPORT

acmo = run_command  # a fixture
TASK = f"{SUPPORT / 'lab_tasks.py'}:Steady"
QUICK = ["--steps", "3", "--workers", "1", "-q"]


def test_train_writes_a_result(acmo, tmp_path):
    code, out, err = acmo("train", TASK, "--optimizer", "acmo", "--lr", "0.1", "--steps", "3")
    assert code == 0, err
    assert "valid" in out
    assert json.loads(next(tmp_path.rglob("result.json")).read_text())["status"] == "finished"


def test_tune_prints_the_settings_it_tried(acmo):
    code, out, err = acmo("tune", TASK, "--optimizer", "sgd", "--try", "lr=0.1", *QUICK)
    assert code == 0, err
    assert "lr=0.1" in out


def test_compare_prints_a_verdict_and_names_its_folder(acmo):
    flags = ["--optimizers", "sgd,adam", "--try", "all.lr=0.1", "--seeds", "1", "--out", "out"]
    code, out, err = acmo("compare", TASK, *flags, *QUICK)
    assert code == 0, err
    assert "Results: out" in out
    assert len(json.loads(Path("out/summary.json").read_text())["tasks"][0]["rows"]) == 2


def test_report_writes_a_page(acmo, tmp_path):
    code, _, err = acmo("report", str(write_comparison(tmp_path / "runs")))
    assert code == 0, err
    assert (tmp_path / "runs" / "report.html").stat().st_size > 1000


@pytest.mark.parametrize("what", ["tasks", "optimizers", "presets"])
def test_list_prints_names(acmo, what):
    code, out, err = acmo("list", what)
    assert code == 0, err
    assert "digits" in out or "acmo" in out


def test_gallery_writes_a_page(acmo, tmp_path):
    code, _, err = acmo("gallery", "--out", "new", "--steps", "10")
    assert code == 0, err
    assert (tmp_path / "new" / "gallery.html").exists()


def test_doctor_names_a_backend(acmo):
    code, out, err = acmo("doctor")
    assert code == 0, err
    assert "fused" in out or "foreach" in out


@pytest.mark.parametrize("command", ["bench", "theory"])
def test_bench_and_theory_have_help(acmo, command):
    code, out, err = acmo(command, "--help")
    assert code == 0, err
    assert f"python -m acmo.{command}" in out


def test_every_command_has_a_smoke_test():
    commands = set(typer.main.get_command(app).commands)
    assert commands == {"bench", "compare", "doctor", "gallery", "list", "report", "theory", "train", "tune"}
