"""``--log``: the numbers of a run in Weights & Biases, MLflow and TensorBoard, offline, with the real packages."""

import json
import sqlite3
import struct
import sys
import time
from collections.abc import Iterator

import pytest

from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.runs.run_folder import run
from acmo.lab.runs.trackers import TrackerLost
from tests.support.lab_command import run_command, sentence
from tests.support.lab_runs import TASKS
from tests.support.lab_runs import task_config as config

acmo = run_command  # a fixture


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Return a client of MLflow with a database of its own."""
    mlflow = pytest.importorskip("mlflow", reason='needs pip install "acmo[track]"')
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return mlflow.tracking.MlflowClient()


def runs_of(client) -> list:
    experiments = [e for e in client.search_experiments() if e.name.startswith("acmo/")]
    return client.search_runs([e.experiment_id for e in experiments])


@pytest.mark.parametrize("asked", [{"log": ["tensorboard"]}, {"tensorboard": True}])
def test_tensorboard_gets_the_numbers_of_every_line(tmp_path, asked):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(config(**asked), tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("valid/accuracy")] == [10, 20, 30, 40]
    assert len(events.Scalars("train/beta_hat")) == len(read_metrics(tmp_path).of("train"))


@pytest.mark.slow
def test_mlflow_gets_metrics_settings_and_status(tmp_path, client):
    run(config(log=["mlflow"]), tmp_path / "run")
    (found,) = runs_of(client)
    curve = client.get_metric_history(found.info.run_id, "valid/accuracy")
    expected = [(row["step"], row["accuracy"]) for row in read_metrics(tmp_path / "run").of("valid")]
    assert [(point.step, point.value) for point in curve] == expected
    assert found.data.params["config.settings.lr"] == "0.1"
    assert found.data.params["effective.optimizer.momentum"] == "0.9"
    assert found.info.status == "FINISHED"
    assert found.data.tags["acmo.status"] == "finished"


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run_of_mlflow(tmp_path, client):
    what = config(log=["mlflow"], checkpoint_every="5it")

    def stop(progress) -> None:
        if progress.step >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(what, tmp_path / "run", stop)
    assert [found.info.status for found in runs_of(client)] == ["KILLED"]
    run(what, tmp_path / "run")
    (found,) = runs_of(client)
    assert found.info.status == "FINISHED"
    steps = {point.step for point in client.get_metric_history(found.info.run_id, "valid/accuracy")}
    assert steps == {10, 20, 30, 40}


@pytest.mark.slow
def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, client):
    def drop(progress) -> None:
        if progress.step == 10:
            with sqlite3.connect(tmp_path / "mlflow.db") as database:
                database.execute("DROP TABLE latest_metrics")

    with pytest.warns(TrackerLost, match="mlflow gets no more of this run"):
        ended = run(config(log=["mlflow"]), tmp_path / "run", drop)
    assert ended.status == "finished"


@pytest.mark.slow
def test_wandb_gets_metrics_and_settings_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason='needs pip install "acmo[track]"')
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(config(log=["wandb"]), tmp_path / "run")
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    history, settings, summary = read_wandb(path)
    expected = [(row["step"], row["accuracy"]) for row in read_metrics(tmp_path / "run").of("valid")]
    assert [(row["step"], row["valid/accuracy"]) for row in history if "valid/accuracy" in row] == expected
    assert settings["effective"]["optimizer"]["momentum"] == 0.9
    assert summary["status"] == "finished"


def read_wandb(path) -> tuple[list[dict], dict, dict]:
    """Return history, config and summary of a file of wandb."""
    deadline = time.monotonic() + 60
    while (records := parse_records(path)) and not records[-1].HasField("exit"):  # a process of wandb's writes the file
        assert time.monotonic() < deadline
        time.sleep(0.2)
    history, settings, summary = [], {}, {}
    for record in records:
        values = {_key(item): json.loads(item.value_json) for item in record.history.item}
        history += [values] if values else []
        settings |= {_key(i): json.loads(i.value_json) for i in (*record.run.config.update, *record.config.update)}
        summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
    return history, settings, summary


def parse_records(path) -> list:
    from wandb.proto.wandb_internal_pb2 import Record

    return [Record.FromString(content) for content in read_log(path.read_bytes())]


def _key(item) -> str:
    return item.key or "/".join(item.nested_key)


def read_log(content: bytes, block: int = 32768) -> Iterator[bytes]:
    """Yield the whole records of a log in LevelDB's format: pieces with checksum, length and kind, none across blocks.

    The file may end within a record, as it does while it is being written.
    """
    place, whole = 7, b""  # after wandb's own header
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        if place + 7 + length > len(content):
            return
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
@pytest.mark.parametrize("command", ["compare", "train"])
def test_a_missing_package_is_named_with_how_to_install_it(acmo, monkeypatch, tmp_path, command, name):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    said = sentence(acmo(command, "digits", "--log", name))
    assert said == f'acmo: {name} is not installed; get it with: pip install "acmo[track]"\n'
    assert not list(tmp_path.iterdir())


def test_an_unknown_tracker_is_refused(acmo):
    assert "'wandb', 'mlflow' or 'tensorboard', got 'neptune'" in sentence(acmo("train", "digits", "--log", "neptune"))


@pytest.mark.slow
def test_every_run_of_a_comparison_is_logged(acmo, client):
    task = f"{TASKS}:Blobs"
    quick = ["--optimizers", "sgd,adam", "--try", "all.lr=0.1,0.01", "--seeds", "1", "--epochs", "1", "--no-extend"]
    code, _, err = acmo("compare", task, *quick, "--workers", "2", "--log", "mlflow", "--out", "out", "-q")
    assert code == 0, err
    found = runs_of(client)
    assert len(found) == 6
    assert {r.info.status for r in found} == {"FINISHED"}
    assert sorted(r.data.tags["acmo.phase"] for r in found) == ["final"] * 2 + ["tune"] * 4


def test_logging_is_no_part_of_a_runs_identity():
    assert config(log=["wandb"]).run_id() == config().run_id()
