"""Killed at any moment, with damaged files or a full disk: the run goes on and ends with the same bits."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from acmo.lab import atomic
from acmo.lab.config.run_options import RunConfig
from acmo.lab.errors import LabError
from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.runs import checkpoints, randomness
from acmo.lab.runs.run_folder import run
from acmo.rivals import REGISTRY
from tests.support.lab_runs import Stop, assert_same, assert_same_bits, stop_at
from tests.support.lab_runs import checkpointed_config as config
from tests.support.paths import DATA as CIFAR
from tests.support.paths import SUPPORT

TASKS = SUPPORT / "lab_tasks.py"

RUN = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from acmo.lab.config import RunConfig
from acmo.lab.errors import LabError
from acmo.lab.runs.run_folder import run
if len(sys.argv) > 3:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    run(RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
except LabError as error:
    print(error)
    sys.exit(2)
"""


def start(config: RunConfig, folder: Path, *limit: int) -> subprocess.Popen:
    arguments = [config.model_dump_json(), str(folder), *map(str, limit)]
    return subprocess.Popen([sys.executable, "-c", RUN, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("optimizer", sorted(REGISTRY))
def test_every_optimizer_resumes_with_the_same_bits(tmp_path, optimizer):
    what = config(optimizer, steps=25, schedule="warmup:3it+cosine")
    run(what, tmp_path / "whole")
    for step in (2, 8, 17):  # before the first checkpoint, and between two
        with pytest.raises(Stop):
            run(what, tmp_path / "cut", stop_at(step))
    run(what, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    "values",
    [
        {"autocast": "float16"},
        {"autocast": "bfloat16", "accumulate": 3},
        {"max_grad_norm": 0.5, "optimizer": "adam"},
        {"settings": {"lr": 0.05, "psi": "sqrt", "norm_scope": "tensor", "momentum_dtype": "bfloat16"}},
        {"evaluate_every": 4},
    ],
)
def test_every_way_of_training_resumes_with_the_same_bits(tmp_path, values):
    run(config(**values), tmp_path / "whole")
    for step in (10, 23, 39):  # at the end of an epoch, inside one, one step before the end
        with pytest.raises(Stop):
            run(config(**values), tmp_path / "cut", stop_at(step))
    run(config(**values), tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_run_killed_at_any_moment_ends_with_the_same_bits(tmp_path):
    what = config(task="digits", settings={"lr": 0.1}, epochs=6, checkpoint_every="5it")
    run(what, tmp_path / "whole")
    draw, kills = random.Random(0), 0
    for _ in range(20):
        process = start(what, tmp_path / "killed")
        lines = len(read_metrics(tmp_path / "killed").rows)
        while process.poll() is None and len(read_metrics(tmp_path / "killed").rows) <= lines + 5:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.1)  # inside a step, a line, a checkpoint: who knows
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:
            break
        kills += 1
        if kills == 3:
            run(what, tmp_path / "killed")
            break
    assert kills == 3
    assert_same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.skipif(not (CIFAR / "cifar-10-batches-bin").is_dir(), reason="no folder with the official binary files")
def test_augmentation_and_batch_norm_resume_with_the_same_bits(tmp_path):
    what = config(task="cifar10:tiny", steps=6, evaluate_every=100, data=CIFAR, batch_size=16, phase="tune")
    run(what, tmp_path / "whole")
    with pytest.raises(Stop):
        run(what, tmp_path / "cut", stop_at(4))
    run(what, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def cut(tmp_path: Path, step: int = 17) -> RunConfig:
    """A whole run, and one with checkpoints of the steps 12 and 15."""
    what = config()
    run(what, tmp_path / "whole")
    with pytest.raises(Stop):
        run(what, tmp_path / "cut", stop_at(step))
    return what


def test_the_last_two_are_kept_and_a_finished_run_keeps_none(tmp_path):
    what = cut(tmp_path)
    assert [path.name for path in checkpoints.found(tmp_path / "cut" / "checkpoints")] == ["step-12.pt", "step-15.pt"]
    with pytest.raises(Stop):
        run(what, tmp_path / "cut", stop_at(30))
    assert [path.name for path in checkpoints.found(tmp_path / "cut" / "checkpoints")] == ["step-24.pt", "step-27.pt"]
    run(what.model_copy(update={"keep_checkpoints": False}), tmp_path / "cut")
    assert not (tmp_path / "cut" / "checkpoints").exists()


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "text"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path, damage):
    what = cut(tmp_path)
    last = tmp_path / "cut" / "checkpoints" / "step-15.pt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"truncated": content[: len(content) * 2 // 3], "empty": b"", "flipped": content, "text": b"hello"}
    last.write_bytes(damaged[damage])
    with pytest.warns(checkpoints.DamagedCheckpoint, match=r"step-15\.pt is damaged"):
        run(what, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_with_both_damaged_it_starts_again(tmp_path):
    what = cut(tmp_path)
    for path in checkpoints.found(tmp_path / "cut" / "checkpoints"):
        path.write_bytes(b"PK")
    with pytest.warns(checkpoints.DamagedCheckpoint) as told:
        run(what, tmp_path / "cut")
    assert {word for w in told for word in ("step-12.pt", "step-15.pt") if word in str(w.message)} == {
        "step-12.pt",
        "step-15.pt",
    }
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_checkpoint_that_counts_missing_lines_is_not_used(tmp_path):
    what = cut(tmp_path)
    (tmp_path / "cut" / "metrics.jsonl").write_bytes(b"")
    with pytest.warns(checkpoints.DamagedCheckpoint, match="metrics that belong to it are not there"):
        run(what, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_half_a_line_at_the_end_is_cut(tmp_path):
    what = cut(tmp_path)
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    assert read_metrics(tmp_path / "cut").rows[-1]["kind"] == "train"
    run(what, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_no_single_flipped_bit_goes_unnoticed(tmp_path):
    state = {"model": {"w": torch.randn(300)}, "metrics_size": 3, "text": "abc", "list": [1.5, None, True]}
    content = checkpoints.save(tmp_path, 1, state).read_bytes()
    assert_same_bits(checkpoints.load(content), state)
    assert_same_bits(torch.load(io.BytesIO(content), weights_only=True), state)  # the checksum is in no one's way
    for place in range(0, 8 * len(content), 7):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError, match="checksum"):
            checkpoints.load(bytes(flipped))


def test_full_disk_ends_the_run_with_a_sentence_and_no_loss(tmp_path):
    what = cut(tmp_path)
    folder = tmp_path / "cut"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    size = before[folder / "checkpoints" / "step-15.pt"]
    process = start(what, folder, len(size) // 2)  # no file may grow beyond that: the next checkpoint does not fit
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 2, said
    assert said.startswith("no space is left to write")
    assert said.count("\n") == 1
    assert "step-18.pt" in said
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert set(after) == set(before)
    lines = folder / "metrics.jsonl"
    assert all(after[path] == before[path] for path in before if path != lines)
    known = checkpoints.load(size)["metrics_size"]
    assert after[lines][:known] == before[lines][:known]
    run(what, folder)
    assert_same(tmp_path / "whole", folder)


def test_a_disk_too_full_for_a_line_keeps_whole_lines(tmp_path):
    what = config(steps=40, checkpoint_every="1h")
    process = start(what, tmp_path, 5000)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 2, said
    assert "metrics.jsonl" in said
    content = (tmp_path / "metrics.jsonl").read_bytes()
    assert content.endswith(b"}\n")
    assert 4000 < len(content) <= 5000
    assert not (tmp_path / "result.json").exists()


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    atomic.write_json(path, {"value": float("nan"), "list": [float("inf"), 1]})
    assert json.loads(path.read_text()) == {"value": None, "list": [None, 1]}
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(LabError, match="no space is left to write"):
        atomic.write(path, b"new")
    assert path.read_bytes() != b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]


def test_every_generator_goes_back_to_where_it_was():
    device = torch.device("cpu")
    random.gauss(0, 1)  # leaves half a pair behind, which is state as well
    np.random.standard_normal()  # noqa: NPY002
    states = randomness.pack(device)

    def draws() -> list[float]:
        numbers = [random.gauss(0, 1), random.random(), *np.random.standard_normal(3)]  # noqa: NPY002
        return [*numbers, *torch.randn(3).tolist()]

    first = draws()
    randomness.unpack(states, device)
    assert draws() == first


def test_another_length_in_the_same_folder_is_refused(tmp_path):
    cut(tmp_path)
    with pytest.raises(LabError, match="40 steps, this one has 20"):
        run(config(epochs=2), tmp_path / "cut")
