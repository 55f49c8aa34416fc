"""The verdict as a table in the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from acmo.lab.grids import describe
from acmo.lab.progress import clock
from acmo.lab.summary import select

_AS_PERCENT = {"accuracy"}


def verdict(task: Mapping[str, Any]) -> Table:
    """A task's rows, best first."""
    metric, percent = task["metric"], task["metric"] in _AS_PERCENT
    n = len(task["seeds"])
    table = Table(
        title=f"{task['task']}: test {metric}{' in %' * percent}, mean of {n} seed{'s' * (n != 1)} and 95 % interval",
        caption=_caption(task, percent),
        caption_justify="left",
    )
    others = list(dict.fromkeys(other for row in task["rows"] for other in row["differences"]))
    for name in (
        "rank",
        "optimizer",
        metric,
        *(f"vs {o}" for o in others),
        "to target",
        "ms/step",
        "bytes/param",
        "setting",
    ):
        table.add_column(name, justify="left" if name in ("optimizer", "setting") else "right", overflow="fold")
    for row in sorted(task["rows"], key=lambda r: (r["rank"] is None, r["rank"] or 0)):
        cost = row["cost"]
        table.add_row(
            str(row["rank"] or "–"),
            Text(row["title"]),
            _interval(row["test"], percent),
            *(_difference(row["differences"].get(o), percent) for o in others),
            _to_target(row["to_target"]),
            _number(cost["ms_per_step_optimizer"], ".2f"),
            _number(cost["state_bytes_per_parameter"], ".1f"),
            Text(_setting(row)),
        )
    return table


def settings(task: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Table:
    """The settings that were tried on a task, best first."""
    metric = task["metric"]
    table = Table(title=f"{task['task']}: settings by validation {metric}", caption_justify="left")
    for name in ("optimizer", "setting", metric, "loss", "status"):
        table.add_column(name, justify="right" if name in (metric, "loss") else "left")
    tried = select([dict(r) for r in rows if r["task"] == task["task"]], metric, task["best"])
    for row in tried:
        valid = row.get("valid") or {}
        shown = [_number(valid.get(key), ".4g") for key in (metric, "loss")]
        table.add_row(Text(row["label"]), Text(describe(row["settings"])), *shown, row["status"])
    table.caption = "\n".join(f"! {row['label']}: {edge}" for row in task["rows"] for edge in row["edges"]) or None
    return table


def _caption(task: Mapping[str, Any], percent: bool) -> str:
    parts = []
    target = task["target"]
    if target["score"] is not None:
        shown = f"{100 * target['score']:.2f} %" if percent else f"{target['score']:.4g}"
        parts.append(
            f"To target: median steps (seconds) to a validation {task['metric']} of {shown}, "
            f"set from {', '.join(target['from'])}."
        )
    if task["weight_decay"] is not None:
        parts.append(f"Weight decay {task['weight_decay']:g} for all: the best for sgd-momentum.")
    if any(row["edges"] for row in task["rows"]):
        parts.append("! the best value is on the edge of the grid: a wider one might do better.")
    diverged = sum(row["diverged"]["tune"] + row["diverged"]["final"] for row in task["rows"])
    if diverged:
        parts.append(f"{diverged} run{'s' * (diverged != 1)} diverged.")
    return "\n".join(parts)


def _setting(row: Mapping[str, Any]) -> str:
    if row["settings"] is None:
        return "every setting diverged" if row["tried"] else "not run yet"
    marks = [edge.partition("=")[0] for edge in row["edges"]]
    text = describe(row["settings"]) + (f" ! {', '.join(marks)}" if marks else "")
    return text + (f" ({row['diverged']['final']} seeds diverged)" if row["diverged"]["final"] else "")


def _interval(test: Mapping[str, Any], percent: bool) -> str:
    if test["mean"] is None:
        return "–"
    scale, form = (100, ".2f") if percent else (1, ".4g")
    text = format(scale * test["mean"], form)
    if test["low"] is None:
        return text
    return f"{text} [{scale * test['low']:{form}}, {scale * test['high']:{form}}]"


def _difference(difference: Mapping[str, Any] | None, percent: bool) -> str:
    if difference is None or difference["mean"] is None:
        return "–"
    scale, form = (100, "+.2f") if percent else (1, "+.3g")
    verdict = "no diff. shown" if difference["verdict"].startswith("no ") else difference["verdict"]
    return f"{scale * difference['mean']:{form}} {verdict}"


def _to_target(found: Mapping[str, Any]) -> str:
    if found["steps"] is None:
        return f"{found['reached']} of {found['n']} runs" if found["n"] else "–"
    seconds = found["seconds"]
    return f"{found['steps']:.0f} ({clock(seconds) if seconds >= 60 else f'{seconds:.1f}s'})"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
