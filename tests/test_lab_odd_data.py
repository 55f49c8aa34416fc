"""Data that is incomplete where nobody looks until the end of a training."""

import gzip
import shutil

import numpy as np
import pytest
import test_lab_data
from test_lab_data import idx, records

from acmo.lab.errors import LabError
from acmo.lab.tasks import find_task

cifar10, fashion = test_lab_data.cifar10, test_lab_data.fashion  # fixtures
PICKLED = {"cifar10": "cifar-10-batches-py/data_batch_1", "cifar100": "cifar-100-python/train"}


def test_a_damaged_label_of_the_test_data_is_said_before_training(cifar10):
    (cifar10 / "test_batch.bin").write_bytes(records([3, 200]))
    with pytest.raises(LabError, match=r"test_batch\.bin is damaged: a label is 200"):
        find_task("cifar10", cifar10).prepare()


def test_a_missing_file_is_named_not_stumbled_over(tmp_path):
    (tmp_path / "test.bin").write_bytes(records([5], 2))
    with pytest.raises(LabError, match=r"train\.bin cannot be read: No such file"):
        find_task("cifar100", tmp_path).prepare()


def test_an_incomplete_cache_is_named(cifar10, tmp_path, monkeypatch):
    shutil.move(cifar10, tmp_path / "cache" / "cifar-10-binary")
    (tmp_path / "cache" / "cifar-10-binary" / "test_batch.bin").unlink()
    monkeypatch.setenv("ACMO_DATA", str(tmp_path / "cache"))
    with pytest.raises(LabError, match=r"test_batch\.bin cannot be read"):
        find_task("cifar10").prepare()


@pytest.mark.parametrize(
    ("name", "inside"), [("cifar10", "cifar-10-batches-py/data_batch_1"), ("cifar100", "cifar-100-python/train")]
)
def test_the_pickled_version_is_recognised_in_its_own_folder_too(tmp_path, name, inside):
    (tmp_path / inside).parent.mkdir()
    (tmp_path / inside).write_bytes(b"\x80\x02}")
    with pytest.raises(LabError, match="pickled version, which is not read"):
        find_task(name, tmp_path).prepare()


@pytest.mark.parametrize(
    "content", [b"", gzip.compress(b"x"), idx(np.full(20, 99, np.uint8))], ids=["empty", "zipped", "labels of 99"]
)
def test_damaged_test_data_of_fashion_mnist_is_said_before_training(tmp_path, fashion, content):
    for name, good in fashion.items():
        (tmp_path / name).write_bytes(content if name == "t10k-labels-idx1-ubyte" else good)
    with pytest.raises(LabError, match="damaged"):
        find_task("fashion-mnist", tmp_path).prepare()
