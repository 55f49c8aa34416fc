"""A run: what it writes, what it reads, how it ends; over several ranks, see test_lab_ranks.py."""

import json
import math
import multiprocessing
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from acmo.lab.config.optimizers import build
from acmo.lab.config.run_options import run_config
from acmo.lab.config.schedules import Schedule
from acmo.lab.errors import LabError
from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.results.run_files import read_outcome
from acmo.lab.runs.run_folder import Progress, run
from tests.support.lab_runs import TASKS, final_weights
from tests.support.lab_runs import task_config as config


@pytest.mark.parametrize(("optimizer", "lr"), [("acmo", 0.1), ("sgd-momentum", 0.05), ("adam", 0.005)])
def test_digits_are_learnt_in_one_run(tmp_path, optimizer, lr):
    result = run(run_config(task="digits", optimizer=optimizer, settings={"lr": lr}, phase="final"), tmp_path)
    assert result.status == "finished"
    assert result.test is not None
    assert min(result.valid["accuracy"], result.test["accuracy"]) > 0.95
    assert result.steps == 15 * 36
    assert result.parameters == 6090
    assert result.state_bytes >= 4 * 6090 * (2 if optimizer == "adam" else 1)
    assert 0 < result.ms_per_step_optimizer < 1e3 * result.seconds / result.steps


def test_lines_say_what_the_format_promises(tmp_path):
    run(config("Talkative", phase="final", log_every=5), tmp_path)
    rows = [
        json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert {row["kind"] for row in rows} == {"train", "valid", "test", "sample"}
    assert all({"step", "epoch", "seconds"} <= set(row) for row in rows)
    telemetry = {"grad_norm", "beta_hat", "cos_grad_moment", "cos_update_grad", "cos_update_moment", "moment_norm"}
    train = [row for row in rows if row["kind"] == "train"]
    assert all({"loss", "lr", "clip_scale", "skipped_steps"} | telemetry <= set(row) for row in train)
    # 189 examples in batches of 20: 10 steps an epoch; the first step, and every fifth.
    assert [row["step"] for row in train] == [1, *range(5, 41, 5)]
    assert train[0]["cos_grad_moment"] is None  # there is no moment yet, and JSON has no NaN
    assert [row["epoch"] for row in rows if row["kind"] == "valid"] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if row["kind"] == "test"] == [40]
    assert all(row["output"] in "012" for row in rows if row["kind"] == "sample")


def test_config_and_result_are_files_of_json(tmp_path):
    result = run(config(phase="final"), tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["config"]["settings"] == {"lr": 0.1}
    assert stored["provenance"]["versions"]["torch"] == torch.__version__.split("+")[0] or "+" in torch.__version__
    assert str(Path.home()) + "/" not in json.dumps(stored) or str(Path.home()) == "/"
    raw = json.loads((tmp_path / "result.json").read_text())
    assert raw["status"] == "finished"
    assert raw == json.loads(json.dumps(result.outcome()))
    assert run(config(phase="final"), tmp_path) == result
    assert not (tmp_path / "checkpoints").exists()


def test_test_data_is_read_once_and_in_the_final_phase_alone(tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    monkeypatch.setenv("BLOBS_TRACE", str(trace))
    assert run(config(phase="tune"), tmp_path / "tune").test is None
    assert trace.read_text().split() == ["train"]
    assert run(config(phase="final"), tmp_path / "final").test is not None
    assert trace.read_text().split() == ["train", "train", "test"]


def test_a_run_that_has_ended_is_not_done_again(tmp_path, monkeypatch):
    first = run(config(), tmp_path)
    monkeypatch.setenv("BLOBS_TRACE", str(tmp_path / "trace"))
    assert run(config(), tmp_path) == first
    assert not (tmp_path / "trace").exists()


def test_same_config_gives_same_bits_and_another_seed_others(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(config(seed=seed, keep_checkpoints=True), tmp_path / name)
    a, b, c = (final_weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not any(torch.equal(a[key], c[key]) for key in a)


@pytest.mark.parametrize(
    ("lr", "log_every", "word"),
    [(1e38, 10, "loss was (nan|inf) by step 10"), (3e4, 1, "loss was [0-9.e+]+ at step .*, over")],
)
def test_divergence_is_a_result(tmp_path, lr, log_every, word):
    result = run(config(optimizer="sgd-momentum", settings={"lr": lr}, phase="final", log_every=log_every), tmp_path)
    assert result.status == "diverged"
    assert result.test is None
    assert result.steps < 40
    assert result.reason is not None
    assert re.search(word, result.reason)
    assert read_metrics(tmp_path).of("train")[-1]["step"] == result.steps


def test_a_validation_loss_that_is_not_finite_is_divergence_too(tmp_path):
    result = run(config("Late"), tmp_path)
    assert (result.status, result.steps) == ("diverged", 20)
    assert result.reason == "the validation loss was inf at step 20"
    assert json.loads((tmp_path / "result.json").read_text())["valid"]["loss"] is None
    assert math.isfinite(result.best_valid["accuracy"])


def test_an_optimizer_that_raises_on_a_bad_gradient_diverges(tmp_path):
    settings = {"lr": 1e38, "nonfinite": "raise"}
    result = run(config(settings=settings, log_every=40), tmp_path)
    assert result.status == "diverged"
    assert "not finite" in result.reason


def test_schedule_and_clipping_reach_the_optimizer(tmp_path):
    run(config(schedule="steps:1:0.1", max_grad_norm=1e-3, log_every=1), tmp_path / "acmo")
    rows = read_metrics(tmp_path / "acmo").of("train")
    assert [row["lr"] for row in rows[::10]] == pytest.approx([0.1, 0.01, 0.001, 0.0001])
    assert all(0 < row["clip_scale"] < 1 for row in rows)
    run(config(optimizer="sgd-momentum", settings={"lr": 1.0, "momentum": 0.0}, max_grad_norm=1e-3, steps=1,
               keep_checkpoints=True), tmp_path / "sgd")  # fmt: skip
    torch.manual_seed(0)
    start = dict(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.1),
                                     torch.nn.Linear(8, 3)).state_dict())  # fmt: skip
    end = final_weights(tmp_path / "sgd")
    moved = torch.cat([(end[key] - start[key]).flatten() for key in start]).norm()
    assert float(moved) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("task", ["Steady", "Words"])
def test_accumulation_gives_what_one_batch_gives(tmp_path, task):
    for parts in (1, 4):
        run(config(task, accumulate=parts, keep_checkpoints=True), tmp_path / str(parts))
    one, four = (final_weights(tmp_path / name) for name in ("1", "4"))
    for key in one:
        torch.testing.assert_close(one[key], four[key], rtol=1e-5, atol=1e-6)
    lines = [[row["loss"] for row in read_metrics(tmp_path / name).of("train")] for name in ("1", "4")]
    assert lines[0] == pytest.approx(lines[1], rel=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_learns_too_and_is_not_the_same_bits(tmp_path, dtype):
    what = {"task": "Steady", "optimizer": "adam", "settings": {"lr": 0.05}, "epochs": 6}
    cast = run(config(**what, autocast=dtype), tmp_path / dtype)
    full = run(config(**what), tmp_path / "float32")
    assert cast.valid["accuracy"] > 0.9
    assert cast.valid["loss"] != full.valid["loss"]
    assert cast.valid["loss"] == pytest.approx(full.valid["loss"], rel=0.2)


def test_progress_is_reported_and_its_exception_ends_the_run(tmp_path):
    told: list[Progress] = []
    run(config(log_every=10), tmp_path / "whole", told.append)
    assert [p.step for p in told] == [1, 10, 20, 30, 40]
    assert all(p.steps == 40 for p in told)
    assert told[-1].epoch == 4
    with pytest.raises(KeyboardInterrupt):
        run(config(), tmp_path / "cut", lambda p: (_ for _ in ()).throw(KeyboardInterrupt) if p.step >= 7 else None)
    assert read_outcome(tmp_path / "cut", None) is None
    assert run(config(), tmp_path / "cut").valid == read_outcome(tmp_path / "whole", None)["valid"]


@pytest.mark.slow
def test_a_second_process_in_the_same_folder_waits_for_the_first(tmp_path):
    what = config(steps=400)
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        both = pool.starmap(run, [(what, tmp_path), (what, tmp_path)])
    assert both[0] == both[1]
    steps = [row["step"] for row in read_metrics(tmp_path).of("train")]
    assert steps == sorted(set(steps))


def test_a_run_leaves_torchs_switches_as_they_were(tmp_path):
    threads = torch.get_num_threads()
    run(config(steps=1), tmp_path)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.get_num_threads() == threads


def test_the_id_is_of_what_the_outcome_depends_on():
    base = config()
    assert (
        base.run_id() == config(data=Path("elsewhere"), device="cpu", tensorboard=True, checkpoint_every="1h").run_id()
    )
    others = [config(seed=1), config(settings={"lr": 0.2}), config(phase="final"), config(epochs=3), config("Steady")]
    assert len({base.run_id(), *(other.run_id() for other in others)}) == 6
    assert config(settings={"lr": 1}).run_id() == config(settings={"lr": 1.0}).run_id()
    assert config(settings={"betas": (0.9, 0.99)}).run_id() == config(settings={"betas": [0.9, 0.99]}).run_id()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1, "steps": 1}, "cannot both"),
        ({"ephocs": 1}, "ephocs is not a known option"),
        ({"checkpoint_every": "often"}, "60s"),
        ({"phase": "test"}, "phase"),
    ],
)
def test_a_bad_config_is_a_sentence(values, words):
    with pytest.raises(LabError, match=words):
        config(**values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"optimizer": "adamm"}, "did you mean 'adam'"),
        ({"settings": {"moment": 0.9}}, "no option 'moment'; did you mean 'momentum'"),
        ({"settings": {"momentum": 1.2}}, "1.2"),
        ({"optimizer": "no.such:Class"}, "no module 'no.such'"),
        ({"optimizer": "math:sqrt"}, "cannot be made|not a torch.optim.Optimizer|no option"),
        ({"device": "tpu"}, "'tpu'"),
        ({"device": "cuda:9"}, "'cuda:9'"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"task": "digit"}, "did you mean 'digits'"),
        ({"task": "no/such.py:Task"}, "no file"),
        ({"task": f"{TASKS}:Blob"}, "did you mean 'Blobs'"),
        ({"task": f"{TASKS}:Path"}, "not a task"),
    ],
)
def test_what_a_user_gets_wrong_is_a_sentence(tmp_path, values, words):
    what = run_config(**{"task": f"{TASKS}:Blobs", "optimizer": "acmo", **values})
    with pytest.raises(LabError, match=words):
        run(what, tmp_path)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot be written"):
        run(config(), tmp_path / "file" / "run")


def test_a_damaged_result_is_named(tmp_path):
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(LabError, match=r"result\.json is damaged"):
        run(config(), tmp_path)


def test_frozen_parameters_do_not_reach_the_optimizer():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False))
    optimizer = build("acmo", {"lr": 0.1, "momentum_dtype": "bfloat16"}, model)
    assert len(optimizer.param_groups[0]["params"]) == 2
    assert optimizer.defaults["momentum_dtype"] == torch.bfloat16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("steps:50:0.1", [1, 1, 0.1, 0.01]),
        ("steps:50", [1, 1, 0.1, 0.01]),
        ("steps:500it:0.5", [1, 1, 0.5, 0.25]),
        ("cosine", [1, (1 + math.cos(0.245 * math.pi)) / 2, (1 + math.cos(0.25 * math.pi)) / 2, 0.5]),
        ("linear", [1, 0.755, 0.75, 0.5]),
        ("warmup:50+constant", [1 / 501, 491 / 501, 1, 1]),
        ("warmup:500it+linear", [1 / 501, 491 / 501, 1, 1 - 500 / 1500]),
    ],
)
def test_schedules_are_what_they_are_called(text, expected):
    schedule = Schedule(text)
    # 200 epochs of 10 steps: at the start, in epoch 49, at its end, and half-way.
    factors = [schedule.factor(step, 2000, 10) for step in (0, 490, 500, 1000)]
    assert factors == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["", "step:5", "steps", "steps:0", "steps:5:x", "warmup:5", "warmup:x+cosine", "cosine:3"]
)
def test_a_schedule_that_is_none_is_refused(text):
    with pytest.raises(LabError, match="is not one of"):
        Schedule(text)


def test_waiting_costs_no_time_that_counts(tmp_path):
    """Seconds are of training: what progress does in between is not in them."""
    start = time.perf_counter()
    result = run(config(log_every=10), tmp_path, lambda _: time.sleep(0.1))
    assert time.perf_counter() - start > 0.5
    assert result.seconds < time.perf_counter() - start - 0.5


def test_a_run_does_not_mind_frozen_flags(tmp_path: Path):
    code = (
        "import torch; torch.backends.disable_global_flags()\n"
        "from acmo.lab.runs.randomness import deterministic\n"
        "with deterministic(True): assert not torch.backends.cudnn.benchmark"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=600)
