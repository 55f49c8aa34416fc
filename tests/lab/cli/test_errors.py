"""Wrong commands are answered with one sentence and leave no folder."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.lab_command import QUICK, run_command, sentence

acmo = run_command  # a fixture


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


@pytest.mark.slow
@pytest.mark.parametrize("package", ["sqlalchemy", "optuna", "rich", "pydantic"])
def test_whichever_package_is_missing_it_is_a_sentence(tmp_path, package):
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('no', name='{package}')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "acmo", "compare", "digits"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r'acmo: \S+ is not installed; get it with: pip install "acmo\[lab\]"', done.stderr.strip())


def test_an_unknown_task_is_answered_with_the_nearest(acmo):
    assert "did you mean 'digits'" in sentence(acmo("compare", "digit"))
    assert "did you mean 'cifar10'" in sentence(acmo("train", "cifar1"))


def test_an_unknown_optimizer_is_answered_with_the_nearest(acmo):
    assert "did you mean 'adam'" in sentence(acmo("compare", "digits", "--optimizers", "acmo,adm"))
    assert "did you mean" in sentence(acmo("compare", "digits", "--optimizers", "adm", "--dry-run"))
    assert "no module 'nowhere'" in sentence(acmo("train", "digits", "--optimizer", "nowhere:Class"))


def test_option_that_an_optimizer_lacks_is_refused_before_runs(acmo, tmp_path):
    assert "no option 'momentums'" in sentence(
        acmo("compare", "digits", "--optimizers", "sgd", "--try", "sgd.momentums=0.9")
    )
    assert not (tmp_path / "runs").exists()


def test_bad_toml_is_reported_with_its_line(acmo, tmp_path):
    (tmp_path / "a.toml").write_text('tasks = ["digits"]\nseeds = = 3\n')
    assert "line 2" in sentence(acmo("compare", "--preset", "a.toml"))
    (tmp_path / "b.toml").write_text('tasks = ["digits"]\n\nseed = 3\n')
    assert re.search(r"b\.toml, line 3: seed is not a known option", sentence(acmo("compare", "--preset", "b.toml")))
    (tmp_path / "c.toml").write_text('tasks = ["digits"]\n[grids.acmo]\nlr = []\n')
    assert "c.toml, line 3" in sentence(acmo("compare", "--preset", "c.toml"))
    (tmp_path / "d.toml").write_text('tasks = ["digits"]\nprotocol = "fixed"\n')
    assert "line 2" in sentence(acmo("compare", "--preset", "d.toml"))


def test_an_unknown_preset_is_answered_with_the_nearest(acmo):
    assert "did you mean 'paper/cifar10-tuned-vgg16'" in sentence(
        acmo("compare", "--preset", "paper/cifar10-tuned-vgg")
    )


def test_missing_and_damaged_data_is_one_sentence(acmo, tmp_path):
    sentence(acmo("compare", "cifar10:tiny", "--data", "nowhere"))
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(b"\0" * 100)
    sentence(acmo("compare", "cifar10:tiny", "--data", str(tmp_path)))


def test_a_folder_that_cannot_be_written_is_one_sentence(acmo, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in sentence(acmo("compare", "digits", *QUICK, "--out", "file/out"))
    assert "cannot be written" in sentence(acmo("train", "digits", "--out", "file/out"))


def test_wrong_options_are_one_sentence(acmo):
    assert "name a task" in sentence(acmo("compare"))
    assert "needs trials" in sentence(acmo("compare", "digits", "--sampler", "tpe"))
    assert "sgd-momentum" in sentence(acmo("compare", "digits", "--protocol", "fixed-wd", "--optimizers", "acmo"))
    assert "has no grid" in sentence(acmo("compare", "digits", "--optimizers", "torch.optim:Rprop"))
    assert "optimizer.option=value" in sentence(acmo("compare", "digits", "--try", "lr"))
    assert "twice" in sentence(acmo("compare", "digits", "--optimizers", "sgd,sgd-momentum"))
    assert "there is no folder" in sentence(acmo("report", "nowhere"))


def test_a_password_is_never_repeated(acmo, monkeypatch):
    url = "postgresql://me:hunter2@127.0.0.1:1/db"
    for result in (
        acmo("compare", "digits", "--storage", url),
        acmo("compare", "digits", "--storage", "redis://:hunter2@h/0"),
    ):
        assert "hunter2" not in sentence(result)
    monkeypatch.setenv("ACMO_STORAGE", url)
    code, out, err = acmo("compare", "digits", "--dry-run")
    assert code == 0
    assert "me:***@127.0.0.1" in out
    assert "hunter2" not in out + err
    code, out, err = acmo("compare", "--help")
    assert "hunter2" not in out + err


def test_a_missing_extra_is_one_sentence(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-m", "acmo", "list", "tasks"], env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == 'acmo: typer is not installed; get it with: pip install "acmo[lab]"'
