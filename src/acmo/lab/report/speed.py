"""How soon the target is reached, run by run, and over several tasks as a performance profile."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from acmo.lab.report.evidence import Contestant
from acmo.lab.results.run_record import finite_or_none
from acmo.lab.results.tables import Row


def hits(contestants: Sequence[Contestant], task: Mapping[str, Any]) -> list[Row]:
    """Return by optimizer the step and second at which each run first reached the target, and the medians."""
    target, sign = task["target"]["score"], 1 if task["best"] == "max" else -1
    if target is None:
        return []
    series = []
    for c in contestants:
        found = []
        runs = [(run, lines) for run, lines in zip(c.shown, c.lines, strict=True) if run.role == "final"]
        for _, lines in runs:
            for line in lines.get("valid", []):
                score = line.get(task["metric"])
                if isinstance(score, int | float) and isfinite(score) and sign * score >= sign * target:
                    found.append((line["step"], finite_or_none(line["seconds"]) or 0.0))
                    break
        medians = c.row["to_target"]
        if runs:
            series.append(
                {
                    "label": c.label,
                    "step": [step for step, _ in found],
                    "seconds": [float(f"{t:.5g}") for _, t in found],
                    "median": {"step": medians["steps"], "seconds": medians["seconds"]},
                    "n": len(runs),
                }
            )
    return series


def profile(tasks: Sequence[Row]) -> dict[str, list[Row]]:
    """Return Dolan and Moré's performance profile: the share of tasks solved within τ times the fastest's cost.

    Args:
      tasks: the evidence's, two or more of them with a target.

    Returns:
      For "step" and "seconds", by optimizer: tau and share, a stair; empty for fewer than two tasks.
    """
    tasks = [task for task in tasks if task["target"]["score"] is not None]
    if len(tasks) < 2:
        return {}
    labels = dict.fromkeys(c.label for task in tasks for c in task["contestants"])
    result: dict[str, list[Row]] = {}
    for axis, key in (("step", "steps"), ("seconds", "seconds")):
        ratios: dict[str, list[float]] = {label: [] for label in labels}
        for task in tasks:
            costs = {c.label: finite_or_none(c.row["to_target"][key]) for c in task["contestants"]}
            present = [cost for cost in costs.values() if cost]
            for label, cost in costs.items():
                if cost:
                    ratios[label].append(cost / min(present))
        if not any(ratios.values()):
            return {}
        end = max(max(r) for r in ratios.values() if r) * 1.1
        result[axis] = [_stair(label, sorted(found), len(tasks), end) for label, found in ratios.items()]
    return result


def _stair(label: str, ratios: list[float], tasks: int, end: float) -> Row:
    tau = [1.0, *ratios, end]
    share = [sum(r <= t for r in ratios) / tasks for t in tau]
    return {"label": label, "tau": [float(f"{t:.5g}") for t in tau], "share": share}


def quickest(series: Sequence[Row], axis: str) -> tuple[str, float] | None:
    """Return whose median is the least."""
    known = [(s["median"][axis], s["label"]) for s in series if s["median"][axis] is not None]
    return (min(known)[1], min(known)[0]) if known else None
