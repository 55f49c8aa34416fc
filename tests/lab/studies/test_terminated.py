"""A SIGTERM to one worker: its run saves a checkpoint, and another worker resumes it."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from acmo.lab.config.plan import make_plan
from acmo.lab.results.tables import read_lines
from acmo.lab.studies.comparison import Compare
from acmo.lab.studies.storage import Store, sqlite_in


def workers() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for workers under /proc")
def test_terminated_worker_saves_a_checkpoint_that_is_used(tmp_path):
    values = {"tasks": ["digits"], "optimizers": ["sgd"], "grids": {"sgd": {"lr": [0.1]}}, "seeds": 1, "epochs": 8}
    plan = make_plan({**values, "baselines": ["sgd"], "checkpoint_every": "1h"})  # none but by the signal
    saved: list[Path] = []

    def terminate() -> None:
        deadline = time.monotonic() + 120
        while not any(tmp_path.glob("runs/*/*/*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in workers():
            os.kill(pid, signal.SIGTERM)
        while not saved and time.monotonic() < deadline:
            saved.extend(tmp_path.glob("runs/*/*/*/checkpoints/*"))
            time.sleep(0.01)

    thread = threading.Thread(target=terminate)
    thread.start()
    found = Compare(plan, tmp_path, Store(sqlite_in(tmp_path)), workers=1, quiet=True).run()
    thread.join()
    assert saved
    assert [run.status for run in found.runs] == ["finished"]
    for run in found.runs:
        steps = [
            line["step"] for line in read_lines(tmp_path / run.folder / "metrics.jsonl") if line["kind"] == "train"
        ]
        assert steps == sorted(set(steps))
