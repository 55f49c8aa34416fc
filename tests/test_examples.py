"""The examples run as a reader would run them, at a tiny size, and resume from their own checkpoints."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}; they come with acmo[dev]")


def run(script: str, *options: str, cwd: Path) -> str:
    """What the script prints; from another folder, offline."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / script), *options]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


HF = ("hf_trainer.py", "--steps", "40", "--width", "32", "--layers", "2", "--output", "out")
LIGHTNING = ("lightning.py", "--epochs", "4", "--output", "out")


@needs("transformers", "accelerate")
def test_hf_trainer_learns(tmp_path: Path):
    words = run(*HF, cwd=tmp_path).split()
    before, after = float(words[words.index("untrained,") - 1]), float(words[words.index("untrained,") + 1])
    assert after < 0.7 * before
    assert words[-2:] == ["40", "steps"]
    assert (tmp_path / "out" / "checkpoint-20" / "optimizer.pt").exists()


@needs("lightning", "sklearn")
def test_lightning_runs_under_the_packages_own_name_and_learns(tmp_path: Path):
    last = run(*LIGHTNING, cwd=tmp_path).splitlines()[-1]
    assert "after 4 epochs, 92 steps" in last
    assert float(last.split()[-1].rstrip("%")) > 85


@pytest.mark.slow
@needs("transformers", "accelerate")
def test_hf_trainer_resumed_prints_the_very_same(tmp_path: Path):
    lines = run(*HF, cwd=tmp_path).splitlines()
    shutil.rmtree(tmp_path / "out" / "checkpoint-40")  # as if it had been stopped on the way
    resumed = run(*HF, "--resume", cwd=tmp_path).splitlines()
    assert resumed == lines[-len(resumed) :]
    assert len(resumed) == 6  # of ten lines with losses, the five after checkpoint 20; and the last


@pytest.mark.slow
@needs("lightning", "sklearn")
def test_lightning_resumed_ends_with_the_very_same(tmp_path: Path):
    last = run(*LIGHTNING, cwd=tmp_path).splitlines()[-1]
    resume = ("--resume", str(tmp_path / "out" / "epoch=1.ckpt"))
    assert run(*LIGHTNING, *resume, cwd=tmp_path).splitlines()[-1] == last
