"""Small studies of a grid of learning rates, without a run."""

from pathlib import Path

from acmo.lab.results.run_record import RunRecord, Score
from acmo.lab.studies.spec import Spec
from acmo.lab.studies.storage import Store, sqlite_in
from acmo.lab.studies.trials import Studies

LRS = [0.1, 0.05, 0.01, 0.005, 0.001, 0.0005]


def spec(points=None, name="s", sampler="grid", **more) -> Spec:
    points = [{"lr": lr} for lr in LRS] if points is None else points
    options = {
        "label": "sgd",
        "task": "digits",
        "phase": "tune",
        "folder": "runs/x",
        "score": Score("accuracy", "max"),
    }
    run = {"task": "digits", "optimizer": "sgd-momentum"}
    return Spec(name=name, run=run, points=points, grid={"lr": LRS}, sampler=sampler, **{**options, **more})


def studies(folder: Path, *specs: Spec, worker="w", **options) -> Studies:
    found = Studies(Store(sqlite_in(folder), **options), specs or [spec()], worker)
    found.enqueue()
    return found


def record(claim, accuracy: float | None = None, **more) -> RunRecord:
    """What a run of the claim might have found; by default its accuracy is its learning rate."""
    split = "test" if claim.spec.phase == "final" else "valid"
    found = {split: {"accuracy": claim.point.get("lr") if accuracy is None else accuracy}}
    about = {"task": claim.spec.task, "label": claim.spec.label, "role": claim.spec.phase, "seed": 0, "settings": {}}
    return RunRecord.from_json({**about, "status": "finished", **found, **more})


def finish_all(found: Studies) -> list[dict]:
    points = []
    while (claim := found.claim()) is not None:
        points.append(claim.point)
        assert found.finish(claim, record(claim))
    return points
