"""Configurations of quick runs, what ends a run half way, and what must not depend on that."""

import json
from pathlib import Path

import torch

from acmo.lab.config.run_options import RunConfig, run_config
from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.results.run_record import CURVES
from acmo.lab.runs import checkpoints
from acmo.lab.runs.run_folder import Progress
from tests.support.paths import SUPPORT

TASKS = SUPPORT / "lab_tasks.py"


def task_config(task: str = "Blobs", optimizer: str = "acmo", **values) -> RunConfig:
    return run_config(task=f"{TASKS}:{task}", optimizer=optimizer, **{"settings": {"lr": 0.1}, **values})


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoints.load(checkpoints.found(folder / "checkpoints")[-1].read_bytes())["model"]


def checkpointed_config(optimizer: str = "acmo", **values) -> RunConfig:
    values = {"task": f"{TASKS}:Blobs", "settings": {"lr": 0.05}, "checkpoint_every": "3it", **values}
    return run_config(optimizer=optimizer, **{"keep_checkpoints": True, "phase": "final", "log_every": 2, **values})


class Stop(Exception):
    pass


def stop_at(step: int):
    """What ends a run there, as a kill would: nothing is saved on the way out."""

    def progress(p: Progress) -> None:
        if p.step >= step:
            raise Stop

    return progress


def outcome(folder: Path) -> tuple[list[dict], dict]:
    """All that must not depend on how often a run was killed: every line, times apart, and the final state."""
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in read_metrics(folder).rows]
    kept = checkpoints.found(folder / "checkpoints")
    if not kept:
        return rows, {}
    state = checkpoints.load(kept[-1].read_bytes())
    position = state["position"]
    position.pop("seconds")
    for curve in CURVES:
        position[curve] = [(step, score) for step, _, score in position[curve]]
    state.pop("milliseconds"), state.pop("metrics_size")
    return rows, state


def assert_same(a: Path, b: Path) -> None:
    (rows, state), (other_rows, other_state) = outcome(a), outcome(b)
    assert rows == other_rows
    assert_same_bits(state, other_state)
    results = [json.loads((folder / "result.json").read_text()) for folder in (a, b)]
    for result in results:
        del result["seconds"], result["ms_per_step_optimizer"]
        for curve in CURVES:
            result[curve] = [(step, score) for step, _, score in result[curve]]
    assert results[0] == results[1]


def assert_same_bits(a: object, b: object) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
        assert a.stride() == b.stride()
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same_bits(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same_bits(left, right)
    else:
        assert a == b or (a != a and b != b)
