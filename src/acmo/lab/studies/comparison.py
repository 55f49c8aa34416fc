"""A comparison from its plan to its summary: tune, choose on validation data, repeat with fresh seeds, sum up."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from acmo.lab import atomic
from acmo.lab.config.extension import LIMIT, extends, next_rate
from acmo.lab.config.grids import check_names, grid_of, run_counts, tried_values
from acmo.lab.config.plan import Contender, Plan
from acmo.lab.errors import LabError
from acmo.lab.redaction import redact_passwords, redact_value
from acmo.lab.results.comparison_folder import Comparison, load, read_head, write_head, write_summary
from acmo.lab.results.run_record import RunRecord
from acmo.lab.results.summary import choose_settings
from acmo.lab.runs import provenance
from acmo.lab.studies.progress import Display
from acmo.lab.studies.spec import Spec
from acmo.lab.studies.stages import final_spec, tuning_spec, tuning_waves
from acmo.lab.studies.storage import Store
from acmo.lab.studies.trials import Studies
from acmo.lab.studies.worker import Failed
from acmo.lab.studies.worker_pool import Pool
from acmo.rivals import REGISTRY

if TYPE_CHECKING:
    from acmo.lab.tasks.base import Task


class Compare:
    """A comparison under way.

    Args:
      plan: what to compare.
      out: the output folder.
      store: where the studies are kept.
      workers: how many processes; None: as many as there are cores, or GPUs.
      console: for progress.
      quiet: show none.
    """

    def __init__(
        self,
        plan: Plan,
        out: Path,
        store: Store,
        workers: int | None = None,
        *,
        console: Console | None = None,
        quiet: bool = False,
    ) -> None:
        self.plan, self.out, self.store = plan, out, store
        self.console, self.quiet = console or Console(stderr=True), quiet
        tasks = check(plan, settings=not self._is_known())
        self.scores = {name: task.score for name, task in tasks.items()}
        self.data = {name: provenance.describe_data(task) for name, task in tasks.items()}
        self.size, self.gpus = pool_size(plan.device, workers)
        self.records: list[RunRecord] = []
        self.failed: list[Failed] = []  # runs that ended with an error of the user's optimizer or task
        self._studies: Studies | None = None

    def run(self, *, final: bool = True) -> Comparison:
        """Do all that is not done, and return what came out; what was done before is found again.

        Args:
          final: repeat the best settings; False: tune only.
        """
        self._prepare()
        counts, tasks = run_counts(self.plan, final=final), len(self.plan.tasks)
        runs = tasks * sum(count["tune"] + count["final"] for count in counts.values())
        untuned = {label for label, count in counts.items() if not count["tune"]}
        metric = {task: score.metric for task, score in self.scores.items()}
        with Display(self.console, runs, metric, quiet=self.quiet) as display:
            pool = Pool(self.store, self.out, self.size, self.gpus)
            try:
                for wave in tuning_waves(self.plan, final=final):
                    self._stage(pool, display, f"tuning {_names([c.label for c in wave])}", self._tuning(wave))
                    for _ in range(LIMIT):
                        if not (specs := self._extensions(wave)):
                            break
                        labels = list(dict.fromkeys(spec.label for spec in specs))
                        display.total += sum(map(len, specs))
                        self._stage(pool, display, f"learning rates beyond the grid: {_names(labels)}", specs)
                if final:
                    self.records += self._earlier_tuning(untuned)
                    specs = self._final()
                    without_best = tasks * len(counts) - len(specs)
                    display.total -= self.plan.seeds * without_best
                    which = "the best" if len(untuned) < len(counts) else "the only setting"
                    what = f"{self.plan.seeds} seed{'s' * (self.plan.seeds > 1)} of {which}"
                    self._stage(pool, display, what, specs)
            finally:
                self.failed = pool.failed
                pool.close(self._studies)
                self._let_go()
        return self._result()

    def _is_known(self) -> bool:
        """Return whether the folder holds this very comparison: its settings were checked when it was made."""
        head = read_head(self.out)
        now = {"config": self.plan.model_dump(mode="json"), "grids": tried_values(self.plan)}
        return bool({key: head.get(key) for key in now} == redact_value(now))

    def _prepare(self) -> None:
        """Make the folder, or see that what is in it is the same comparison; note what this one is."""
        with atomic.explained(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        with self.store.lock():  # two that begin at once must not both find the folder empty
            self._note()

    def _note(self) -> None:
        check_folder(self.plan, self.out, self.data)
        # SQLite is beside this file: its path is of no use to others.
        storage = "sqlite" if self.store.url.startswith("sqlite") else self.store.safe_url
        self.head = {**provenance.record(self.plan), "scores": self.scores, "data": self.data, "storage": storage}
        self.head["grids"] = tried_values(self.plan)
        self.head["provenance"]["command"] = [redact_passwords(word, self.store.url) for word in sys.argv]
        write_head(self.out, self.head)

    def _stage(self, pool: Pool, display: Display, text: str, specs: list[Spec]) -> None:
        self._let_go()
        report = display.report()
        studies = self._studies = Studies(self.store, specs, "parent", lambda outage: report("outage", -1, outage))
        studies.enqueue()
        display.phase(text, studies.counts()["done"])
        pool.run(studies, report)
        for spec in specs:
            self.records += studies.records(spec) + studies.failures(spec)

    def _let_go(self) -> None:
        if self._studies is not None:
            self._studies.close()
            self._studies = None

    def _tuning(self, wave: list[Contender]) -> list[Spec]:
        specs = []
        for task, score in self.scores.items():
            for contender in wave:
                decay = self._fixed_decay(contender, task)
                specs.append(tuning_spec(self.plan, contender, task, score, decay, self._fingerprint(task)))
        return specs

    def _earlier_tuning(self, untuned: set[str]) -> list[RunRecord]:
        """Return the finished tuning runs of contenders that are not tuned; earlier versions tuned an only setting."""
        runs = load(self.out).runs if untuned else []
        ended = [run for run in runs if run.status not in ("unfinished", "failed")]
        return [run for run in ended if run.role == "tune" and run.label in untuned]

    def _extensions(self, wave: list[Contender]) -> list[Spec]:
        """Return the studies beyond the grids whose best learning rate lies at the edge of what was tried."""
        specs = []
        for task, score in self.scores.items() if extends(self.plan) else ():
            for contender in wave:
                decay = self._fixed_decay(contender, task)
                chosen = self._chosen(contender, task)
                grid = grid_of(self.plan, contender, decay)
                if chosen is None or "lr" not in grid:
                    continue
                tried = {run.settings["lr"] for run in self._tuned(contender.label, task)}
                lr = next_rate(grid["lr"], tried, chosen["lr"])
                if lr is not None and _takes_rate(contender, {**chosen, "lr": lr}):
                    specs.append(tuning_spec(self.plan, contender, task, score, decay, self._fingerprint(task), lr))
        return specs

    def _fixed_decay(self, contender: Contender, task: str) -> float | None:
        """Return the weight decay that a contender takes over from SGD-momentum; None if it takes over none."""
        if self.plan.protocol != "fixed-wd" or contender.label == "sgd-momentum":
            return None
        chosen = self._chosen(next(c for c in self.plan.contenders() if c.label == "sgd-momentum"), task)
        if chosen is None:
            errors = [run.reason for run in self._tuned("sgd-momentum", task) if run.status == "failed"]
            lost = f"failed or diverged on {task} ({errors[-1]})" if errors else f"diverged on {task}"
            raise LabError(f"every setting of sgd-momentum {lost}: there is no weight decay to fix")
        decay: float = chosen.get("weight_decay", 0.0)
        return decay

    def _final(self) -> list[Spec]:
        specs = []
        for task, score in self.scores.items():
            for contender in self.plan.contenders():
                chosen = self._chosen(contender, task)
                if chosen is not None:  # else it diverged everywhere, as the summary shows
                    specs.append(final_spec(self.plan, contender, task, score, chosen, self._fingerprint(task)))
        return specs

    def _fingerprint(self, task: str) -> str | None:
        return self.data[task]["fingerprint"]  # type: ignore[no-any-return]

    def _chosen(self, contender: Contender, task: str) -> dict[str, Any] | None:
        tuned, decay = self._tuned(contender.label, task), self._fixed_decay(contender, task)
        return choose_settings(self.plan, contender, tuned, self.scores[task], decay)

    def _tuned(self, label: str, task: str) -> list[RunRecord]:
        return [r for r in self.records if (r.label, r.task, r.role) == (label, task, "tune")]

    def _result(self) -> Comparison:
        """Write the summary, and return everything as `results.load` would find it."""
        summary = write_summary(self.out, self.plan, self.records, self.scores)
        config = redact_value(self.head["config"])
        rows = [record.to_json() for record in self.records]
        safe = redact_value(rows)
        records = self.records if safe == json.loads(json.dumps(rows)) else [RunRecord.from_json(row) for row in safe]
        stated = self.head["provenance"]
        return Comparison(self.out, config, self.scores, stated, records, summary, data=redact_value(self.data))


def _fingerprints(data: dict[str, Any]) -> list[Any]:
    """Return them in the order of the tasks, whose names are stored without home folders."""
    return [known.get("fingerprint") for known in data.values()]


def check_folder(plan: Plan, out: Path, data: dict[str, Any] | None) -> None:
    """Check that a folder, if it is there, holds this comparison.

    Args:
      plan: the comparison.
      out: the folder.
      data: by task, what `provenance.describe_data` returns; None: not known.
    """
    head = read_head(out)
    differing = plan.differs_from(head.get("config") or {})
    if differing:
        verb = "differ" if len(differing) > 1 else "differs"
        raise LabError(
            f"{out} holds another comparison ({', '.join(differing)} {verb}); choose another folder with --out"
        )
    if head and data is not None and _fingerprints(head.get("data") or {}) != _fingerprints(data):
        raise LabError(f"{out} holds a comparison on other data; choose another folder with --out")
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise LabError(f"{out} cannot be written: {'Permission denied' if there.is_dir() else 'Not a directory'}")


def check(plan: Plan, *, settings: bool = True, data: bool = True) -> "dict[str, Task]":
    """Check that all is there and valid, before a run begins or a folder is made, and return the prepared tasks.

    Args:
      plan: the comparison.
      settings: build every optimizer with every value that it is to try.
      data: get the data, and check it.
    """
    import torch

    from acmo.lab.config.optimizers import build, find_factory
    from acmo.lab.runs.run_folder import pick_device
    from acmo.lab.runs.trackers import require_trackers
    from acmo.lab.tasks import find_task

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise LabError("a comparison is parallel over its runs: start it without torchrun, on each machine once")
    for contender in plan.contenders():
        find_factory(contender.optimizer)
    check_names(plan)
    require_trackers(plan, plan.tasks if data else ())
    if not torch.cuda.is_available():  # else this process would take a part of a GPU, perhaps the only one
        pick_device(plan.device)
    tasks = {name: find_task(name, plan.data, plan.tune_seed) for name in plan.tasks}
    for name in plan.tasks if plan.refit_on_all else ():
        find_task(name, plan.data, plan.tune_seed).join_validation()  # an error where the task cannot
    for contender in plan.contenders() if settings else ():
        for name, task in tasks.items():
            spec = tuning_spec(plan, contender, name, task.score)
            first = {option: values[0] for option, values in spec.grid.items()}
            for point in [first, *({**first, option: v} for option, values in spec.grid.items() for v in values[1:])]:
                config = spec.config(point)
                task.recipe.changed(config)
                build(contender.optimizer, config.settings, torch.nn.Linear(2, 2))
    for task in tasks.values() if data else ():
        task.prepare()
    return tasks


def pool_size(device: str, workers: int | None) -> tuple[int, int]:
    """Return how many processes, and how many GPUs they share."""
    import torch

    gpus = torch.cuda.device_count() if device in ("auto", "cuda") and torch.cuda.is_available() else 0
    if gpus or device not in ("auto", "cpu"):
        return workers or max(1, gpus), max(1, gpus)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return workers or cores or 1, 0


def _takes_rate(contender: Contender, settings: dict[str, Any]) -> bool:
    """Return whether an optimizer can be made with a learning rate that its user did not name."""
    if contender.optimizer in REGISTRY:
        return True
    import torch

    from acmo.lab.config.optimizers import build

    try:
        build(contender.optimizer, settings, torch.nn.Linear(2, 2))
    except LabError:
        return False
    return True


def _names(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= 3 else f"{len(labels)} optimizers"
