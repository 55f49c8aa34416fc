"""Read published comparisons: their summaries, and quantities of their runs by seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from acmo.lab.report import words
from acmo.lab.report.publish import recomputed
from acmo.lab.results import comparison_folder
from acmo.lab.results.run_record import RunRecord

Row = Mapping[str, Any]
Seeds = Mapping[int, float | None]  # a quantity by seed; None where the run diverged


@dataclass(frozen=True)
class Published:
    """A published comparison: the tasks of its summary, and its runs. What is judged has one task.

    ``is_part`` is whether its data is a part of the official one; ``machine`` is where it was run.
    """

    name: str
    tasks: Sequence[Row]
    runs: Sequence[RunRecord]
    is_part: bool = False
    machine: str = ""

    @property
    def task(self) -> Row:
        """Return the first task."""
        return self.tasks[0]

    @property
    def has_seeds(self) -> bool:
        """Return whether it has more than one seed, so that it is more than a description."""
        return len(self.task["seeds"]) > 1

    @property
    def rows(self) -> dict[str, Row]:
        """Return the optimizers' rows by label."""
        return {row["label"]: row for row in self.task["rows"]}

    def finals(self, label: str) -> list[RunRecord]:
        """Return the runs of an optimizer's chosen setting."""
        own, chosen = [run for run in self.runs if run.label == label], self.rows[label]["settings"]
        return [run for run in own if run.phase == "final" and run.settings == chosen]

    def by_seed(self, label: str, read: Callable[[RunRecord], float | None]) -> Seeds:
        """Return a quantity of the final runs by seed."""
        return {run.seed: read(run) if run.status == "finished" else None for run in self.finals(label)}

    def tests(self, label: str) -> Seeds:
        """Return the test scores by seed: accuracy in points."""
        metric = self.task["metric"]
        return self.by_seed(label, lambda run: _scaled(run.score_on("test", metric), metric))

    def valid_losses(self, label: str) -> Seeds:
        """Return the validation loss at the last step by seed."""
        return self.by_seed(label, lambda run: run.score_on("valid", "loss"))

    def training_losses(self, label: str, share: float) -> Seeds:
        """Return the smoothed training loss after a share of the steps by seed."""
        return self.by_seed(label, lambda run: run.training_loss(share))

    def title(self, label: str) -> str:
        """Return an optimizer's name for readers."""
        return str(self.rows[label]["title"])


def read_published(results: Path) -> dict[str, Published]:
    """Return the comparisons of a results folder by name, without the archive."""
    found = {}
    for path in sorted(results.glob("*/summary.json")):
        folder, loaded = path.parent, comparison_folder.load(path.parent)
        is_part = any(data.get("subset") for data in loaded.data.values())
        about = loaded.provenance.get("machine", {})
        machine = f"{about.get('processor')}, {about.get('system')}"
        found[folder.name] = Published(folder.name, recomputed(folder)["tasks"], loaded.runs, is_part, machine)
    return found


def find(published: Mapping[str, Published], name: str, *labels: str) -> Published | None:
    """Return a comparison if it is published and these optimizers have final runs in it."""
    found = published.get(name)
    return found if found is not None and all(found.rows.get(x, {}).get("test") for x in labels) else None


def find_fastest(
    published: Mapping[str, Published], of: Published, label: str, read: Callable[[RunRecord], float | None]
) -> float | None:
    """Return the least of a time over all runs of an optimizer on the task and the machine of a comparison.

    Other work on the machine only adds to it.
    """
    alike = [found for found in published.values() if found.machine == of.machine]
    runs = [run for found in alike for run in found.runs if (run.task, run.label) == (of.task["task"], label)]
    return min([time for run in runs if (time := read(run))], default=None)


def seconds_per_step(run: RunRecord) -> float | None:
    """Return the median over the intervals of a run's training curve, which a pause does not change."""
    paces = [(b.seconds - a.seconds) / (b.step - a.step) for a, b in pairwise(run.train_curve) if b.step > a.step]
    return median(paces) if paces else None


def _scaled(value: float | None, metric: str) -> float | None:
    return None if value is None else value * words.scale(metric)
