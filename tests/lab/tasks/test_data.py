"""Data from folders and from the web: read exactly, and what is missing or damaged is named."""

import gzip
import hashlib
import io
import shutil
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch

from acmo.lab.errors import LabError
from acmo.lab.tasks import downloads, find_task
from acmo.lab.tasks.cifar import Cifar10, Cifar100
from acmo.lab.tasks.fashion_mnist import FashionMNIST
from tests.support.lab_images import idx, records, write_cifar10
from tests.support.paths import DATA as REAL


@pytest.fixture
def cifar10(tmp_path) -> Path:
    """A folder with five times 20 records to train on and 10 to test."""
    return write_cifar10(tmp_path / "cifar-10-batches-bin")


def test_records_are_read_byte_by_byte_whatever_their_number(cifar10):
    for data in (cifar10, cifar10.parent):
        x, y = find_task("cifar10", data).examples("train")
        raw = b"".join((cifar10 / f"data_batch_{n}.bin").read_bytes() for n in range(1, 6))
        assert (x.shape, y.tolist()) == ((100, 3, 32, 32), [i % 10 for i in range(100)])
        for i in (0, 31, 99):
            record = raw[i * 3073 : (i + 1) * 3073]
            assert record[0] == int(y[i])
            assert x[i].numpy().tobytes() == record[1:]


def test_of_the_two_labels_of_cifar100_the_fine_one_is_read(tmp_path):
    (tmp_path / "SUBSET").touch()
    for name, labels in (("train", [99, 3, 50] * 20), ("test", [5])):
        (tmp_path / f"{name}.bin").write_bytes(records(labels, 2))
    task = find_task("cifar100", tmp_path)
    task.prepare()
    assert task.examples("train")[1].tolist() == [99, 3, 50] * 20
    assert task.examples("test")[1].tolist() == [5]


@pytest.mark.skipif(not REAL.is_dir(), reason="no folder with the official binary files")
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_real_cifar_is_balanced_and_normalised(name, classes):
    task = find_task(name, REAL)
    task.prepare()
    (x, y), test = task.examples("train"), task.examples("test")
    assert (len(x), len(test[0])) == (10_000, 2_000)
    assert y.bincount().tolist() == [10_000 // classes] * classes
    assert [len(part) for part in task._split] == [9_000, 1_000]
    inputs = task.inputs(x)
    assert float(inputs.mean((0, 2, 3)).abs().max()) < 0.05
    assert float((inputs.std((0, 2, 3)) - 1).abs().max()) < 0.05
    batch, labels = task.collate(task.batches(0)[0], 0)
    assert batch.shape == (64, 3, 32, 32)
    assert batch.dtype == torch.float32
    assert torch.equal(labels, y[task.batches(0)[0]])


def test_tiny_takes_the_first_of_every_class_of_a_large_set(cifar10, monkeypatch):
    task = find_task("cifar10:tiny", cifar10)
    monkeypatch.setattr(task, "preset", task.preset.__class__("resnet8", task.recipe, images=20))
    x, y = task.examples("train")
    assert y.bincount().tolist() == [2] * 10
    assert torch.equal(x, find_task("cifar10:small", cifar10).examples("train")[0][:20])
    assert len(task.examples("test")[1]) == 10


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "data_batch_2.bin").write_bytes(b"x" * 5000), r"data_batch_2\.bin is damaged"),
        (lambda folder: (folder / "data_batch_2.bin").write_bytes(b""), r"data_batch_2\.bin is damaged"),
        (lambda folder: (folder / "test_batch.bin").write_bytes(b"x" * 4000), r"test_batch\.bin is damaged"),
        (lambda folder: (folder / "test_batch.bin").unlink(), "binary version of cifar10"),
        (lambda folder: (folder / "data_batch_1.bin").write_bytes(records([10] * 3)), "a label is 10"),
        (lambda folder: [path.unlink() for path in folder.glob("data_batch*")], r"data_batch_1\.bin cannot be read"),
    ],
)
def test_damaged_data_is_named_before_training(cifar10, damage, words):
    damage(cifar10)
    with pytest.raises(LabError, match=words):
        find_task("cifar10", cifar10).prepare()


def test_the_pickled_version_is_recognised_and_refused(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}")
    with pytest.raises(LabError, match="pickled version, which is not read"):
        find_task("cifar10", tmp_path).prepare()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        self.server.asked.append(self.path)


@pytest.fixture
def site(tmp_path):
    """A web server of our own with the files of a folder; its `asked` lists the requests."""
    (tmp_path / "www").mkdir()

    def handler(*args):
        return Quiet(*args, directory=str(tmp_path / "www"))

    with HTTPServer(("127.0.0.1", 0), handler) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.folder, server.url = tmp_path / "www", f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ACMO_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


def serve(site, name: str, content: bytes) -> tuple[str, str]:
    (site.folder / name).write_bytes(content)
    return f"{site.url}/{name}", hashlib.md5(content).hexdigest()


def test_of_many_that_want_a_file_one_downloads_it(site, cache):
    url, md5 = serve(site, "large.bin", bytes(2_000_000))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: downloads.fetch(url, md5), range(4)))
    assert found == [cache / "large.bin"] * 4
    assert site.asked == ["/large.bin"]


def archive(folder: Path, *more: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, folder.name)
        for name in more:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return buffer.getvalue()


def test_an_archive_is_downloaded_unpacked_and_asked_for_once(site, cache, cifar10, monkeypatch):
    url, md5 = serve(
        site, "cifar-10-binary.tar.gz", archive(cifar10, "../escaped.bin", "/tmp/escaped.bin", "other/x.bin")
    )
    monkeypatch.setattr(Cifar10, "url", url)
    monkeypatch.setattr(Cifar10, "md5", md5)
    task = find_task("cifar10")
    task.prepare()
    local = find_task("cifar10", cifar10)
    assert all(torch.equal(a, b) for a, b in zip(task.examples("train"), local.examples("train"), strict=True))
    assert {path.name for path in (cache / "cifar-10-binary").iterdir()} == {path.name for path in cifar10.iterdir()}
    assert not any("escaped" in path.name for path in cache.parent.rglob("*"))
    find_task("cifar10").prepare()
    assert len(site.asked) == 1


def test_archive_with_another_checksum_is_refused_and_deleted(site, cache, cifar10, monkeypatch):
    url, _ = serve(site, "cifar-100-binary.tar.gz", archive(cifar10))
    monkeypatch.setattr(Cifar100, "url", url)
    with pytest.raises(LabError, match=f"its md5 is not {Cifar100.md5}"):
        find_task("cifar100").prepare()
    assert not list(cache.glob("cifar*"))


def test_unreachable_site_gives_a_sentence_that_names_data(cache, site, monkeypatch):
    monkeypatch.setattr(Cifar10, "url", f"{site.url}/not-there.tar.gz")
    with pytest.raises(LabError, match=r"could not be downloaded .*404.*--data"):
        find_task("cifar10").prepare()
    monkeypatch.setattr(Cifar10, "url", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    with pytest.raises(LabError, match="could not be downloaded"):
        find_task("cifar10").prepare()


def test_an_archive_that_is_no_archive_is_named(cache, site):
    url, md5 = serve(site, "thing.tar.gz", b"this is no archive")
    with pytest.raises(LabError, match=r"thing\.tar\.gz could not be unpacked"):
        downloads.unpacked(url, md5, ".*")


def test_the_official_checksums_are_those_of_their_page():
    assert (Cifar10.md5, Cifar100.md5) == ("c32a1d4ab5d03f1284b67883e8d87530", "03b5dce01913d631647c71ecec9e9cb8")


@pytest.fixture
def fashion(tmp_path) -> dict[str, bytes]:
    noise = np.random.default_rng(0)
    files = {}
    for prefix, count in (("train", 100), ("t10k", 20)):
        files[f"{prefix}-images-idx3-ubyte"] = idx(noise.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        files[f"{prefix}-labels-idx1-ubyte"] = idx(np.arange(count, dtype=np.uint8) % 10)
    return files


@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_mnist_is_read_from_a_folder_gzipped_or_not(tmp_path, fashion, zipped):
    for name, content in fashion.items():
        path = tmp_path / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
    task = find_task("fashion-mnist", tmp_path)
    task.prepare()
    x, y = task.examples("train")
    assert (x.shape, y.tolist()) == ((100, 1, 32, 32), [i % 10 for i in range(100)])
    assert x[3, 0, 2:30, 2:30].numpy().tobytes() == fashion["train-images-idx3-ubyte"][16 + 3 * 784 : 16 + 4 * 784]
    assert int(x[:, :, :2].max()) == int(x[:, :, :, 30:].max()) == 0
    assert task.model()(task.collate(task.batches(0)[0][:2], 0)[0]).shape == (2, 10)


def test_fashion_mnist_is_downloaded_with_checksums(site, cache, fashion, monkeypatch):
    sums = {name: serve(site, f"{name}.gz", gzip.compress(content))[1] for name, content in fashion.items()}
    monkeypatch.setattr(FashionMNIST, "site", site.url)
    with pytest.raises(LabError, match="its md5 is not"):
        find_task("fashion-mnist").prepare()
    monkeypatch.setattr(FashionMNIST, "files", sums)
    find_task("fashion-mnist").prepare()
    assert find_task("fashion-mnist").examples("test")[0].shape == (20, 1, 32, 32)
    assert len(site.asked) == 5  # the refused one, then the four


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train-images-idx3-ubyte.gz", b"\x1f\x8b\x08\x00nonsense", "is damaged"),
        ("train-images-idx3-ubyte", idx(np.zeros((100, 28, 28), np.uint8))[:-1], "cut short"),
        ("train-images-idx3-ubyte", b"\x00\x00", "not an idx file"),
        ("train-labels-idx1-ubyte", idx(np.full(100, 10, np.uint8)), "is damaged"),
        ("train-labels-idx1-ubyte", idx(np.zeros(99, np.uint8)), "has 99 train images"),
        ("t10k-labels-idx1-ubyte", None, "has no fashion-mnist with t10k-labels-idx1-ubyte"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, fashion, name, content, words):
    for other, good in fashion.items():
        if other != name.removesuffix(".gz"):
            (tmp_path / other).write_bytes(good)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(LabError, match=words):
        find_task("fashion-mnist", tmp_path).prepare()


def test_damaged_test_label_is_reported_before_training(cifar10):
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
def test_damaged_fashion_mnist_is_reported_before_training(tmp_path, fashion, content):
    for name, good in fashion.items():
        (tmp_path / name).write_bytes(content if name == "t10k-labels-idx1-ubyte" else good)
    with pytest.raises(LabError, match="damaged"):
        find_task("fashion-mnist", tmp_path).prepare()
