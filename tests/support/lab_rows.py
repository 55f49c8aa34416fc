"""Records of runs, made up, and the summary of such records."""

from acmo.lab.config.plan import make_plan
from acmo.lab.results.run_record import RunRecord, Score
from acmo.lab.results.summary import summarise


def row(
    label: str, role: str, seed: int, lr: float, valid: float | None, test: float | None = None, **more
) -> RunRecord:
    status = "diverged" if valid is None else "finished"
    base = {
        "task": "t",
        "label": label,
        "optimizer": label,
        "role": role,
        "seed": seed,
        "settings": {"lr": lr},
        "status": status,
    }
    splits = {"valid": {"accuracy": valid, "loss": 1.0}, "test": None if test is None else {"accuracy": test}}
    costs = {"parameters": 10, "state_bytes": 40, "curve": [[1, 0.1, valid]]}
    return RunRecord.from_json({**base, **splits, **costs, **more})


SCORES = {"t": Score("accuracy", "max")}


def summary_of(rows: list[RunRecord], **values) -> dict:
    plan = make_plan({"tasks": ["t"], "optimizers": ["acmo", "sgd", "adam"], "seeds": 2, **values})
    return summarise(plan, rows, SCORES)["tasks"][0]


def full_rows(acmo_valid: float) -> list[RunRecord]:
    rows = []
    for label, score in (("acmo", acmo_valid), ("sgd-momentum", 0.8), ("adam", 0.7)):
        rows += [row(label, "tune", 0, 0.1, score), row(label, "tune", 0, 0.01, None)]
        rows += [row(label, "final", s, 0.1, score, score) for s in (1, 2)]
    return rows
