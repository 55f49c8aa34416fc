"""A run over several ranks does what one rank does with the same global batch."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from acmo.lab.config.run_options import RunConfig
from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.results.run_files import read_outcome
from acmo.lab.runs.run_folder import run
from tests.support.lab_runs import final_weights
from tests.support.lab_runs import task_config as config

RANK = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from acmo.lab.config import RunConfig
from acmo.lab.results.run_files import read_outcome
from acmo.lab.runs.run_folder import run
print(run(RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2])))
"""


def in_ranks(world: int, config: RunConfig, folder: Path) -> list[str]:
    """Run as torchrun would start it: a process a rank; their outputs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(world):
        env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, config.model_dump_json(), str(folder)],
                env={**os.environ, **{key: str(value) for key, value in env.items()}},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0] * world, outputs
    return [out for out, _ in outputs]


@pytest.mark.parametrize("task", ["Steady", pytest.param("Words", marks=pytest.mark.slow)])
def test_two_ranks_equal_one_with_the_same_global_batch(tmp_path, task):
    # 189 = 9 * 20 + 9, cut in two: the ranks' shares differ. With clipping, since a norm must be of the whole gradient.
    what = config(task, keep_checkpoints=True, max_grad_norm=0.5, checkpoint_every="15it", phase="final")
    outputs = in_ranks(2, what, tmp_path / "2")
    one = run(what, tmp_path / "1")
    assert outputs[0] == outputs[1]
    two = read_outcome(tmp_path / "2", None)
    assert two["test"] == pytest.approx(one.test, rel=1e-5)
    weights = [final_weights(tmp_path / name) for name in ("1", "2")]
    for key in weights[0]:
        torch.testing.assert_close(weights[0][key], weights[1][key], rtol=1e-5, atol=1e-6)
    lines = [[row["loss"] for row in read_metrics(tmp_path / name).rows] for name in ("1", "2")]
    assert lines[0] == pytest.approx(lines[1], rel=1e-5)


@pytest.mark.slow
def test_more_ranks_than_examples_leave_some_without_work(tmp_path):
    what = config("Steady", batch_size=1, steps=3, keep_checkpoints=True)
    in_ranks(2, what, tmp_path / "2")
    run(what, tmp_path / "1")
    weights = [final_weights(tmp_path / name) for name in ("1", "2")]
    for key in weights[0]:
        torch.testing.assert_close(weights[0][key], weights[1][key], rtol=1e-5, atol=1e-7)
