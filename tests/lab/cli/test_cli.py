"""The command line: what is wrong is one sentence and exit code 2; what is right goes on where it stopped."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acmo.lab.config.plan import parse_value, parse_values
from acmo.lab.config.preset_files import presets
from acmo.lab.errors import LabError
from acmo.lab.tasks import TASKS
from tests.support.lab_command import QUICK, run_command
from tests.support.paths import ROOT

acmo = run_command  # a fixture
EXAMPLE = ROOT / "examples" / "own_optimizer"


def test_help_has_examples_and_lists_have_everything(acmo):
    for command in ("compare", "tune", "train", "report"):
        assert f"acmo {command} " in acmo(command, "--help")[1]
    assert all(name in acmo("list", "tasks")[1] for name in TASKS)
    assert "full-matrix-adagrad" in acmo("list", "optimizers")[1]
    assert all(name in acmo("list", "presets")[1] for name in presets())


def test_importing_acmo_does_not_import_the_lab():
    heavy = ("acmo.lab", "typer", "optuna", "rich", "pydantic")
    code = f"import sys, acmo; assert not [m for m in sys.modules if m.startswith({heavy})]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_values_on_the_command_line_are_numbers_lists_or_words():
    assert parse_values("my.module:Cls.lr=1e-3,0.1") == ("my.module:Cls", "lr", [0.001, 0.1])
    assert parse_values("sgd.nesterov=true,false") == ("sgd-momentum", "nesterov", [True, False])
    assert [parse_value(t) for t in ("1/8", "tensor", "3", "null")] == [0.125, "tensor", 3.0, None]
    with pytest.raises(LabError):
        parse_values("lr=0.1")


def test_train_trains_and_the_same_command_finds_the_result(acmo, tmp_path):
    command = (
        "train",
        "digits",
        "--optimizer",
        "sgd",
        "--lr",
        "0.1",
        "--set",
        "momentum=0.8",
        "--epochs",
        "1",
        "--test",
    )
    code, out, err = acmo(*command)
    assert code == 0, err
    assert re.search(r"test: .*accuracy 0\.\d+", out)
    results = list(tmp_path.glob("runs/digits/runs/digits/sgd-momentum/*/result.json"))
    assert len(results) == 1
    stamp = results[0].stat().st_mtime_ns
    assert acmo(*command)[1] == out
    assert results[0].stat().st_mtime_ns == stamp
    assert acmo("report", "runs/digits")[0] == 0


@pytest.mark.slow
def test_tune_shows_settings_in_order_and_reads_no_test_data(acmo, tmp_path):
    code, out, err = acmo(
        "tune", "digits", "--optimizer", "acmo", "--try", "lr=0.1,0.001", "--epochs", "1", "--workers", "1", "-q"
    )
    assert code == 0, err
    assert out.index("lr=0.1") < out.index("lr=0.001")
    assert '"kind": "test"' not in "".join(p.read_text() for p in tmp_path.rglob("metrics.jsonl"))


@pytest.mark.slow
def test_the_example_of_an_optimizer_of_ones_own_runs(acmo, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLE, tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    quick = ["--epochs", "1", "--seeds", "1", "--try", "all.lr=0.1", "--workers", "1", "-q", "--no-extend"]
    code, out, err = acmo("compare", "--preset", "comparison.toml", *quick)
    assert code == 0, err
    assert "signSGD" in out
    assert "Results: runs/comparison" in out
    rows = json.loads(Path("runs/comparison/summary.json").read_text())["tasks"][0]["rows"]
    assert rows[-1]["label"] == "signSGD"
    assert rows[-1]["tried"] == 5
    assert rows[-1]["test"]["mean"] > 0.3
    flags = ["--optimizers", "sgd,sign_sgd:SignSGD", "--try", "sign_sgd:SignSGD.lr=0.001", "--try", "sgd.lr=0.1"]
    code, out, _ = acmo("compare", "digits", *flags, "--dry-run")
    assert code == 0
    assert "10 runs" in out  # five seeds each; one rate is not tuned


def start(cwd: Path, *args: str, **options) -> subprocess.Popen:
    env = {**os.environ, "COLUMNS": "200"}
    # What a shell starts with & ignores Ctrl-C, and so do its children: these tests would fail in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command = [sys.executable, "-m", "acmo", *args]
        return subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True, **options)
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_ctrl_c_prints_a_command_that_resumes(tmp_path):
    command = [
        "compare",
        "digits",
        "--optimizers",
        "sgd",
        "--try",
        "all.lr=0.1,0.01",
        "--seeds",
        "1",
        "--epochs",
        "10",
        "--no-extend",
        "--workers",
        "2",
    ]
    process = start(tmp_path, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(tmp_path.glob("runs/digits/runs/*/*/*/metrics.jsonl"))) == 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone in the group
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in out + err
    assert f"acmo {' '.join(command)}" in out
    wait_for(
        lambda: subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True).returncode == 1, 20
    )  # nobody is left
    done = start(tmp_path, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = done.communicate(timeout=180)
    assert done.returncode == 0, (out, err)
    assert "3/3" in out


@pytest.mark.slow
def test_two_processes_in_one_folder_share_the_work_and_agree(tmp_path):
    both = [
        start(
            tmp_path,
            "compare",
            "digits",
            *QUICK,
            "--workers",
            "1",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in "ab"
    ]
    outputs = [p.communicate(timeout=240) for p in both]
    assert [p.returncode for p in both] == [0, 0], outputs
    runs = [json.loads(p.read_text()) for p in tmp_path.glob("runs/digits/runs/*/*/*/result.json")]
    assert len(runs) == 8
    for path in tmp_path.glob("runs/digits/runs/*/*/*/metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [r["step"] for r in lines if r["kind"] == "train"] == sorted(
            {r["step"] for r in lines if r["kind"] == "train"}
        )


@pytest.mark.slow
def test_a_terminal_shows_trials_epoch_loss_and_time_left(tmp_path):
    leader, follower = pty.openpty()
    command = [
        "compare",
        "digits",
        "--optimizers",
        "sgd",
        "--try",
        "all.lr=0.1,0.01",
        "--no-extend",
        "--seeds",
        "1",
        "--epochs",
        "8",
        "--workers",
        "1",
    ]
    process = start(tmp_path, *command, stdout=follower, stderr=follower, stdin=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"\d of 3 runs\s+\S+.* left", text)
    assert re.search(r"sgd-momentum\s+lr=0.1\s+epoch \d", text)
    assert re.search(r"loss \d", text)
    assert "Results: runs/digits" in text
