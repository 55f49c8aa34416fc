"""What a report is about: a folder's summary, the runs behind it with their metrics, and what is amiss in it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from acmo.lab.config.plan import make_plan
from acmo.lab.errors import LabError
from acmo.lab.report.words import count
from acmo.lab.results import comparison_folder as results
from acmo.lab.results.summary import select, summarise

Row = dict[str, Any]
Lines = dict[str, list[Row]]  # by kind


@dataclass
class Contestant:
    """An optimizer on a task: its row of the summary, and the runs whose curves stand for it."""

    row: Row
    tuned: list[Row] = field(default_factory=list)
    shown: list[Row] = field(default_factory=list)  # seeds of the chosen setting; else its best tuning run
    lines: list[Lines] = field(default_factory=list)  # the metrics of each

    @property
    def label(self) -> str:
        return self.row["label"]

    @property
    def title(self) -> str:
        return self.row["title"]


@dataclass
class Evidence:
    """Everything that the page and the figures show.

    Args:
      found: the folder, read.
      tasks: of the summary, each with its ``contestants``.
      notes: sentences about what is unfinished or damaged.
    """

    found: results.Comparison
    tasks: list[Row]
    notes: list[str]


def gather(folder: Path | str) -> Evidence:
    """Read a folder. Metrics are read for the runs that are shown; of the others only whether a line was cut short."""
    found = results.load(folder)
    summary = _whole(found.summary) or _summary(found)
    tasks = []
    cut: list[str] = []
    for task in summary["tasks"]:
        runs = [run for run in found.runs if run["task"] == task["task"]]
        contestants = [_contestant(found, row, runs, task, cut) for row in task["rows"]]
        tasks.append({**task, "contestants": contestants})
    read = {run["run"] for task in tasks for c in task["contestants"] for run in c.shown}
    for run in found.runs:
        if run["run"] not in read and run["folder"] is not None and _cut_short(_metrics(found, run)):
            cut.append(run["folder"])
    return Evidence(found, tasks, _notes(found, cut))


def lines_of(path: Path) -> tuple[Lines, int]:
    """The lines of a ``metrics.jsonl`` by kind, and how many could not be read."""
    lines: Lines = {}
    damaged = 0
    try:
        raw = path.read_bytes().split(b"\n")
    except OSError:
        return lines, 0
    for line in raw:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            lines.setdefault(row["kind"], []).append({"epoch": 0, "seconds": 0.0, **row, "step": int(row["step"])})
        except (ValueError, TypeError, KeyError):
            damaged += 1
    return lines, damaged


def number(value: Any) -> float | None:
    """The value if it is a finite number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _metrics(found: results.Comparison, run: Row) -> Path:
    return found.folder / run["folder"] / "metrics.jsonl"


def _contestant(found: results.Comparison, row: Row, runs: Iterable[Row], task: Row, cut: list[str]) -> Contestant:
    mine = [run for run in runs if run["label"] == row["label"]]
    tuned = [run for run in mine if run["role"] == "tune"]
    finals = [run for run in mine if run["role"] == "final" and row["settings"] in (None, run["settings"])]
    shown = finals or select([r for r in tuned if r["status"] != "unfinished"], task["metric"], task["best"])[:1]
    contestant = Contestant(row, tuned, shown or tuned[:1])
    for run in contestant.shown:
        lines, damaged = lines_of(_metrics(found, run)) if run["folder"] is not None else ({}, 0)
        if damaged:
            cut.append(run["folder"])
        contestant.lines.append(lines or _from_curve(run, task["metric"]))
    return contestant


def _from_curve(run: Row, metric: str) -> Lines:
    """Of a run on another machine only the validation curve has travelled."""
    curve = run.get("curve") or []
    return {"valid": [{"step": s, "seconds": t, "epoch": 0, metric: v} for s, t, v in curve]} if curve else {}


def _cut_short(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                return False
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    except OSError:
        return False


def _whole(summary: Any) -> Row | None:
    """The summary, if it is one."""
    tasks = summary.get("tasks") if isinstance(summary, dict) else None
    whole = isinstance(tasks, list) and all(isinstance(t, dict) and "rows" in t and "metric" in t for t in tasks)
    return summary if whole else None


def _summary(found: results.Comparison) -> Row:
    """The summary of a comparison that has not ended; of runs without one, what can be said without statistics."""
    if found.plan and found.scores:
        try:
            rows = [{**run, "curve": _curve(found, run)} for run in found.runs]
            return summarise(make_plan(found.plan), rows, found.scores)
        except (LabError, KeyError, TypeError):
            pass  # a plan of another version, or by hand: show the runs
    names = dict.fromkeys(run["task"] for run in found.runs)
    return {"tasks": [_bare(name, [r for r in found.runs if r["task"] == name]) for name in names]}


def _curve(found: results.Comparison, run: Row) -> list[list[Any]]:
    """Step, seconds and validation score of a run whose time to the target counts."""
    if run["role"] != "final" or run["folder"] is None:
        return run.get("curve") or []
    metric = found.scores[run["task"]]["metric"]
    valid = lines_of(_metrics(found, run))[0].get("valid", [])
    return [[line["step"], line["seconds"], number(line.get(metric))] for line in valid]


def _bare(task: str, runs: list[Row]) -> Row:
    known = {key for run in runs for key in run.get("valid") or {}}
    metric = next((m for m in ("accuracy", "bleu") if m in known), "loss")
    best = "min" if metric == "loss" else "max"
    rows = []
    for label in dict.fromkeys(run["label"] for run in runs):
        mine = [run for run in runs if run["label"] == label]
        picked = select(mine, metric, best)[0]
        rows.append(
            {
                "label": label, "title": label, "optimizer": picked["optimizer"], "rank": None, "differences": {},
                "test": {"mean": None, "low": None, "high": None, "n": 0}, "budget": [], "edges": [], "cost": {},
                "to_target": {"steps": None, "seconds": None, "reached": 0, "n": 0}, "settings": picked["settings"],
                "tried": len(mine), "diverged": {"tune": sum(r["status"] == "diverged" for r in mine), "final": 0},
            }
        )  # fmt: skip
    target: Row = {"score": None, "split": "valid", "from": []}
    return {"task": task, "metric": metric, "best": best, "protocol": None, "seeds": [], "target": target, "rows": rows}


def _notes(found: results.Comparison, cut: list[str]) -> list[str]:
    notes = []
    states = [run["status"] for run in found.runs]
    unfinished = states.count("unfinished")
    if not found.runs:
        notes.append("There is no run in this folder yet.")
    elif unfinished == len(states):
        notes.append(f"No run is finished yet: {count(unfinished, 'run')} under way or stopped.")
    elif unfinished:
        notes.append(f"{unfinished} of {len(states)} runs {'is' if unfinished == 1 else 'are'} not finished.")
    if cut:
        cut = sorted(cut)
        where = ", ".join(cut[:3]) + (f" and {len(cut) - 3} more" if len(cut) > 3 else "")
        notes.append(
            f"{count(len(cut), 'file')} of metrics {'has' if len(cut) == 1 else 'have'} a half-written line, "
            f"which is left out: {where}."
        )
    damaged = [n for n in ("comparison.json", "summary.json") if _unreadable(found.folder / n)]
    known = {run["folder"] for run in found.runs}
    for path in sorted((found.folder / "runs").glob("*/*/*")):
        inside = path.relative_to(found.folder).as_posix()
        if path.is_dir() and inside not in known and _unreadable(path / "config.json"):
            damaged.append(f"{inside}/config.json")
        elif _unreadable(path / "result.json"):
            damaged.append(f"{inside}/result.json")
    if damaged:
        where = ", ".join(damaged[:3]) + (f" and {len(damaged) - 3} more" if len(damaged) > 3 else "")
        notes.append(f"What cannot be read is left out: {where}.")
    return notes


def _unreadable(path: Path) -> bool:
    return path.is_file() and results.read_json(path) is None
