"""What users do wrong is answered with a sentence about it, never with "this is a bug of acmo"."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acmo.lab.config.run_options import RunConfig
from acmo.lab.runs import checkpoints
from acmo.lab.runs.run_folder import run
from tests.support.lab_command import run_command, sentence
from tests.support.lab_runs import TASKS, Stop, checkpointed_config, stop_at

acmo = run_command

OWN = """
import torch

class Broken(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("no step today")

class Picky(torch.optim.SGD):
    def step(self, closure=None):
        if self.param_groups[0]["lr"] > 0.05:
            raise ValueError("too fast")
        return super().step(closure)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_train_shows_the_traceback_of_a_users_step(acmo, own):
    code, out, err = acmo("train", f"{TASKS}:Steady", "--optimizer", f"{own}:Broken", "--lr", "0.1", "--out", "out")
    assert code == 2
    assert 'raise ValueError("no step today")' in err
    assert "bug of acmo" not in out + err
    last = err.splitlines()[-1]
    assert last.startswith(f"acmo: {own}:Broken on {TASKS}:Steady failed: ValueError: no step today; run: out/runs/")
    assert "run_folder.py" not in err


@pytest.mark.slow
def test_compare_goes_on_with_the_others_after_a_failed_run(acmo, own):
    command = ["compare", f"{TASKS}:Steady", "--optimizers", f"sgd,{own}:Broken,{own}:Picky", "--epochs", "1"]
    command += ["--try", "all.lr=0.1,0.01", "--no-extend", "--seeds", "2", "--workers", "2", "--out", "out"]
    code, out, err = acmo(*command)
    assert code == 2
    assert "3 runs failed and are missing in the results" in err
    assert "bug of acmo" not in out + err
    assert out.count('raise ValueError("no step today")') == 1  # of two runs
    assert out.count('raise ValueError("too fast")') == 1
    assert "Broken lr=0.01 failed: ValueError: no step today" in out
    assert "2 seeds of the best (3 of 10 runs are done)" in out  # 6 to tune, 2 each of the two with a best setting
    rows = {row["label"]: row for row in json.loads(Path("out/summary.json").read_text())["tasks"][0]["rows"]}
    assert rows["sgd-momentum"]["test"]["n"] == 2
    assert rows[f"{own}:Picky"]["settings"] == {"lr": 0.01}
    assert rows[f"{own}:Broken"]["settings"] is None
    assert rows[f"{own}:Broken"]["failed"] == {"tune": 2, "final": 0, "reason": "ValueError: no step today"}
    for shown in (out, acmo("report", "out")[1]):
        assert "every setting failed: ValueError: no step today" in " ".join(shown.split())
        assert "3 runs failed with an error" in " ".join(shown.split())
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert "every setting failed: ValueError: no step today" in page
    assert "1 run failed: ValueError: too fast" in page
    own.write_text(OWN.replace("0.05", "5").replace('raise ValueError("no', 'super().step() or ("no'))
    again = subprocess.run([sys.executable, "-m", "acmo", *command], capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr  # once fixed, the same command does what was missing
    assert {row["settings"] is None or "failed" in row for row in summary_rows()} == {False}


def summary_rows() -> list[dict]:
    return json.loads(Path("out/summary.json").read_text())["tasks"][0]["rows"]


@pytest.mark.slow
def test_tpe_ends_though_every_run_fails(acmo, own):
    flags = ["--sampler", "tpe", "--trials", "3", "--try", "lr=0.1,0.01", "--workers", "1", "--out", "out"]
    code, _, err = acmo("tune", f"{TASKS}:Steady", "--optimizer", f"{own}:Broken", *flags)
    assert code == 2
    assert "3 runs failed" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batch-size", str(10**20)], "batch_size: Input should be less than 2147483648"),
        (["--threads", str(10**12)], "threads: Input should be less than or equal to 1024"),
        (["--threads", "100000"], "threads: Input should be less than or equal to 1024"),
        (["--epochs", str(10**20)], "epochs: Input should be less than or equal to 1000000"),
        (["--steps", str(10**20)], "steps: Input should be less than or equal to 10000000000"),
        (["--accumulate", str(10**20)], "accumulate: Input should be less than or equal to 1000000"),
        (["--device", "meta"], "the device 'meta' is not there"),
        (["--lr", "0.1", "--set", "lr=0.2"], "lr is given twice: once as 0.1, once as '0.2'"),
        (["--set", "lr=0.1", "--set", "lr=0.2"], "lr is given twice"),
        (["--weight-decay", "0", "--set", "weight_decay=0"], "weight_decay is given twice"),
    ],
)
def test_train_refuses(acmo, flags, words):
    assert words in sentence(acmo("train", "digits", *flags))
    assert not Path("runs").exists()


def test_epochs_of_a_toml_file_have_a_limit(acmo, tmp_path):
    (tmp_path / "a.toml").write_text('tasks = ["digits"]\nepochs = 1e20\n')
    assert "a.toml, line 2: epochs" in sentence(acmo("compare", "--preset", "a.toml", "--dry-run"))


@pytest.mark.skipif(os.name != "posix", reason="paths are text on Windows")
@pytest.mark.parametrize("command", [["train", "digits"], ["compare", "digits"], ["report"]])
def test_folder_that_is_not_utf8_is_refused(acmo, command):
    name = os.fsdecode(b"caf\xe9")
    last = ["--out", name] if command != ["report"] else [name]
    assert r"'caf\udce9' is not valid UTF-8" in sentence(acmo(*command, *last))


def cut(folder: Path, **values) -> RunConfig:
    """A run of 40 steps that was stopped after the checkpoints of steps 12 and 15."""
    what = checkpointed_config(**values)
    with pytest.raises(Stop):
        run(what, folder, stop_at(16))
    return what


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("model"),
        lambda state: state.pop("position"),
        lambda state: state.update(optimizer={}),
        lambda state: state["model"].update({"0.weight": state["model"]["0.weight"][:2]}),
        lambda state: state["position"].update(unknown=1),
        lambda state: state["optimizer"].update(param_groups=[]),
        lambda state: state.update(schedule=None),
        lambda state: state.update(random=[b"nothing"]),
        lambda state: state.update(span="text"),
    ],
    ids=["model", "position", "optimizer", "shape", "unknown", "groups", "schedule", "random", "span"],
)
def test_sound_checkpoint_with_wrong_content_is_a_sentence(tmp_path, spoil):
    from acmo.lab.errors import LabError

    what = cut(tmp_path / "run")
    kept = tmp_path / "run" / "checkpoints"
    for path in checkpoints.found(kept):
        state = checkpoints.load(path.read_bytes())
        spoil(state)
        checkpoints.save(kept, int(path.stem[5:]), state)
    with pytest.raises(LabError, match="is not of this run"):
        run(what, tmp_path / "run")


def test_no_earlier_checkpoint_is_promised_where_there_is_none(tmp_path):
    what = cut(tmp_path / "run")
    older, newer = checkpoints.found(tmp_path / "run" / "checkpoints")
    for path in (older, newer):
        path.write_bytes(b"damaged")
    with pytest.warns(checkpoints.DamagedCheckpoint) as told:
        run(what, tmp_path / "run")
    said = [str(w.message) for w in told if w.category is checkpoints.DamagedCheckpoint]
    checksum = "its checksum is not that of what was written"
    assert said == [
        f"the checkpoint {newer} is damaged ({checksum}): the one before it is tried",
        f"the checkpoint {older} is damaged ({checksum}): the run begins again",
    ]


@pytest.mark.slow
def test_damaged_checkpoint_is_one_line_without_source(tmp_path):
    command = [sys.executable, "-m", "acmo", "train", f"{TASKS}:Steady", "--out", str(tmp_path), "--lr", "0.1"]
    command += ["--checkpoint-every", "1it", "--keep-checkpoints"]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    (folder,) = tmp_path.glob("runs/*/*/*")
    (folder / "result.json").unlink()
    checkpoints.found(folder / "checkpoints")[-1].write_bytes(b"damaged")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("acmo: the checkpoint ")
    assert line.endswith(": the one before it is tried")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--try", "acmo.lr=nan"], "acmo.lr must be a number, got 'nan'"),
        (["--try", "sgd.lr=0.1,abc"], "sgd-momentum.lr must be a number, got 'abc'"),
        (
            ["--optimizers", "adam", "--try", "adam.betas=0.9"],
            "adam.betas must be a list such as [0.9, 0.999], got 0.9",
        ),
        (["--optimizers", "adam", "--try", "adam.eps=true"], "adam.eps must be a number, got True"),
        (["--try", "acmo.lr=NaN"], "must be finite"),
        (["--try", "sgd.lr=0.1,-0.1"], "sgd-momentum cannot be made with"),
        (["--try", "acmo.unknown=1"], "acmo has no option 'unknown'"),
        (["--schedule", "nonsense"], "the schedule 'nonsense' is not one of"),
        (["--device", "cuda:99"], "the device 'cuda:99' is not there"),
        (["--out", "file/out"], "file/out cannot be written"),
    ],
)
def test_dry_run_applies_the_checks_of_the_run(acmo, tmp_path, flags, words):
    (tmp_path / "file").write_text("")
    command = ["compare", "digits", "--optimizers", "acmo,sgd", *flags]
    dry, real = sentence(acmo(*command, "--dry-run")), sentence(acmo(*command))
    assert words in dry
    assert dry == real
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_dry_run_checks_data_and_folder(acmo, tmp_path):
    assert "nowhere" in sentence(acmo("compare", "cifar10:tiny", "--data", "nowhere", "--dry-run"))
    quick = ["compare", "digits", "--optimizers", "sgd", "--out", "out", "--dry-run"]
    (tmp_path / "out").mkdir()
    plan = {"tasks": ["digits"], "optimizers": ["sgd-momentum"], "epochs": 3}
    (tmp_path / "out" / "comparison.json").write_text(json.dumps({"config": plan, "scores": {}}))
    assert "holds another comparison (epochs differs)" in sentence(acmo(*quick))
