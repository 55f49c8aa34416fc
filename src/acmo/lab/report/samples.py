"""What a task had to show after its last evaluation, such as translated sentences."""

from collections.abc import Sequence
from typing import Any

from acmo.lab.report.curves import ABOUT
from acmo.lab.report.evidence import Contestant
from acmo.lab.results.tables import Row


def samples(contestants: Sequence[Contestant], limit: int = 6) -> list[dict[str, Any]]:
    """Return the samples of the last evaluation: what they have in common (source, reference), and each output."""
    by_title: dict[str, list[Row]] = {}
    for c in contestants:
        lines = c.lines[0].get("sample", []) if c.lines else []
        valid = [line for line in lines if line.get("split", "valid") == "valid"]
        final = [line for line in valid if line["step"] == valid[-1]["step"]]
        if final:
            by_title[c.label] = [{k: v for k, v in line.items() if k not in ABOUT | {"split"}} for line in final]
    shown = []
    for i in range(min(limit, max(map(len, by_title.values()), default=0))):
        items = {label: rows[i] for label, rows in by_title.items() if i < len(rows)}
        first = next(iter(items.values()))
        # What was made stays apart, even where all made the same.
        same = {k: v for k, v in first.items() if k != "output" and all(item.get(k) == v for item in items.values())}
        made = {label: [str(v) for k, v in item.items() if k not in same] for label, item in items.items()}
        shown.append({"common": same, "made": made})
    return shown
