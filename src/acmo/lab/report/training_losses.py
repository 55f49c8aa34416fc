"""The training losses of a task as a table: on the way, at the end against the baselines, and steps to a target."""

from typing import NamedTuple

from acmo.lab.report import words
from acmo.lab.results.tables import Row


class LossTable(NamedTuple):
    """Heads, cells and a sentence about them, as plain text."""

    heads: list[str]
    cells: list[list[str]]
    note: str


def tabulate_losses(task: Row) -> LossTable | None:
    """Return the table, the least loss at the end first; None where no run recorded its training loss."""
    rows = [row for row in task["rows"] if row.get("losses")]
    if not rows:
        return None
    others = list(dict.fromkeys(other for row in rows for other in row["losses"]["train_differences"]))
    titles = {row["label"]: row["title"] for row in rows}
    shares = list(rows[0]["losses"]["train"])
    heads = ["optimizer", *(f"training loss after {share} %" for share in shares)]
    heads += [*(f"at the end, against {titles[other]}" for other in others), "steps to target"]
    cells = []
    for row in sorted(rows, key=_end):
        found, reached = row["losses"], row["losses"]["to_target"]
        missed = f"{reached['reached']} of {reached['n']} runs"
        line = [row["title"], *(words.interval(found["train"][share], "loss") for share in shares)]
        line += [_difference(found["train_differences"].get(other)) for other in others]
        cells.append([*line, missed if reached["steps"] is None else words.figure(reached["steps"], ",.0f")])
    target = words.score(rows[0]["losses"]["target"], "loss")
    note = f"Training loss, smoothed: an average whose weights halve in 2 % of the steps. The target is {target}."
    return LossTable(heads, cells, note)


def _end(row: Row) -> tuple[bool, float]:
    mean = row["losses"]["train"]["100"]["mean"]
    return mean is None, mean or 0.0


def _difference(found: Row | None) -> str:
    """Return ``−0.012 [−0.020, −0.004] better``; the verdict is left out where no difference is shown."""
    if found is None or found["mean"] is None:
        return words.NONE
    mean, low, high = (words.score(found[key], "loss", sign=True, units=False) for key in ("mean", "low", "high"))
    if found["low"] is None:
        return mean
    return f"{mean} [{low}, {high}]" + ("" if found["verdict"].startswith("no ") else f" {found['verdict']}")
