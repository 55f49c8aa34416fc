"""Data that is not complete is refused or named; its fingerprint tells it from other data, wherever it lies."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from acmo.lab.errors import LabError
from acmo.lab.tasks import data_files, find_task
from acmo.lab.tasks.cifar import Cifar10
from acmo.lab.tasks.data_files import fingerprint_files, hash_file
from tests.support.lab_command import run_command, sentence
from tests.support.lab_images import idx, records, write_cifar10
from tests.support.lab_runs import TASKS
from tests.support.lab_translation import corpus
from tests.support.paths import DATA

acmo = run_command
RECORD = 3073


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    return write_cifar10(tmp_path / "cifar-10-batches-bin")


def trained(acmo, data: Path, *more: str) -> dict:
    """What ``config.json`` says after one step."""
    short = ["--steps", "1", "--batch-size", "8", "--device", "cpu", "--lr", "0.1", "--out", "out", "-q"]
    code, out, err = acmo("train", "cifar10:tiny", "--data", str(data), *short, *more)
    assert code == 0, err
    return json.loads((Path(out.splitlines()[-1].partition("results: ")[2]) / "config.json").read_text())


def test_missing_batch_is_refused(acmo, cifar10):
    (cifar10 / "data_batch_4.bin").unlink()
    for command in (["train", "cifar10:tiny"], ["compare", "cifar10:tiny", "--optimizers", "sgd"]):
        assert "data_batch_4.bin cannot be read" in sentence(acmo(*command, "--data", str(cifar10)))


@pytest.mark.parametrize("name", ["data_batch_2.bin", "data_batch_5.bin", "test_batch.bin"])
def test_file_cut_at_a_record_boundary_is_refused(acmo, cifar10, name):
    content = (cifar10 / name).read_bytes()
    (cifar10 / name).write_bytes(content[: -1 * RECORD])
    found = sentence(acmo("train", "cifar10:tiny", "--data", str(cifar10)))
    assert "cut short" in found
    assert f"{name}: {len(content) // RECORD - 1}" in found


def test_file_cut_by_all_its_classes_is_refused(cifar10):
    path = cifar10 / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[: 10 * RECORD])
    with pytest.raises(LabError, match=r"data_batch_3\.bin: 10"):
        find_task("cifar10", cifar10).prepare()


def test_uneven_subset_needs_a_file_that_says_so(cifar10):
    (cifar10 / "data_batch_3.bin").write_bytes(records([1, 2, 3]))
    (cifar10 / "SUBSET").touch()
    task = find_task("cifar10", cifar10)
    task.prepare()
    assert task.facts()["subset"].startswith("a subset of the official data, 83 of 50,000 train images")


def test_even_subset_is_used_and_named(acmo, cifar10, capsys):
    stored = trained(acmo, cifar10)["data"]
    assert stored["subset"] == (
        "a subset of the official data, 100 of 50,000 train images and 10 of 10,000 test images"
    )
    find_task("cifar10", cifar10).prepare()
    assert "cifar10: a subset of the official data, 100 of 50,000" in capsys.readouterr().err


def test_complete_data_is_not_called_a_subset(cifar10, monkeypatch):
    monkeypatch.setattr(Cifar10, "official", {"train": 100, "test": 10})
    task = find_task("cifar10", cifar10)
    task.prepare()
    assert "subset" not in task.facts()


def test_fingerprint_is_part_of_the_run(acmo, cifar10, tmp_path):
    first = trained(acmo, cifar10)
    moved = tmp_path / "moved"
    shutil.copytree(cifar10, moved, copy_function=shutil.copyfile)
    for path in moved.iterdir():
        os.utime(path, (0, 0))
    assert trained(acmo, moved)["config"]["fingerprint"] == first["config"]["fingerprint"]
    folders = Path("out/runs/cifar10-tiny/acmo")
    assert len(list(folders.iterdir())) == 1  # neither the path nor the times count
    content = bytearray((moved / "test_batch.bin").read_bytes())
    content[100] ^= 1
    (moved / "test_batch.bin").write_bytes(content)
    other = trained(acmo, moved)
    assert other["config"]["fingerprint"] == other["data"]["fingerprint"] != first["config"]["fingerprint"]
    assert len(list(folders.iterdir())) == 2
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    assert [(file["name"], len(file["sha256"])) for file in other["data"]["files"]] == [(name, 64) for name in names]
    assert sum(file["bytes"] for file in other["data"]["files"]) == 110 * RECORD


def test_comparison_with_other_data_is_another_one(acmo, cifar10):
    quick = ["--optimizers", "sgd", "--try", "sgd.lr=0.1", "--seeds", "1", "--steps", "1", "--batch-size", "8"]
    command = ["compare", "cifar10:tiny", "--data", str(cifar10), "--workers", "1", "--out", "out", "-q", *quick]
    assert acmo(*command)[0] == 0
    head = json.loads(Path("out/comparison.json").read_text())
    run = json.loads(next(Path("out/runs").glob("*/*/*/config.json")).read_text())
    data = head["data"]["cifar10:tiny"]
    assert data["fingerprint"] == run["config"]["fingerprint"] == run["data"]["fingerprint"]
    assert data["subset"].startswith("a subset")
    (cifar10 / "data_batch_1.bin").write_bytes(records([i % 10 for i in range(20)], seed=77))
    code, _, err = acmo(*command)
    assert (code, err.splitlines()[-1]) == (
        2,
        "acmo: out holds a comparison on other data; choose another folder with --out",
    )


def test_hash_of_a_large_file_is_cached_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("ACMO_DATA", str(tmp_path / "cache"))
    path = tmp_path / "large"
    path.write_bytes(bytes(1 << 20))
    first = hash_file(path)
    (entry,) = (tmp_path / "cache" / "hashes").iterdir()
    state, _ = json.loads(entry.read_bytes())
    entry.write_text(json.dumps([state, "f" * 64]))
    assert hash_file(path) == "f" * 64  # read from the cache
    status = path.stat()
    path.write_bytes(bytes(100) + b"\1" + bytes((1 << 20) - 101))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the same size and the same time
    second = hash_file(path)
    assert second not in ("f" * 64, first)
    entry.write_bytes(b"damaged")
    assert hash_file(path) == second
    monkeypatch.setattr(data_files, "cache", lambda: Path("/dev/null"))
    assert hash_file(path) == second


def test_fingerprint_depends_on_names_sizes_and_contents(tmp_path):
    def written(folder: str, **contents: bytes) -> list[Path]:
        (tmp_path / folder).mkdir()
        for name, content in contents.items():
            (tmp_path / folder / name).write_bytes(content)
        return [tmp_path / folder / name for name in contents]

    first = fingerprint_files(written("a", x=b"12", y=b"3"))
    assert first == fingerprint_files(written("b", x=b"12", y=b"3"))
    others = [written("c", x=b"1", y=b"23"), written("d", z=b"12", y=b"3"), written("e", x=b"12")]
    assert len({first, *map(fingerprint_files, others)}) == 4


def test_every_task_has_a_fingerprint(tmp_path):
    digits = find_task("digits").fingerprint()
    assert digits == find_task("digits", seed=3).fingerprint()
    texts = [find_task("multi30k-ende:tiny", corpus(tmp_path / str(n), train=n)).fingerprint() for n in (50, 60)]
    found = [digits, *texts, find_task(f"{TASKS}:Blobs").fingerprint()]
    assert len({*found}) == 4
    assert all(len(one) == 16 for one in found)


def test_text_that_is_not_the_official_one_is_named(tmp_path):
    task = find_task("multi30k-ende:tiny", corpus(tmp_path, train=50))
    assert task.subset == (
        "not the official data: train has 50 pairs instead of 29,000, val has 20 pairs instead of 1,014, "
        "test_2016_flickr has 20 pairs instead of 1,000"
    )


def test_uneven_fashion_mnist_is_refused(tmp_path):
    for prefix, count in (("train", 100), ("t10k", 19)):
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(idx(np.zeros((count, 28, 28), np.uint8)))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    with pytest.raises(LabError, match="19 test images where the official data has 10,000"):
        find_task("fashion-mnist", tmp_path).prepare()


@pytest.mark.skipif(not DATA.is_dir(), reason="no folder with real data")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cifar10", "a subset of the official data, 10,000 of 50,000 train images and 2,000 of 10,000 test images"),
        ("cifar100", "a subset of the official data, 10,000 of 50,000 train images and 2,000 of 10,000 test images"),
        ("multi30k-ende", None),
    ],
)
def test_real_data_is_complete_or_called_a_subset(name, said):
    assert find_task(name, DATA / "multi30k" if said is None else DATA).subset == said
