"""One root for the data of all tasks: below ``--data`` or ``$ACMO_DATA``, or a task's own folder."""

import pytest

from acmo.lab.tasks import TASKS, find_task
from tests.support.lab_command import run_command, sentence
from tests.support.lab_images import write_cifar10

acmo = run_command
FOLDERS = {
    "cifar10": "cifar-10-batches-bin",
    "cifar100": "cifar-100-binary",
    "fashion-mnist": "fashion-mnist",
    "multi30k-ende": "multi30k",
    "wmt14-ende": "wmt14",
    "text:char": "tinyshakespeare",
}


def test_every_task_with_data_has_a_folder_below_the_root():
    assert {name.partition(":")[0] for name in FOLDERS} | {"digits"} == set(TASKS)


@pytest.mark.parametrize("name", FOLDERS)
def test_root_and_folder_itself_name_the_same_data(name, tmp_path, monkeypatch):
    monkeypatch.delenv("ACMO_DATA", raising=False)
    own = tmp_path / FOLDERS[name]
    own.mkdir()
    assert find_task(name, tmp_path).data == find_task(name, own).data == own
    assert find_task(name).data is None
    monkeypatch.setenv("ACMO_DATA", str(tmp_path))
    assert find_task(name).data == own
    own.rmdir()
    assert find_task(name).data is None  # ACMO_DATA is where it will be downloaded


def test_dry_run_finds_the_data_or_names_what_is_missing(acmo, tmp_path):
    folder = write_cifar10(tmp_path / "root" / "cifar-10-batches-bin")
    code, out, err = acmo("compare", "cifar10:tiny", "--data", "root", "--dry-run")
    assert code == 0
    assert err.startswith("cifar10: a subset of the official data, 100 of 50,000 train images")
    assert "its data is in root/cifar-10-batches-bin" in out
    (folder / "test_batch.bin").unlink()
    assert "cifar-10-batches-bin" in sentence(acmo("compare", "cifar10:tiny", "--data", "root", "--dry-run"))
    code, out, _ = acmo("compare", "cifar10:tiny", "--dry-run")
    assert code == 0
    assert "ROOT/cifar-10-batches-bin" in out
