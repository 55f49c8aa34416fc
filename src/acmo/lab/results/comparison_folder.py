"""Reading what the lab has written: a folder as plain tables, whatever state it was left in."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from acmo.lab import atomic
from acmo.lab.config.grids import Grid, grid_of
from acmo.lab.config.plan import MAY_CHANGE, labels_of, make_plan, slug
from acmo.lab.config.run_options import RunOptions
from acmo.lab.errors import LabError

Row = dict[str, Any]
_NEEDED = {"task", "label", "run", "role", "seed", "settings", "status"}


@dataclass
class Comparison:
    """A comparison's folder, read.

    Args:
      folder: where it is.
      plan: the resolved options; empty if the folder holds runs alone.
      scores: by task, the metric that counts and whether "max" or "min" of it is best.
      provenance: versions, machine, commit, command line.
      runs: one row a run: task, label, optimizer, settings, seed, phase, role ("tune" or "final"), status ("finished",
        "diverged" or "unfinished"), valid, best_valid, test, steps, epochs, seconds, costs, run, folder (None if it is
        on another machine).
      summary: what ``summary.json`` holds; None if the comparison has not ended.
    """

    folder: Path
    plan: Row = field(default_factory=dict)
    scores: dict[str, Row] = field(default_factory=dict)
    provenance: Row = field(default_factory=dict)
    runs: list[Row] = field(default_factory=list)
    summary: Row | None = None

    @cached_property
    def metrics(self) -> list[Row]:
        """Every line of every run's metrics, with task, label, role, seed and run beside it."""
        rows = []
        for run in self.runs:
            about = {key: run[key] for key in ("task", "label", "role", "seed", "run")}
            rows += [{**about, **line} for line in self.metrics_of(run)]
        return rows

    def metrics_of(self, run: Mapping[str, Any], kind: str | None = None) -> list[Row]:
        """The metrics of one run, of one kind or of all."""
        if run["folder"] is None:
            return []
        return [row for row in read_metrics(self.folder / run["folder"]) if kind in (None, row.get("kind"))]


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
    head = read_json(folder / "comparison.json")
    head = head if isinstance(head, dict) else {}
    plan = head.get("config") or {}
    found = {row["run"]: row for row in read_lines(folder / "trials.jsonl") if row.keys() >= _NEEDED}
    for row in _run_folders(folder, plan):
        # The folder knows more than the list where a run was done again; the list knows the runs of other machines.
        found[row["run"]] = {**found.get(row["run"], {}), **row}
    for row in found.values():
        if row.get("folder") is None or not (folder / row["folder"]).is_dir():
            row["folder"] = None
    grids = _grids(plan)
    runs = [row for row in found.values() if _belongs(row, plan, grids)]
    order = {c: i for i, c in enumerate(labels_of(plan))}
    runs.sort(key=lambda r: (r["task"], order.get(r["label"], len(order)), r["role"] != "tune", r["seed"], r["run"]))
    return Comparison(
        folder, plan, head.get("scores", {}), head.get("provenance", {}), runs, read_json(folder / "summary.json")
    )


def read_json(path: Path) -> Any | None:
    """What the file holds; None if it is missing or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def read_lines(path: Path) -> Iterator[Row]:
    """The objects of a JSON-lines file; what is no JSON object, such as a last line cut short, is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def read_metrics(folder: Path) -> list[Row]:
    """The lines of a run's ``metrics.jsonl``."""
    return list(read_lines(folder / "metrics.jsonl"))


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines, the file whole or not at all."""
    atomic.write(path, "".join(json.dumps(atomic.strict(dict(row)), allow_nan=False) + "\n" for row in rows).encode())


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table: what is nested becomes ``outer.inner`` columns, a list becomes JSON."""
    flat = [flatten(row) for row in rows]
    columns = list(dict.fromkeys(column for row in flat for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    atomic.write(path, text.getvalue().encode())


def flatten(row: Mapping[str, Any], prefix: str = "") -> Row:
    """One level of keys.

    Example:
      >>> flatten({"lr": 0.1, "test": {"accuracy": 1.0}, "betas": [0.9, 0.99]})
      {'lr': 0.1, 'test.accuracy': 1.0, 'betas': '[0.9, 0.99]'}
    """
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list | tuple) else value
    return flat


def _run_folders(folder: Path, plan: Row) -> Iterator[Row]:
    labels = {slug(label): label for label in labels_of(plan)}
    for path in sorted((folder / "runs").glob("*/*/*/config.json")):
        stored = read_json(path)
        config = stored.get("config") if isinstance(stored, dict) else None
        if not isinstance(config, dict) or not {"task", "optimizer", "seed"} <= config.keys():
            continue
        if plan and not _is_of(config, plan):
            continue  # somebody else's, such as of `acmo train` with the same --out
        run = path.parent
        result = read_json(run / "result.json")
        yield {
            "task": config["task"],
            "label": labels.get(run.parent.name, config["optimizer"]),
            "optimizer": config["optimizer"],
            "settings": config.get("settings", {}),
            "seed": config["seed"],
            "role": _role(config, plan),
            "status": "unfinished",
            **(result if isinstance(result, dict) else {}),
            "run": run.name,
            "folder": run.relative_to(folder).as_posix(),
        }


def _is_of(config: Row, plan: Row) -> bool:
    """Whether a run has the options of the comparison; what one of the two does not say fits."""
    read = "final" if plan.get("test_every_setting") or _role(config, plan) == "final" else "tune"
    shared = RunOptions.model_fields.keys() - MAY_CHANGE
    same = all(config.get(o, plan.get(o)) == plan.get(o, config.get(o)) for o in shared)
    return same and config.get("phase", read) == read


def _role(config: Row, plan: Row) -> str:
    if "tune_seed" in plan:  # the phase says whether the test data was read, not what the run is for
        return "tune" if config["seed"] == plan["tune_seed"] else "final"
    return config.get("phase", "tune")


def _grids(plan: Row) -> dict[str, Grid]:
    """By label, the values that the comparison tries of each option, those that are fixed among them."""
    try:
        known = make_plan(plan)
        grids = {c.label: grid_of(known, c) | {o: [v] for o, v in c.settings.items()} for c in known.contenders()}
    except LabError:
        return {}  # a plan of another version, or by hand
    return grids if known.sampler == "grid" else {}


def _belongs(row: Row, plan: Row, grids: Mapping[str, Grid]) -> bool:
    """Whether the run is of the comparison that the folder holds now, not of one before or beside it."""
    if not plan:
        return True
    first = plan.get("tune_seed", 0)
    last = first + plan.get("seeds", 0)
    named = row["label"] in labels_of(plan) and row["task"] in plan.get("tasks", [])
    if not named or not first <= row["seed"] <= last:
        return False
    grid, settings = grids.get(row["label"]), row["settings"]
    if grid is not None and plan.get("protocol") == "fixed-wd" and row["label"] != "sgd-momentum":
        grid = {**grid, "weight_decay": [settings.get("weight_decay")]}  # SGD-momentum's best, whatever that is
    if grid is None:
        return True
    return settings.keys() <= grid.keys() and all(settings.get(option) in values for option, values in grid.items())
