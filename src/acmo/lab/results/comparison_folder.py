"""A comparison's folder: what is written at its top, and how all of it is read, whatever state it was left in."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from acmo.lab import atomic
from acmo.lab.config.extension import rates_beyond
from acmo.lab.config.grids import Grid, tried_values
from acmo.lab.config.plan import MAY_CHANGE, Plan, labels_of, make_plan, slug
from acmo.lab.config.run_options import RunOptions
from acmo.lab.errors import LabError
from acmo.lab.redaction import redact
from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.results.run_files import read_config, read_json, read_outcome
from acmo.lab.results.run_record import CURVES, REQUIRED, RunRecord, Score
from acmo.lab.results.summary import flat_rows, summarise
from acmo.lab.results.tables import Row, read_lines, write_csv, write_lines

HEAD, SUMMARY, TRIALS = "comparison.json", "summary.json", "trials.jsonl"


@dataclass
class Comparison:
    """Hold a comparison: its plan, its runs, and the outcome.

    Args:
      folder: where it is.
      plan: the resolved options; empty if the folder holds runs alone.
      scores: by task, what counts.
      provenance: versions, machine, commit, command line.
      runs: one `RunRecord` per run.
      summary: what ``summary.json`` holds; None if the comparison has not ended.
      damaged: files that could not be read, relative to the folder.
      data: by task, what data it has: its fingerprint, its files, and what part of the official data it is.
    """

    folder: Path
    plan: Row = field(default_factory=dict)
    scores: dict[str, Score] = field(default_factory=dict)
    provenance: Row = field(default_factory=dict)
    runs: list[RunRecord] = field(default_factory=list)
    summary: Row | None = None
    damaged: list[str] = field(default_factory=list)
    data: Row = field(default_factory=dict)

    @cached_property
    def metrics(self) -> list[Row]:
        """Return every line of every run's metrics, with task, label, role, seed and run beside it."""
        rows = []
        for run in self.runs:
            about = {key: getattr(run, key) for key in ("task", "label", "role", "seed", "run")}
            rows += [{**about, **line} for line in self.metrics_of(run)]
        return rows

    def metrics_of(self, run: RunRecord, kind: str | None = None) -> list[Row]:
        """Return the metrics of one run, of one kind or of all."""
        if run.folder is None:
            return []
        found = read_metrics(self.folder / run.folder)
        return found.rows if kind is None else found.of(kind)


def write_head(folder: Path, content: Mapping[str, Any]) -> None:
    """Write ``comparison.json``: ``config``, ``provenance``, ``scores``, ``data``, and as ``grids`` what is tried."""
    scores = {task: asdict(score) for task, score in content["scores"].items()}
    atomic.write_json(folder / HEAD, {**content, "scores": scores})


def read_head(folder: Path) -> Row:
    """Read what `write_head` wrote, with each score as a `Score`; empty if it is missing or damaged."""
    head = read_json(folder / HEAD)
    if not isinstance(head, dict):
        return {}
    stored = head.get("scores")
    known = stored.items() if isinstance(stored, dict) else ()
    return {**head, "scores": {task: Score(s["metric"], s["best"]) for task, s in known if {"metric", "best"} <= {*s}}}


def write_summary(folder: Path, plan: Plan, runs: Sequence[RunRecord], scores: Mapping[str, Score]) -> Row:
    """Compute the summary, write ``trials.*`` and ``summary.*``, and return the summary as it was written."""
    summary = summarise(plan, runs, scores)
    rows = [run.to_json() for run in runs]
    write_lines(folder / TRIALS, rows)
    write_csv(folder / "trials.csv", rows, without=CURVES)
    atomic.write_json(folder / SUMMARY, summary)
    write_csv(folder / "summary.csv", flat_rows(summary))
    written: Row = json.loads(redact(atomic.to_json(summary)))
    return written


def load(folder: Path | str) -> Comparison:
    """Read a comparison's folder. Half-written lines and unfinished runs are no error.

    Args:
      folder: what was given as ``--out``.

    Returns:
      A `Comparison`. ``pandas.DataFrame(load(folder).runs)`` is a table of all runs.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise LabError(f"there is no folder {folder}")
    head = read_head(folder)
    plan, scores = head.get("config") or {}, head.get("scores") or {}
    found = {row["run"]: row for row in read_lines(folder / TRIALS) if row.keys() >= REQUIRED}
    damaged = [name for name in (HEAD, SUMMARY) if _unreadable(folder / name)]
    here = set()
    for row in _read_runs(folder, plan, scores, damaged):
        # The folder knows more than the list where a run was done again; the list knows the runs of other machines, and
        # which ones ended with an error.
        known = found.get(row["run"], {})
        status = "failed" if row["status"] == "unfinished" and known.get("status") == "failed" else row["status"]
        found[row["run"]] = {**known, **row, "status": status}
        here.add(row["run"])
    for name, row in found.items():
        if name not in here and (row.get("folder") is None or not (folder / row["folder"]).is_dir()):
            row["folder"] = None
    belongs = _Membership(plan, head.get("grids"))
    runs = [RunRecord.from_json(row) for row in belongs.drop_abandoned(list(filter(belongs, found.values())))]
    order = {label: i for i, label in enumerate(belongs.labels)}
    runs.sort(key=lambda r: (r.task, order.get(r.label, len(order)), r.role != "tune", r.seed, r.run))
    stated, summary = head.get("provenance", {}), read_json(folder / SUMMARY)
    return Comparison(folder, plan, scores, stated, runs, summary, damaged, head.get("data") or {})


def _read_runs(folder: Path, plan: Row, scores: Mapping[str, Score], damaged: list[str]) -> Iterator[Row]:
    """Yield what the run folders hold that belong to the plan; name what cannot be read in ``damaged``."""
    labels = {slug(label): label for label in labels_of(plan)}
    shared = RunOptions.model_fields.keys() - MAY_CHANGE
    for run in sorted((folder / "runs").glob("*/*/*")):
        inside = run.relative_to(folder).as_posix()
        config = read_config(run).get("config")
        if not isinstance(config, dict) or not {"task", "optimizer", "seed"} <= config.keys():
            if _unreadable(run / "config.json"):
                damaged.append(f"{inside}/config.json")
            continue
        if plan and not _has_options_of(config, plan, shared):
            continue  # somebody else's, such as of `acmo train` with the same --out
        outcome = read_outcome(run, scores.get(config["task"]))
        if outcome is None and (run / "result.json").is_file():
            damaged.append(f"{inside}/result.json")
        yield {
            "task": config["task"],
            "label": labels.get(run.parent.name, config["optimizer"]),
            "optimizer": config["optimizer"],
            "settings": config.get("settings", {}),
            "seed": config["seed"],
            "role": _role(config, plan),
            "status": "unfinished",
            **(outcome or {}),
            "run": run.name,
            "folder": inside,
        }


def _has_options_of(config: Row, plan: Row, shared: set[str]) -> bool:
    """Return whether a run has the options of the comparison; an option that one of the two lacks fits."""
    read = "final" if plan.get("test_every_setting") or _role(config, plan) == "final" else "tune"
    if config.get("phase", read) != read:
        return False
    return not [o for o in shared if config.get(o, plan.get(o)) != plan.get(o, config.get(o))]


def _role(config: Row, plan: Row) -> str:
    if "tune_seed" in plan:  # the phase is whether the test data was read, not what the run is for
        return "tune" if config["seed"] == plan["tune_seed"] else "final"
    role: str = config.get("phase", "tune")
    return role


class _Membership:
    """Whether a run is of the comparison that a folder holds now, not of one before or beside it."""

    def __init__(self, plan: Row, grids: dict[str, Grid] | None) -> None:
        self.plan, self.labels = plan, labels_of(plan)
        self.first = plan.get("tune_seed", 0)
        self.last = self.first + plan.get("seeds", 0)
        self.grids = grids if grids is not None else self._grids()
        if plan.get("extend") and plan.get("grid") != "paper":
            self.grids = {label: _extended(grid) for label, grid in self.grids.items()}

    def __call__(self, row: Row) -> bool:
        if not self.plan:
            return True
        named = row["label"] in self.labels and row["task"] in self.plan.get("tasks", [])
        if not named or not self.first <= row["seed"] <= self.last:
            return False
        grid, settings = self.grids.get(row["label"]), row["settings"]
        if grid is None:
            return True
        if self.plan.get("protocol") == "fixed-wd" and row["label"] != "sgd-momentum":
            grid = {**grid, "weight_decay": [settings.get("weight_decay")]}  # SGD-momentum's best, whatever that is
        return settings.keys() <= grid.keys() and not [o for o in grid if settings.get(o) not in grid[o]]

    def drop_abandoned(self, rows: list[Row]) -> list[Row]:
        """Leave out unfinished tuning runs of an only setting that final runs repeat: an earlier version began them."""
        repeated = {(row["task"], row["label"]) for row in rows if row["role"] == "final"}
        return [
            row
            for row in rows
            if not (row["role"] == "tune" and row["status"] == "unfinished")
            or (row["task"], row["label"]) not in repeated
            or not self._has_one_setting(row["label"])
        ]

    def _has_one_setting(self, label: str) -> bool:
        grid = self.grids.get(label)
        fixed = self.plan.get("protocol") == "fixed-wd" and label != "sgd-momentum"
        return grid is not None and all(len(grid[o]) == 1 for o in grid if not (fixed and o == "weight_decay"))

    def _grids(self) -> dict[str, Grid]:
        """Return the grids of a comparison of an earlier version, which did not store them."""
        try:
            return tried_values(make_plan(self.plan))
        except LabError:
            return {}  # a plan of another version, or by hand


def _extended(grid: Grid) -> Grid:
    return {**grid, "lr": [*grid["lr"], *rates_beyond(grid["lr"])]} if "lr" in grid else grid


def _unreadable(path: Path) -> bool:
    return path.is_file() and read_json(path) is None
