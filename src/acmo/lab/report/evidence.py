"""What a report shows: a folder's summary, its runs with their metrics, and notes on what is unfinished or damaged."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acmo.lab.config.plan import make_plan
from acmo.lab.errors import LabError
from acmo.lab.report.words import count
from acmo.lab.results.comparison_folder import Comparison, load
from acmo.lab.results.metrics_file import ends_within_a_line, read_metrics
from acmo.lab.results.run_record import Best, RunRecord, Score
from acmo.lab.results.summary import select, summarise
from acmo.lab.results.tables import Row

Lines = dict[str, list[Row]]  # by kind


@dataclass
class Contestant:
    """An optimizer on a task: its row of the summary, and the runs whose curves stand for it."""

    row: Row
    tuned: list[RunRecord] = field(default_factory=list)
    shown: list[RunRecord] = field(default_factory=list)  # seeds of the chosen setting; else its best tuning run
    lines: list[Lines] = field(default_factory=list)  # the metrics of each

    @property
    def label(self) -> str:
        """Return its name in folders and files."""
        label: str = self.row["label"]
        return label

    @property
    def title(self) -> str:
        """Return its name in tables and figures."""
        title: str = self.row["title"]
        return title


@dataclass
class Evidence:
    """Everything that the page and the figures show.

    Args:
      found: the folder, read.
      tasks: of the summary, each with its ``contestants``.
      notes: sentences about what is unfinished or damaged.
    """

    found: Comparison
    tasks: list[Row]
    notes: list[str]


def gather(source: Comparison | Path | str) -> Evidence:
    """Collect what is shown of a comparison, or of the folder that holds one.

    Metrics are read for the runs that are shown; of the others only whether a line was cut short.
    """
    found = source if isinstance(source, Comparison) else load(source)
    summary = _valid_summary(found.summary) or _summary(found)
    tasks = []
    cut: list[str] = []
    for task in summary["tasks"]:
        runs = [run for run in found.runs if run.task == task["task"]]
        contestants = [_contestant(found, row, runs, task, cut) for row in task["rows"]]
        tasks.append({**task, "contestants": contestants})
    read = {run.run for task in tasks for c in task["contestants"] for run in c.shown}
    for run in found.runs:
        if run.run not in read and run.folder is not None and ends_within_a_line(found.folder / run.folder):
            cut.append(run.folder)
    return Evidence(found, tasks, _notes(found, cut))


def _lines_by_kind(found: Comparison, run: RunRecord, cut: list[str]) -> Lines:
    """Return the metrics of a run by kind; name its folder in ``cut`` if a line of them is damaged."""
    if run.folder is None:
        return {}
    metrics = read_metrics(found.folder / run.folder)
    if metrics.damaged:
        cut.append(run.folder)
    lines: Lines = {}
    for row in metrics.rows:
        lines.setdefault(row["kind"], []).append(row)
    return lines


def _contestant(found: Comparison, row: Row, runs: Iterable[RunRecord], task: Row, cut: list[str]) -> Contestant:
    mine = [run for run in runs if run.label == row["label"]]
    tuned = [run for run in mine if run.role == "tune"]
    finals = [run for run in mine if run.role == "final" and row["settings"] in (None, run.settings)]
    ended = [run for run in tuned if run.status not in ("unfinished", "failed")]
    shown = finals or select(ended, Score(task["metric"], task["best"]))[:1]
    contestant = Contestant(row, tuned, shown or tuned[:1])
    for run in contestant.shown:
        contestant.lines.append(_lines_by_kind(found, run, cut) or _from_curve(run, task["metric"]))
    return contestant


def _from_curve(run: RunRecord, metric: str) -> Lines:
    """Return what is known of a run on another machine: its validation curve."""
    valid = [{"step": p.step, "seconds": p.seconds, "epoch": 0, metric: p.score} for p in run.curve]
    return {"valid": valid} if valid else {}


def _valid_summary(summary: Any) -> Row | None:
    """Return the summary, if it is one."""
    tasks = summary.get("tasks") if isinstance(summary, dict) else None
    whole = isinstance(tasks, list) and all(isinstance(t, dict) and "rows" in t and "metric" in t for t in tasks)
    return summary if whole else None


def _summary(found: Comparison) -> Row:
    """Return the summary of a comparison that has not ended; of runs without one, what is known without statistics."""
    if found.plan and found.scores:
        try:
            return summarise(make_plan(found.plan), found.runs, found.scores)
        except (LabError, KeyError, TypeError):
            pass  # a plan of another version, or by hand: show the runs
    names = dict.fromkeys(run.task for run in found.runs)
    return {"tasks": [_bare(name, [r for r in found.runs if r.task == name]) for name in names]}


def _bare(task: str, runs: list[RunRecord]) -> Row:
    known = {key for run in runs for key in run.valid}
    metric = next((m for m in ("accuracy", "bleu") if m in known), "loss")
    best: Best = "min" if metric == "loss" else "max"
    rows: list[Row] = []
    for label in dict.fromkeys(run.label for run in runs):
        mine = [run for run in runs if run.label == label]
        picked = select(mine, Score(metric, best))[0]
        rows.append(
            {
                "label": label, "title": label, "optimizer": picked.optimizer, "rank": None, "differences": {},
                "test": {"mean": None, "low": None, "high": None, "n": 0}, "budget": [], "edges": [], "cost": {},
                "to_target": {"steps": None, "seconds": None, "reached": 0, "n": 0}, "settings": picked.settings,
                "tried": len(mine), "diverged": {"tune": sum(r.status == "diverged" for r in mine), "final": 0},
            }
        )  # fmt: skip
    target: Row = {"score": None, "split": "valid", "from": []}
    return {"task": task, "metric": metric, "best": best, "protocol": None, "seeds": [], "target": target, "rows": rows}


def _notes(found: Comparison, cut: list[str]) -> list[str]:
    notes = []
    states = [run.status for run in found.runs]
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
    damaged = found.damaged
    if damaged:
        where = ", ".join(damaged[:3]) + (f" and {len(damaged) - 3} more" if len(damaged) > 3 else "")
        notes.append(f"What cannot be read is left out: {where}.")
    return notes
