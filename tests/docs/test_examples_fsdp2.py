"""examples/fsdp2.py under torchrun: it learns, a killed rank ends the job, its last checkpoint is as good as new."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.paths import ROOT
from tests.support.ranks import run_ranks

SCRIPT = ROOT / "examples" / "fsdp2.py"
STEPS, EVERY = 60, 20
OPTIONS = ("--steps", STEPS, "--save-every", EVERY, "--print-every", 10, "--width", 32, "--depth", 1)

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds torchrun's workers in /proc")


def command(folder: Path) -> list[str]:
    return [str(word) for word in (SCRIPT, *OPTIONS, "--folder", folder)]


def launch(ranks: int, folder: Path) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    out = subprocess.PIPE
    return subprocess.Popen([*torchrun, *command(folder)], env=env, text=True, stdout=out, stderr=out)


def run(ranks: int, folder: Path) -> list[str]:
    """What it prints under torchrun."""
    with launch(ranks, folder) as job:
        out, err = job.communicate(timeout=120)
    assert job.returncode == 0, out + err
    return out.splitlines()


def on_a_rank(words: list[str], port: int) -> str:
    """The same without torchrun, which costs seconds: it only sets the environment, and so does `run_ranks`."""
    dist.destroy_process_group()  # the script makes its own
    os.environ["MASTER_PORT"] = str(port)
    sys.argv = words
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(words[0], run_name="__main__")
    return out.getvalue()


def run_quickly(ranks: int, folder: Path) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return run_ranks(ranks, on_a_rank, command(folder), port)[0].splitlines()


def worker(job: subprocess.Popen[str], rank: int) -> int:
    """The process id of a rank: torchrun is its parent, and tells it its rank."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == job.pid and f"RANK={rank}" in (stat.parent / "environ").read_text().split("\0"):
                return int(stat.parent.name)
        except OSError:  # ended meanwhile
            continue
    raise AssertionError(f"torchrun has no worker of rank {rank}")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run_quickly(2, tmp_path_factory.mktemp("unbroken"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, str, Path]:
    """A job of which rank 1 is killed right after the first checkpoint: exit code, output, errors, and the folder."""
    folder = tmp_path_factory.mktemp("killed")
    with launch(2, folder) as job:
        assert job.stdout is not None
        before, victim = [job.stdout.readline()], worker(job, 1)
        while before[-1] and not before[-1].startswith("saved"):
            before.append(job.stdout.readline())
        os.kill(victim, signal.SIGKILL)
        out, err = job.communicate(timeout=120)
    return job.returncode, "".join(before) + out, err, folder


def losses(lines: list[str]) -> dict[int, float]:
    found = (re.match(r"step +(\d+)  loss (\S+)", line) for line in lines)
    return {int(match[1]): float(match[2]) for match in found if match}


def test_it_learns(unbroken: list[str]):
    loss = losses(unbroken)
    assert list(loss) == list(range(10, STEPS + 1, 10))
    assert loss[STEPS] < 0.5 * loss[10]
    assert unbroken[0] == "2 ranks, from scratch"
    assert float(unbroken[-1].split()[-1].rstrip("%")) > 60


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_with_torchruns_error(killed: tuple[int, str, str, Path]):
    code, out, err, folder = killed
    assert code != 0
    assert "ChildFailedError" in err
    assert "rank      : 1" in err
    assert "Signal 9 (SIGKILL)" in err
    assert "after" not in out.splitlines()[-1]  # it did not get to its end
    assert (folder / f"step-{EVERY:08d}").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 1])
def test_killed_job_resumes_to_the_end_of_an_unbroken_run(
    ranks: int, unbroken: list[str], killed: tuple[int, str, str, Path], tmp_path: Path
):
    folder = tmp_path / "run"
    shutil.copytree(killed[3], folder)
    (folder / f"step-{STEPS + 1:08d}.part").mkdir()  # what a job leaves that dies while it saves: not to be resumed
    for later in range(2 * EVERY, STEPS, EVERY):  # in case the kill came late
        shutil.rmtree(folder / f"step-{later:08d}", ignore_errors=True)
    lines = (run if ranks == 2 else run_quickly)(ranks, folder)
    assert lines[0].startswith(f"{ranks} ranks, from step {EVERY} ")
    after = {step: loss for step, loss in losses(unbroken).items() if step > EVERY}
    if ranks == 2:
        assert losses(lines) == after
        assert lines[-1] == unbroken[-1]
    else:
        assert losses(lines) == pytest.approx(after, rel=1e-3)
    assert sorted(path.name for path in folder.glob("step-*[0-9]")) == ["step-00000040", "step-00000060"]


def test_without_torchrun_it_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", ["fsdp2.py"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "start it with torchrun" in capsys.readouterr().err
