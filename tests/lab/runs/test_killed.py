"""Killed at every single file operation of a run, one after the other: it always ends with the same bits."""

import json
import os
import subprocess
import sys

import pytest

from acmo.lab import atomic
from acmo.lab.runs import checkpoints
from acmo.lab.runs.run_folder import run
from tests.support.lab_runs import Stop, assert_same, stop_at
from tests.support.lab_runs import checkpointed_config as config

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks of itself")

# Forks a child for each file operation, in which that one is the last: SIGKILL comes before it, or in the middle.
KILLER = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from acmo.lab.config import RunConfig
from acmo.lab.runs.run_folder import run

config, folder = RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2])
OPERATIONS = ("write", "fsync", "ftruncate", "replace", "unlink", "rmdir", "mkdir")


def armed(last):
    left = [last]
    for name in OPERATIONS:
        def patched(*args, _real=getattr(os, name), _name=name, **more):
            left[0] -= 1
            if left[0] == 0:
                if _name == "write":
                    _real(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return _real(*args, **more)
        setattr(os, name, patched)


def status_of(folder, last):
    child = os.fork()
    if child == 0:
        armed(last)
        run(config, folder)
        os._exit(0)
    return os.waitpid(child, 0)[1]


run(config, folder / "warm")  # what is imported and asked once is so before the forks
killed = []
for number in range(1, 1000):
    status = status_of(folder / str(number), number)
    if status == 0:
        break
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    killed.append(number)
    assert status_of(folder / str(number), -1) == 0
print(json.dumps(killed))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"optimizer": "acmo", "steps": 7, "evaluate_every": 3, "checkpoint_every": "2it"}, "finished"),
        ({"optimizer": "adam", "steps": 3, "checkpoint_every": "1it", "keep_checkpoints": False}, "finished"),
        ({"optimizer": "sgd-momentum", "settings": {"lr": 1e38}, "steps": 7, "checkpoint_every": "1it"}, "diverged"),
    ],
    ids=["kept", "not-kept", "diverged"],
)
def test_run_killed_at_each_file_operation_ends_with_same_bits(tmp_path, values, status):
    what = config(**values)
    assert run(what, tmp_path / "whole").status == status
    command = [sys.executable, "-c", KILLER, what.model_dump_json(), str(tmp_path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert len(numbers) > 12  # folders, lines, checkpoints and files of JSON with their syncs and renames
    for number in numbers:
        if not what.keep_checkpoints:  # killed between the result and their removal, they stay
            checkpoints.remove(tmp_path / str(number) / "checkpoints")
        assert_same(tmp_path / "whole", tmp_path / str(number))
        assert not list((tmp_path / str(number)).rglob("*.part"))


def test_half_written_files_are_removed_by_the_next_start(tmp_path):
    what = config(steps=9)
    with pytest.raises(Stop):
        run(what, tmp_path, stop_at(6))
    parts = [tmp_path / ".result.json.123.part", tmp_path / "checkpoints" / ".step-6.pt.123.part"]
    for part in parts:
        part.write_bytes(b"half")
    run(what, tmp_path)
    assert not any(part.exists() for part in parts)


def test_sweeping_leaves_whole_files_alone(tmp_path):
    (tmp_path / ".lock").write_text("")
    (tmp_path / "a.part").write_text("")
    atomic.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a.part"]
    atomic.sweep(tmp_path / "nowhere")
