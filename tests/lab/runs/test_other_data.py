"""A run's folder remembers what data the run had: other data is refused, the same data elsewhere is not."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from acmo.lab.config.run_options import RunConfig
from acmo.lab.errors import LabError
from acmo.lab.runs.run_folder import run


def cifar(folder: Path, seed: int) -> Path:
    """A hundred images of noise, in CIFAR-10's binary form."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for name, n in (("data_batch_1.bin", 100), ("test_batch.bin", 20)):
        labels = (np.arange(n, dtype=np.uint8) % 10)[:, None]
        np.hstack([labels, rng.integers(0, 256, (n, 3072), dtype=np.uint8)]).tofile(folder / name)
    return folder


def config(data: Path, **options) -> RunConfig:
    settings = {"lr": 0.1}
    return RunConfig(
        task="cifar10:tiny", optimizer="acmo", settings=settings, data=data, batch_size=30, device="cpu", **options
    )


def test_a_finished_run_is_not_taken_for_one_on_other_data(tmp_path: Path):
    first = run(config(cifar(tmp_path / "a", 0), steps=2), tmp_path / "run")
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "a", moved)
    assert run(config(moved, steps=2), tmp_path / "run") == first
    with pytest.raises(LabError, match="other data"):
        run(config(cifar(tmp_path / "b", 1), steps=2), tmp_path / "run")


def test_run_does_not_resume_with_other_data(tmp_path: Path):
    class Stop(Exception):
        pass

    def stop(progress):
        if progress.step >= 2:
            raise Stop

    data = cifar(tmp_path / "a", 0)
    with pytest.raises(Stop):
        run(config(data, steps=4, checkpoint_every="1it", log_every=1), tmp_path / "run", stop)
    assert list((tmp_path / "run" / "checkpoints").glob("*.pt"))
    with pytest.raises(LabError, match="other data"):
        run(config(cifar(tmp_path / "b", 1), steps=4, log_every=1), tmp_path / "run")
    assert run(config(data, steps=4, log_every=1), tmp_path / "run").steps == 4
