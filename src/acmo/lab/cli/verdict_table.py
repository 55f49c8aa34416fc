"""The verdict as a table in the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from acmo.lab.config.grids import describe
from acmo.lab.results.run_record import RunRecord, Score
from acmo.lab.results.stats import NO_DIFFERENCE
from acmo.lab.results.summary import describe_untuned, explain_no_setting, select
from acmo.lab.studies.progress import clock

WIDE, NARROW = 100, 80  # columns of a terminal
Row = Mapping[str, Any]  # of the summary
_AS_PERCENT = {"accuracy"}
_SHORT = {"sgd-momentum": "SGD-m.", "adam": "Adam"}


def verdict(task: Row, width: int = 200) -> Table:
    """Return a task's rows, best first; in a terminal narrower than `WIDE` without what takes most room."""
    metric, percent = task["metric"], task["metric"] in _AS_PERCENT
    n = len(task["seeds"])
    title = f"{task['task']}: test {metric}{' in %' * percent}, mean of {n} seed{'s' * (n != 1)} and 95 % interval"
    table = Table(
        title=escape(title),
        caption=escape(_caption(task, percent, width >= WIDE)),
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    others = list(dict.fromkeys(other for row in task["rows"] for other in row["differences"]))
    costs = ("ms/step", "bytes/param") if width >= WIDE else ()
    names = ("#", "optimizer", metric, *(f"vs {_SHORT.get(o, o)}" for o in others), "to target", *costs, "setting")
    short = max(len(row["title"]) for row in task["rows"]) <= 16
    for name in names:
        # Not by min_width: rich makes a table with one wider than the terminal, and cuts off its end.
        whole = width >= NARROW and (name == metric or (name == "optimizer" and short))
        left = name in ("optimizer", "setting")
        table.add_column(escape(name), justify="left" if left else "right", overflow="fold", no_wrap=whole)
    for row in sorted(task["rows"], key=lambda r: (r["rank"] is None, r["rank"] or 0)):
        cost = row["cost"]
        shown = _number(cost["ms_per_step_optimizer"], ".2f"), _number(cost["state_bytes_per_parameter"], ".1f")
        table.add_row(
            str(row.get("group") or "–"),
            Text(row["title"]),
            _interval(row["test"], percent),
            *(_difference(row["differences"].get(o), percent) for o in others),
            _to_target(row["to_target"]) if costs else _steps(row["to_target"]),
            *shown[: len(costs)],
            Text(_setting(row)),
        )
    return table


def settings(task: Row, runs: Iterable[RunRecord]) -> Table:
    """Return the settings that were tried on a task, best first."""
    metric = task["metric"]
    table = Table(title=escape(f"{task['task']}: settings by validation {metric}"), caption_justify="left")
    for name in ("optimizer", "setting", metric, "loss", "status"):
        table.add_column(name, justify="right" if name in (metric, "loss") else "left")
    for run in select([r for r in runs if r.task == task["task"]], Score(metric, task["best"])):
        shown = [_number(run.valid.get(key), ".4g") for key in (metric, "loss")]
        table.add_row(Text(run.label), Text(describe(run.settings)), *shown, run.status)
    flags = [f"! {row['label']}: {edge}" for row in task["rows"] for edge in row["edges"]]
    table.caption = escape("\n".join(flags)) or None
    return table


def _caption(task: Row, percent: bool, wide: bool) -> str:
    parts = []
    target = task["target"]
    if target["score"] is not None:
        shown = f"{100 * target['score']:.2f} %" if percent else f"{target['score']:.4g}"
        parts.append(
            f"To target: median steps{' (seconds)' * wide} to a validation {task['metric']} of {shown}, "
            f"set from {', '.join(target['from'])}."
        )
    if any(_unclear(d) for row in task["rows"] for d in row["differences"].values()):
        parts.append("vs: paired difference; in brackets: no difference shown (95 % interval over 0, or few seeds).")
    if task["weight_decay"] is not None:
        parts.append(f"Weight decay {task['weight_decay']:g} for all: the best for sgd-momentum.")
    if untuned := describe_untuned(task["rows"]):
        parts.append(untuned)
    beyond = [
        f"{row['title']} by {', '.join(f'{lr:g}' for lr in row['extended'])}"
        for row in task["rows"]
        if row.get("extended")
    ]
    if beyond:
        parts.append(f"Learning rates beyond the grid, tried since the best was at its edge: {'; '.join(beyond)}.")
    if any(row["edges"] for row in task["rows"]):
        parts.append("! the best value is on the edge of the grid: a wider one might do better.")
    if task.get("detectable") is not None:  # not in summaries of earlier versions
        least = f"{100 * task['detectable']:.2f} points" if percent else f"{task['detectable']:.3g}"
        power = f"The seeds could have shown {least} (median of all pairs, power 80 %)."
        if percent and task["detectable"] >= 1:
            power = "So few seeds could have shown no difference at all."
        parts.append(f"#: groups; within one, no difference from its first is shown. {power}")
    diverged = sum(row["diverged"]["tune"] + row["diverged"]["final"] for row in task["rows"])
    if diverged:
        parts.append(f"{diverged} run{'s' * (diverged != 1)} diverged.")
    pruned = sum(row.get("pruned", 0) for row in task["rows"])
    if pruned:
        parts.append(f"{pruned} tuning run{'s' * (pruned != 1)} stopped early (--prune).")
    failed = sum(row["failed"]["tune"] + row["failed"]["final"] for row in task["rows"] if "failed" in row)
    if failed:
        parts.append(f"{failed} run{'s' * (failed != 1)} failed with an error; the same command tries again.")
    return "\n".join(parts)


def _setting(row: Row) -> str:
    if row["settings"] is None:
        return explain_no_setting(row)
    marks = [edge.partition("=")[0] for edge in row["edges"]]
    text = describe(row["settings"]) + (f" ! {', '.join(marks)}" if marks else "")
    lost = {"diverged": row["diverged"]["final"], "failed": row.get("failed", {}).get("final", 0)}
    return text + "".join(f" ({n} seed{'s' * (n > 1)} {how})" for how, n in lost.items() if n)


def _interval(test: Row, percent: bool) -> str:
    if test["mean"] is None:
        return "–"
    scale, form = (100, ".2f") if percent else (1, ".4g")
    text = format(scale * test["mean"], form)
    if test["low"] is None:
        return text
    return f"{text} [{scale * test['low']:{form}}, {scale * test['high']:{form}}]"


def _difference(difference: Row | None, percent: bool) -> str:
    if difference is None or difference["mean"] is None:
        return "–"
    scale, form = (100, "+.2f") if percent else (1, "+.3g")
    text = format(scale * difference["mean"], form)
    return f"({text})" if _unclear(difference) else f"{text} {difference['verdict']}"


def _unclear(difference: Row) -> bool:
    return difference["mean"] is not None and difference["verdict"] == NO_DIFFERENCE


def _steps(found: Row) -> str:
    if found["steps"] is None:
        return f"{found['reached']} of {found['n']}" if found["n"] else "–"
    return f"{found['steps']:.0f}"


def _to_target(found: Row) -> str:
    if found["steps"] is None:
        return f"{found['reached']} of {found['n']} runs" if found["n"] else "–"
    seconds = found["seconds"]
    return f"{found['steps']:.0f} ({clock(seconds) if seconds >= 60 else f'{seconds:.1f}s'})"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
