"""A run's folder remembers what data the run had: other data is refused, the same data elsewhere is not."""

import shutil
from pathlib import Path

import pytest

from acmo.lab.config.run_options import RunConfig
from acmo.lab.errors import LabError
from acmo.lab.runs.run_folder import run
from tests.support.lab_images import write_cifar10


def config(data: Path, **options) -> RunConfig:
    settings = {"lr": 0.1}
    return RunConfig(
        task="cifar10:tiny", optimizer="acmo", settings=settings, data=data, batch_size=30, device="cpu", **options
    )


def test_a_finished_run_is_not_taken_for_one_on_other_data(tmp_path: Path):
    first = run(config(write_cifar10(tmp_path / "a"), steps=2), tmp_path / "run")
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "a", moved)
    assert run(config(moved, steps=2), tmp_path / "run") == first
    with pytest.raises(LabError, match="other data"):
        run(config(write_cifar10(tmp_path / "b", seed=1000), steps=2), tmp_path / "run")


def test_run_does_not_resume_with_other_data(tmp_path: Path):
    class Stop(Exception):
        pass

    def stop(progress):
        if progress.step >= 2:
            raise Stop

    data = write_cifar10(tmp_path / "a")
    with pytest.raises(Stop):
        run(config(data, steps=4, checkpoint_every="1it", log_every=1), tmp_path / "run", stop)
    assert list((tmp_path / "run" / "checkpoints").glob("*.pt"))
    with pytest.raises(LabError, match="other data"):
        run(config(write_cifar10(tmp_path / "b", seed=1000), steps=4, log_every=1), tmp_path / "run")
    assert run(config(data, steps=4, log_every=1), tmp_path / "run").steps == 4
