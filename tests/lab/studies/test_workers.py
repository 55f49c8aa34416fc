"""Workers report a damaged checkpoint, a failing optimizer and a failing run."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from acmo.lab.config.plan import make_plan
from acmo.lab.config.run_options import run_config
from acmo.lab.errors import LabError
from acmo.lab.runs import checkpoints
from acmo.lab.runs.run_folder import run
from acmo.lab.studies.comparison import Compare, check
from acmo.lab.studies.stages import final_spec
from acmo.lab.studies.storage import Store, sqlite_in
from tests.support.lab_runs import Stop, stop_at
from tests.support.paths import SUPPORT

TASKS = SUPPORT / "lab_tasks.py"

OPTIMIZERS = """
import torch

class Algebra(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        torch.linalg.cholesky(-torch.eye(2))

class Broken(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyError("of ours")
"""


@pytest.fixture
def own(tmp_path) -> str:
    (tmp_path / "own.py").write_text(OPTIMIZERS)
    return str(tmp_path / "own.py")


def compare(out: Path, **values) -> tuple[Compare, io.StringIO]:
    plan = make_plan({"tasks": [f"{TASKS}:Steady"], "seeds": 1, "checkpoint_every": "3it", **values})
    shown = io.StringIO()
    return Compare(plan, out, Store(sqlite_in(out)), workers=1, console=Console(file=shown, width=500)), shown


@pytest.mark.slow
def test_damaged_checkpoint_is_named_on_the_console(tmp_path):
    values = {"optimizers": ["sgd"], "grids": {"sgd": {"lr": [0.1]}}}
    comparison, shown = compare(tmp_path, **values)
    plan = comparison.plan
    task = check(plan)[plan.tasks[0]]
    spec = final_spec(plan, plan.contenders()[0], plan.tasks[0], task.score, {"lr": 0.1}, task.fingerprint())
    config = spec.config(spec.points[0])
    folder = tmp_path / spec.folder / config.run_id()
    with pytest.raises(Stop):
        run(config, folder, stop_at(10))
    last = checkpoints.found(folder / "checkpoints")[-1]
    last.write_bytes(last.read_bytes()[:100])
    comparison.run()
    assert f"Note: the checkpoint {last} is damaged" in shown.getvalue()
    assert "DamagedCheckpoint" in (tmp_path / "workers.log").read_text()


def test_algebra_that_fails_on_what_is_not_finite_is_divergence(tmp_path, own):
    what = run_config(task=f"{TASKS}:Steady", optimizer=f"{own}:Algebra", settings={"lr": 0.1})
    result = run(what, tmp_path / "run")
    assert result.status == "diverged"
    assert result.reason is not None
    assert result.reason.startswith("step 1: ")
    assert "\n" not in result.reason


@pytest.mark.slow
def test_failing_run_is_named_and_the_others_are_done(tmp_path, own):
    out = tmp_path / "out"
    values = {"optimizers": ["sgd", f"{own}:Broken"], "grids": {"all": {"lr": [0.1]}}}
    comparison, _ = compare(out, **values)
    comparison.run()
    assert {failure.label for failure in comparison.failed} == {f"{own}:Broken"}
    assert "KeyError: 'of ours'" in comparison.failed[0].error
    assert "Traceback" in (out / "workers.log").read_text()


@pytest.mark.parametrize("body", ["raise KeyError('k')", "assert False", "import no_such_module"])
def test_optimizer_that_cannot_be_built_is_refused_before_runs(tmp_path, body):
    (tmp_path / "bad.py").write_text(f"class Bad:\n    def __init__(self, params, lr=1):\n        {body}\n")
    values = {"tasks": [f"{TASKS}:Steady"], "optimizers": [f"{tmp_path}/bad.py:Bad"]}
    plan = make_plan({**values, "grids": {f"{tmp_path}/bad.py:Bad": {"lr": [1.0]}}})
    with pytest.raises(LabError, match="cannot be made with"):
        check(plan)
