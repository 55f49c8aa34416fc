"""The examples run as a reader would run them, large ones at a tiny size, and resume from their own checkpoints."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}; see acmo[dev-all]")


def run(script: str, *options: str, cwd: Path) -> str:
    """What the script prints; from another folder, offline."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / script), *options]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(line: str) -> list[float]:
    """The numbers in a row of a table; of percentages what stands before the sign."""
    return [float(word.rstrip("%")) for word in line.split() if re.fullmatch(r"-?[\d.]+(e-?\d+)?%?", word)]


HF = ("hf_trainer.py", "--steps", "40", "--width", "32", "--layers", "2", "--output", "out")
LIGHTNING = ("lightning.py", "--epochs", "4", "--output", "out")


@pytest.mark.slow
@needs("transformers", "accelerate")
def test_hf_trainer_learns_and_resumed_prints_the_very_same(tmp_path: Path):
    lines = run(*HF, cwd=tmp_path).splitlines()
    words = lines[-1].split()
    before, after = float(words[words.index("untrained,") - 1]), float(words[words.index("untrained,") + 1])
    assert after < 0.7 * before
    assert words[-2:] == ["40", "steps"]
    assert (tmp_path / "out" / "checkpoint-20" / "optimizer.pt").exists()
    shutil.rmtree(tmp_path / "out" / "checkpoint-40")  # as if it had been stopped on the way
    resumed = run(*HF, "--resume", cwd=tmp_path).splitlines()
    assert resumed == lines[-len(resumed) :]
    assert len(resumed) == 6  # of ten lines with losses, the five after checkpoint 20; and the last


@pytest.mark.slow
@needs("lightning", "sklearn")
def test_lightning_example_learns_and_resumes_to_the_same_end(tmp_path: Path):
    last = run(*LIGHTNING, cwd=tmp_path).splitlines()[-1]
    assert "after 4 epochs, 92 steps" in last
    assert float(last.split()[-1].rstrip("%")) > 85
    resume = ("--resume", str(tmp_path / "out" / "epoch=1.ckpt"))
    assert run(*LIGHTNING, *resume, cwd=tmp_path).splitlines()[-1] == last


@pytest.mark.slow
@needs("sklearn", "rich")
def test_acmo_resumes_a_training_begun_with_sgd(tmp_path: Path):
    lines = run("switch_from_sgd.py", cwd=tmp_path).splitlines()
    rows = [numbers(line)[1:] for line in lines if re.match(r" +\d", line)]
    before, after = [row[0] for row in rows if len(row) == 1], [row for row in rows if len(row) == 4]
    assert (len(before), len(after)) == (4, 6)
    sgd, acmo, same_lr, no_moment = zip(*after, strict=True)
    assert acmo[0] < before[-1]  # the very next epoch
    assert acmo[-1] < 0.2 * before[-1]
    assert acmo[-1] < same_lr[-1]  # the rate had to be raised
    assert acmo[0] < no_moment[0]  # and the moment was worth taking
    assert sgd[-1] < 0.5 * before[-1]
    assert min(numbers(lines[-1])) > 90  # chance is 10 %


@pytest.mark.slow
@needs("sklearn", "rich")
def test_angles_distinguish_small_from_large_learning_rates(tmp_path: Path):
    lines = run("angles.py", cwd=tmp_path).splitlines()
    assert sum(len(re.findall("[▁-█]", line)) for line in lines) == 9 * 46
    rows = [numbers(line) for line in lines[-3:]]
    assert [row[0] for row in rows] == [0.01, 0.1, 0.3]
    for _, loss, agree, down, beta_hat, least in rows:
        assert loss < math.log(10)
        assert -1 <= agree <= 1
        assert math.sqrt(1 - 0.9**2) - 1e-3 <= least <= down <= 1
        assert beta_hat > 0
    small, large = rows[0][2], rows[2][2]
    assert small > 0.2 + large  # on the slope; on the floor of the valley


@pytest.mark.slow
def test_both_classifiers_beat_chance_and_the_first_part_learns(tmp_path: Path):
    lines = run("text_classifier.py", cwd=tmp_path).splitlines()
    largest, scratch, tuned = (numbers(line)[-1] for line in lines[-3:])
    assert [line.split()[0] for line in lines[-3:]] == ["the", "from", "fine-tuned"]
    assert min(scratch, tuned) > largest + 15
    (matching,) = re.findall(r"loss ([\d.]+); by chance", "\n".join(lines))
    assert float(matching) < 0.5 * math.log(64)


def test_the_table_of_examples_has_every_example():
    listed = re.findall(r"^\| \[`?([\w./]+)`?\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py" or (path / "README.md").exists()}
    assert sorted(listed) == sorted(there)
