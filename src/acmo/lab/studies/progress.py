"""What is shown while a comparison runs: trials done of all, time left, and what each worker is at."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from acmo.lab.config.grids import describe
from acmo.lab.studies.worker import Failed, Finished, Running


class Display:
    """A live display in a terminal, a line for every finished run elsewhere.

    Args:
      console: where to.
      total: runs of the whole comparison.
      metric: by task, what is shown of a finished run.
      quiet: show nothing.
    """

    def __init__(self, console: Console, total: int, metric: dict[str, str], *, quiet: bool = False) -> None:
        self.console, self.total, self.metric, self.quiet = console, total, metric, quiet
        self.done = 0
        self.found = 0  # done before: they do not count for our speed
        self._running: dict[int, Running | None] = {}
        self._phase = ""
        self._start = time.monotonic()
        self._live: Live | None = None
        self._shown: set[str] = set()  # tracebacks
        self._without: set[int] = set()  # workers that wait for the database

    def __enter__(self) -> "Display":
        if self.console.is_terminal and not self.quiet:
            self._live = Live(self._render(), console=self.console, refresh_per_second=5, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, text: str, done: int) -> None:
        """Begin a new stage, with so many of its runs done already."""
        self._phase = text
        self.done += done
        self.found += done
        self._running.clear()
        if self._live is None and not self.quiet:
            self.console.print(f"{text} ({self.done} of {self.total} runs are done)", highlight=False, markup=False)

    def report(self) -> Callable[[str, int, Any], None]:
        """Return the function that `Pool.run` calls."""
        return self._report

    def seconds_left(self) -> float | None:
        """Return the time left at the speed so far, with the parts of runs under way."""
        ours = self.done - self.found + sum(r.fraction for r in self._running.values() if r is not None)
        if ours < 0.05:
            return None
        return (time.monotonic() - self._start) / ours * max(0.0, self.total - self.found - ours)

    def _report(self, kind: str, worker: int, content: Any) -> None:
        if kind == "running":
            self._running[worker] = content
        elif kind == "note" and not self.quiet:
            self.console.print(f"Note: {content}", highlight=False, markup=False)
        elif kind == "outage":
            self._report_outage(worker, content)
        elif kind == "failed":
            self._running.pop(worker, None)
            if not self.quiet:
                self.console.print(self._failure(content), highlight=False, markup=False)
        elif kind in ("waiting", "idle"):
            self._running.pop(worker, None)
            if kind == "waiting":
                self._running[worker] = None
        elif kind == "finished":
            self._running.pop(worker, None)
            self.done += 1
            if self._live is None and not self.quiet:
                left = self.seconds_left()
                ends = f", {clock(left)} left" if left else ""
                self.console.print(
                    f"{self.done}/{self.total} {self._outcome(content)}{ends}", highlight=False, markup=False
                )
        if self._live is not None:
            self._live.update(self._render())

    def _report_outage(self, worker: int, outage: str | None) -> None:
        """Print once that the database is away, for all workers together, and once that it is back."""
        before = bool(self._without)
        if outage is None:
            self._without.discard(worker)
        else:
            self._without.add(worker)
        if not self.quiet and before != bool(self._without):
            note = "the database is back" if outage is None else f"{outage}; waiting for it to come back"
            self.console.print(f"Note: {note}", highlight=False, markup=False)

    def _failure(self, failed: Failed) -> str:
        """Return which run failed and why; a traceback that was shown before is not shown again."""
        said = f"{failed.task} {failed.label} {describe(failed.point)} failed: {failed.error}"
        shown = "" if failed.traceback in self._shown else f"\n{failed.traceback}"
        self._shown.add(failed.traceback)
        return said + shown

    def _outcome(self, finished: Finished) -> str:
        record = finished.record
        metric = self.metric[finished.task]
        value = (record.test or record.valid).get(metric)
        said = f"{metric} {value:.4g}" if value is not None else "done"
        if record.status == "diverged":
            said = "diverged"
        elif record.status == "pruned":
            said = f"pruned at step {record.steps} ({said})"
        return f"{finished.task} {finished.label} {describe(finished.point)}: {said}"

    def _render(self) -> RenderableType:
        left = self.seconds_left()
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self._phase or "starting", style="bold"),
            ProgressBar(self.total, self.done, width=30),
            Text(f"{self.done} of {self.total} runs"),
            Text(f"{clock(left)} left" if left is not None else ""),
        )
        rows = Table.grid(padding=(0, 2))
        for _, r in sorted(self._running.items()):
            if r is None:
                rows.add_row("", Text("waiting for a trial that runs elsewhere", style="dim"), "", "")
                continue
            loss = "" if r.loss is None else f"loss {r.loss:.4g}"
            rows.add_row(
                Text(f"  {r.label}"),
                Text(describe(r.point)),
                Text(f"epoch {r.epoch:.1f}"),
                Text(loss),
                f"{r.fraction:4.0%}",
            )
        return Group(head, rows)


def clock(seconds: float) -> str:
    """Return a duration for people.

    Example:
      >>> clock(75), clock(7500), clock(500_000)
      ('1m 15s', '2h 05m', '5d 18h')
    """
    s = round(seconds)
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m {s % 60:02}s"
    if s < 86400:
        return f"{s // 3600}h {s % 3600 // 60:02}m"
    return f"{s // 86400}d {s % 86400 // 3600:02}h"
