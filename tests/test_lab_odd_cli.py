"""The command line, handled clumsily: flags against files, brackets in names, missing packages, narrow terminals."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna")
pytest.importorskip("typer")

from lab_command import run_command, sentence
from rich.console import Console
from test_lab_compare import full_rows, summary_of

from acmo.lab.cli import options
from acmo.lab.config import RunOptions
from acmo.lab.plan import presets
from acmo.lab.table import NARROW, WIDE, settings, verdict

acmo = run_command  # a fixture
TASKS = Path(__file__).parent / "lab_tasks.py"


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_can_be_looked_at_without_its_data(acmo, tmp_path, name):
    code, out, err = acmo("compare", "--preset", name, "--dry-run")
    assert code == 0, err
    assert re.search(r"\d+ runs of \d+ (epochs|steps), [\d,]+ (epochs|steps) in all\.", out)
    assert "Needs: " in out
    assert list(tmp_path.iterdir()) == []


def test_every_run_option_that_the_flags_name_is_one_and_reaches_the_run(acmo, tmp_path):
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
        for default in ("[default: auto]", "[default: the task's]", "[default: 60s]", "[default: runs/TASK, or"):
            assert default in out, (command, default)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["compare", "digits", "--epochs", "1", "--steps", "5"], "cannot both be given"),
        (["compare", "digits", "--seeds", "0"], "seeds: .*got 0"),
        (["compare", "digits", "--epochs", "-3"], "epochs: .*got -3"),
        (["compare", "digits", "--batch-size", "0"], "batch_size"),
        (["compare", "digits", "--checkpoint-every", "often"], "60s"),
        (["compare", "digits", "--device", "cuda:77"], "'cuda:77'"),
        (["compare", "digits", "--protocol", "wd"], "protocol"),
        (["compare", "digits", "--try", "all.lr=NaN"], "must be finite"),
        (["compare", "digits", "--try", "=,="], "optimizer.option=value"),
        (["compare", "digits", "--try", "adm.lr=1"], "did you mean 'adam'"),
        (["compare", "digits", "--optimizers", ","], "no optimizer to compare"),
        (["compare", "digits", "digits"], "a task is named twice"),
        (["train", "digits", "--lr", "nan"], "settings.lr: must be finite"),
        (["train", "digits", "--lr", "-1"], "-1"),
        (["train", "digits", "--set", "lr"], "option=value"),
        (["train", "digits", "--schedule", "steps:0"], "is not one of"),
        (["train", "digits", "--seed", "-1"], "seed"),
        (["tune", "digits", "--optimizer", "sgd", "--sampler", "random", "--trials", "0"], "trials"),
    ],
)
def test_nonsense_is_answered_in_a_sentence_and_leaves_no_folder(acmo, tmp_path, command, words):
    assert re.search(words, sentence(acmo(*command)))
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert left == []


def test_a_flag_goes_before_the_file_also_where_the_file_says_it_otherwise(acmo, tmp_path):
    mine = '[[contender]]\nlabel = "mine"\noptimizer = "acmo"\n'
    (tmp_path / "a.toml").write_text('tasks = ["digits"]\nsteps = 700\nbaselines = ["mine"]\n' + mine)
    code, out, err = acmo("compare", "--preset", "a.toml", "--epochs", "3", "--optimizers", "sgd,adam", "--dry-run")
    assert code == 0, err
    assert "digits: 26 runs of 3 epochs" in out


def test_a_title_that_the_flags_make_untrue_is_left_out(acmo):
    assert "the paper's seven optimizers" in acmo("compare", "digits", "--dry-run")[1]
    assert "the paper's seven optimizers" in acmo("compare", "digits", "--dry-run", "--checkpoint-every", "5s")[1]
    for flags in (["--optimizers", "sgd,adam"], ["--seeds", "2"], ["--epochs", "1"], ["--try", "all.lr=1"]):
        out = acmo("compare", "digits", "--dry-run", *flags)[1]
        assert "the paper's seven" not in out
        assert "Needs" not in out


def test_brackets_in_names_are_no_markup(acmo, tmp_path):
    (tmp_path / "a.toml").write_text('title = "a [/] title"\ntasks = ["digits"]\noptimizers = []\n[[contender]]\n'
                                     'label = "[bold]x[/y]"\noptimizer = "acmo"\n')  # fmt: skip
    code, out, err = acmo("compare", "--preset", "a.toml", "--dry-run")
    assert code == 0, err
    assert "a [/] title" in out
    assert "[bold]x[/y]" in out
    rows = [{**row, "task": "t[/x].py:T", "label": row["label"]} for row in full_rows(0.9)]
    task = {**summary_of(full_rows(0.9)), "task": "t[/x].py:T"}
    console = Console(width=200)
    with console.capture() as shown:
        console.print(verdict(task, 200), settings(task, rows))
    assert shown.get().count("t[/x].py:T: ") == 2


@pytest.mark.slow
@pytest.mark.parametrize("package", ["sqlalchemy", "optuna", "rich", "pydantic"])
def test_whichever_package_is_missing_it_is_a_sentence(tmp_path, package):
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('no', name='{package}')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "acmo", "compare", "digits"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r'acmo: \S+ is not installed; get it with: pip install "acmo\[lab\]"', done.stderr.strip())


@pytest.mark.parametrize("width", [60, NARROW, NARROW + 7, WIDE, 130, 200])
@pytest.mark.parametrize("long", [False, True])
def test_the_verdict_fits_the_terminal_and_loses_no_word(width, long):
    task = summary_of(full_rows(0.9))
    for row in task["rows"]:
        row["test"] = {"mean": 0.98765, "low": 0.97654, "high": 0.99876, "n": 5}
        row["settings"] = {"lr": 5e-05, "betas": [0.9, 0.999], "weight_decay": 0.0005} if long else {"lr": 0.1}
        row["edges"] = ["lr=5e-05 is the least tried"]
        row["title"] = "an optimizer with a long name" if long else row["title"]
    console = Console(width=width)
    with console.capture() as shown:
        console.print(verdict(task, width))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    text = "".join("".join(lines).split())
    assert text.count("!") == 4  # on each row, and in the caption
    assert all(text.count(c) >= 3 for c in ("98.77", "[97.65,", "99.88]") if width >= NARROW)
    for column in ("ms/step", "bytes/param"):
        assert (column in text) == (width >= WIDE) or width < 130  # a head may fold
    assert ("(seconds)" in text) == (width >= WIDE)


def test_a_verdict_without_seeds_has_dashes():
    task = summary_of([row for row in full_rows(0.9) if row["role"] == "tune"])
    for width in (60, 200):
        console = Console(width=width)
        with console.capture() as shown:
            console.print(verdict(task, width))
        assert "0 of 0" not in shown.get()


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
