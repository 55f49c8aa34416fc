"""The processes that do the runs of a comparison: one thread each, as many as there are cores.

A process with one thread for each core beats one process with all of them: the models here are small, and what is
parallel inside an operation is less than what is parallel between runs. Each worker talks to the parent over a pipe of
its own, so that one which is killed in the middle of a word leaves the others' untouched.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from acmo.lab.errors import LabError
from acmo.lab.studies.spec import Spec
from acmo.lab.studies.storage import StorageOutage, Store
from acmo.lab.studies.trials import Studies, require_all
from acmo.lab.studies.worker import LOG, Failed, work

_PATIENCE = 15.0  # seconds for workers to end after Ctrl-C: some steps are long


class Pool:
    """The workers of a comparison, which run one stage after the other.

    Args:
      store: where the studies are kept.
      out: the output folder.
      size: how many processes.
      gpus: how many GPUs to deal out among them; 0 for none.
    """

    def __init__(self, store: Store, out: Path, size: int, gpus: int = 0) -> None:
        self.store, self.out, self.size, self.gpus = store, out, size, gpus
        self._workers: dict[int, _Worker] = {}
        self._losses = 0
        self.failed: list[Failed] = []

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, studies: Studies, report: Callable[[str, int, Any], None]) -> None:
        """Do all trials of the studies.

        Args:
          studies: enqueued.
          report: called with ("running", worker, `Running`), ("finished", worker, `Finished`), ("failed", worker,
            `Failed`), ("note", worker, a sentence), ("outage", worker, a sentence or None), ("waiting", worker, None),
            ("idle", worker, None) or ("tick", 0, None), the last about ten times a second.
        """
        counts = studies.counts()
        todo = counts["all"] - counts["done"]
        for slot in range(min(self.size, todo)):
            self._start(slot)
        for worker in self._workers.values():
            worker.stage(studies.specs)
        while any(not w.idle for w in self._workers.values()):
            ready = wait([w.pipe for w in self._workers.values() if not w.idle], timeout=0.1)
            for slot, worker in list(self._workers.items()):
                if worker.pipe in ready and not self._listen(slot, worker, report):
                    self._replace(slot, studies)
            report("tick", 0, None)
        require_all(studies)

    def close(self, studies: Studies | None = None) -> None:
        """End the workers, and give back what they were doing."""
        for worker in self._workers.values():
            worker.send(("quit",))
        deadline = time.monotonic() + _PATIENCE
        for worker in self._workers.values():
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()  # checkpoints are written whole or not at all
                worker.process.join()
            worker.pipe.close()
        for worker in self._workers.values():
            if studies is not None and worker.claimed is not None:
                studies.timeout = 0
                with suppress(StorageOutage):  # the missing heartbeat ends the trial
                    studies.give_back(*worker.claimed)
        self._workers.clear()

    def _start(self, slot: int) -> None:
        if slot in self._workers:
            return
        here, there = get_context("spawn").Pipe()
        changes = {} if self.gpus else {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if self.gpus > 1:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(str(i) for i in range(self.gpus))).split(",")
            changes["CUDA_VISIBLE_DEVICES"] = visible[slot % len(visible)]
        before = {key: os.environ.get(key) for key in changes}
        os.environ.update(changes)  # a spawned process takes them over before it imports torch
        try:
            process = get_context("spawn").Process(
                target=work,
                args=(there, self.store, str(self.out), bool(self.gpus)),
                name=f"acmo-worker-{slot}",
                daemon=True,
            )
            process.start()
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key)
                else:
                    os.environ[key] = value
        there.close()
        self._workers[slot] = _Worker(process, here)

    def _listen(self, slot: int, worker: "_Worker", report: Callable[[str, int, Any], None]) -> bool:
        """Take in one message; False if the worker is dead."""
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, OSError):
            return False
        if kind == "error":
            raise LabError(content)
        if kind == "claimed":
            worker.claimed = content
        elif kind == "idle":
            worker.idle = True
            report("idle", slot, None)
        else:
            if kind == "failed":
                self.failed.append(content)
            if kind in ("finished", "failed"):
                worker.claimed = None
            report(kind, slot, content)
        return True

    def _replace(self, slot: int, studies: Studies) -> None:
        """Remove a dead worker, put its trial in the queue again, and start another in its place."""
        worker = self._workers.pop(slot)
        worker.process.join()
        worker.pipe.close()
        if worker.claimed is not None:
            studies.give_back(*worker.claimed, died=True)
        self._losses += 1
        if self._losses > self.store.retries * self.size + len(studies.specs):
            raise LabError(
                f"workers keep dying, the last with exit code {worker.process.exitcode}; see {self.out / LOG}"
            )
        self._start(slot)
        self._workers[slot].stage(studies.specs)


class _Worker:
    """The parent's view of a worker."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.claimed: tuple[str, int] | None = None
        self.idle = True

    def stage(self, specs: Sequence[Spec]) -> None:
        self.idle = False
        self.send(("stage", list(specs)))

    def send(self, message: tuple[Any, ...]) -> None:
        with suppress(OSError, ValueError):  # it is dead, which `wait` notices
            self.pipe.send(message)
