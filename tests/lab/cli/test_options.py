"""The options of the commands: their defaults, their completion, and that they reach the run."""

import json
import os
import re
import subprocess
import sys

import pytest

from acmo.lab.cli import shared_options as options
from acmo.lab.config.run_options import RunOptions
from tests.support.lab_command import run_command
from tests.support.paths import SUPPORT

acmo = run_command  # a fixture


TASKS = SUPPORT / "lab_tasks.py"


def test_every_run_option_flag_reaches_the_run(acmo, tmp_path):
    assert options.RUN.keys() <= RunOptions.model_fields.keys()
    flags = ["--epochs", "1", "--batch-size", "50", "--accumulate", "2", "--schedule", "cosine", "--max-grad-norm", "1"]
    flags += ["--autocast", "bfloat16", "--fast", "--device", "cpu", "--checkpoint-every", "7it", "--keep-checkpoints"]
    code, _, err = acmo("train", f"{TASKS}:Blobs", "--lr", "0.1", *flags, "-q")
    assert code == 0, err
    stored = json.loads(next(tmp_path.rglob("config.json")).read_text())["config"]
    expected = {
        "epochs": 1, "batch_size": 50, "accumulate": 2, "schedule": "cosine", "max_grad_norm": 1.0, "device": "cpu",
        "autocast": "bfloat16", "deterministic": False, "checkpoint_every": "7it", "keep_checkpoints": True,
    }  # fmt: skip
    assert {key: stored[key] for key in expected} == expected
    assert next(tmp_path.rglob("step-*.pt"))


def test_help_says_the_defaults(acmo):
    for command in ("compare", "tune", "train"):
        out = " ".join(acmo(command, "--help")[1].replace("│", " ").split())
        for default in ("auto]", "the task's]", "60s]", "in runs, named after the task"):
            assert f"[default: {default}" in out, (command, default)


def test_help_of_compare_groups_its_options_in_panels(acmo):
    out = acmo("compare", "--help")[1]
    panels = re.findall(r"╭─ (.+?) ─", out)
    assert panels == ["Arguments", "Options", "What is compared", "Tuning", "Data and evaluation", "Training",
                      "Where it runs", "Output"]  # fmt: skip
    ungrouped = out.split("╭─ Options ─")[1].split("╰─")[0]
    assert re.findall(r"--[a-z-]+", ungrouped) == ["--help"]


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"]])
def test_help_imports_nothing_heavy(arguments, tmp_path):
    heavy = {"numpy", "optuna", "plotly", "scipy", "torch", "jinja2"}
    heavy |= {"pydantic", "importlib.metadata"} if arguments == ["--help"] else set()  # typer parses options with it
    code = f"""
import sys
from acmo.lab.cli import main
sys.argv = ["acmo", *{arguments}]
try:
    main()
except SystemExit as end:
    assert not end.code
found = {heavy} & sys.modules.keys()
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_shell_completes_names(tmp_path):
    code = "import sys; sys.argv[0] = 'acmo'; from acmo.lab.cli import main; main()"

    def completed(*words: str) -> str:
        asked = {"COMP_WORDS": " ".join(["acmo", *words]), "COMP_CWORD": str(len(words))}
        env = {**os.environ, "_ACMO_COMPLETE": "complete_bash", **asked}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path).stdout

    assert "cifar100" in completed("compare", "cifar1")
    assert "acmo,adamw" in completed("compare", "digits", "--optimizers", "acmo,ada")
    assert "paper/cifar10-tuned-vgg16" in completed("compare", "--preset", "paper/cifar10-t")
