"""A worker: a process that claims trials, runs them, and reports to the parent."""

import os
import platform
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from acmo.lab.errors import LabError, own_traceback
from acmo.lab.redaction import redact, redact_passwords
from acmo.lab.results.run_record import RunRecord
from acmo.lab.studies.storage import Store
from acmo.lab.studies.trials import Claim, Studies

if TYPE_CHECKING:  # a worker sets its threads before it imports torch
    from acmo.lab.runs.training import Progress

LOG = "workers.log"
_terminated = threading.Event()  # by a SIGTERM to this process


class Running(NamedTuple):
    """What a worker is doing."""

    label: str
    task: str
    point: dict[str, Any]
    fraction: float
    epoch: float
    loss: float | None


class Finished(NamedTuple):
    """A run that ended."""

    label: str
    task: str
    point: dict[str, Any]
    record: RunRecord


class Failed(NamedTuple):
    """A run that ended with an error which is not ours: of an optimizer or a task of the user's, or of the machine."""

    label: str
    task: str
    point: dict[str, Any]
    error: str
    traceback: str


class Stopped(BaseException):
    """The parent asked for an end, or is gone."""


def work(pipe: Connection, store: Store, out: str, gpu: bool) -> None:
    """Run trials of one stage after the other until the parent asks for an end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    signal.signal(signal.SIGTERM, lambda *_: _terminated.set())  # the run under way saves a checkpoint first
    sys.argv = [redact_passwords(word, store.url) for word in sys.argv]  # it goes into the provenance of every run
    sys.stdout = sys.stderr = _Log(Path(out) / LOG, store.url)
    _pass_on(pipe)

    def notify(outage: str | None) -> None:
        pipe.send(("outage", outage))

    try:
        if not gpu:
            import torch

            torch.set_num_threads(1)
        while True:
            while not pipe.poll(0.5):
                if _terminated.is_set():
                    return
            kind, *content = pipe.recv()
            if kind == "quit":
                return
            with Studies(store, content[0], f"{platform.node()}:{os.getpid()}", notify) as studies:
                _stage(pipe, studies, Path(out))
            pipe.send(("idle", None))
    except (Stopped, EOFError, BrokenPipeError):
        return
    except LabError as error:
        _send_error(pipe, str(error))
    except Exception as error:
        traceback.print_exc()
        _send_error(
            pipe, redact_passwords(f"{type(error).__name__}: {error} (details in {Path(out) / LOG})", store.url)
        )


def _stage(pipe: Connection, studies: Studies, out: Path) -> None:
    """Do trials until none is left, here or elsewhere."""
    pause = 0.2
    while True:
        if _should_end(pipe):
            raise Stopped
        claim = studies.claim()
        if claim is not None:
            pause = 0.2
            _trial(pipe, studies, claim, out)
            continue
        counts = studies.counts()
        if counts["running"] + counts["waiting"] == 0:
            return
        pipe.send(("waiting", None))  # for what others run: it may come back
        time.sleep(pause)
        pause = min(5.0, pause * 1.5)


def _trial(pipe: Connection, studies: Studies, claim: Claim, out: Path) -> None:
    from acmo.lab.runs.run_folder import run

    spec, number = claim.spec, claim.trial.number
    pipe.send(("claimed", (spec.name, number)))
    last = looked = 0.0
    ending, reported = False, -1

    def stop() -> bool:
        """Return whether the parent asked for an end, or is gone; looked at every 0.1 s."""
        nonlocal looked, ending
        if not ending and time.monotonic() - looked > 0.1:
            looked = time.monotonic()
            ending = _should_end(pipe)
        return ending

    def progress(p: "Progress") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.2:
            last = now
            running = Running(spec.label, spec.task, claim.point, p.step / max(1, p.steps), p.epoch, p.loss)
            pipe.send(("running", running))

    def prune(percent: int, score: float) -> bool:
        nonlocal reported
        before, reported = reported, percent
        return percent > before and studies.should_prune(claim, percent, score)

    config = claim.config
    inside = f"{spec.folder}/{config.run_id()}"
    try:
        with studies.alive(claim):
            ended = run(config, out / inside, progress, stop, prune if spec.prune else None)
        record = replace(ended, label=spec.label, role=spec.phase, folder=inside)
    except BaseException as error:
        failed = isinstance(error, Exception) and not isinstance(error, (LabError, EOFError, BrokenPipeError))
        what = redact(f"{type(error).__name__}: {error}", studies.store.url)
        with suppress(LabError):  # if the database is away as well, the missing heartbeat ends the trial
            # After a SIGTERM to this worker alone, another one resumes the run from its checkpoint.
            interrupted = not failed and _terminated.is_set()
            studies.give_back(spec.name, number, died=interrupted, error=what if failed else None)
        if isinstance(error, KeyboardInterrupt) and ending:
            raise Stopped from None
        if failed:
            traceback.print_exc()
            shown = redact(own_traceback(error) or traceback.format_exc().rstrip(), studies.store.url)
            pipe.send(("failed", Failed(spec.label, spec.task, claim.point, what, shown)))
            return
        raise
    studies.finish(claim, record)
    pipe.send(("finished", Finished(spec.label, spec.task, claim.point, record)))


def _should_end(pipe: Connection) -> bool:
    """Return whether a SIGTERM came, the parent asked for an end, or is gone."""
    if _terminated.is_set():
        return True
    try:
        return pipe.poll() and pipe.recv()[0] == "quit"
    except (EOFError, OSError):
        return True


def _pass_on(pipe: Connection) -> None:
    """Report a damaged checkpoint or a lost tracker to the parent; all warnings go into the log as well."""
    log = warnings.showwarning

    def shown(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        from acmo.lab.runs.checkpoints import DamagedCheckpoint
        from acmo.lab.runs.trackers import TrackerLost

        log(message, category, *where, **more)
        if issubclass(category, DamagedCheckpoint | TrackerLost):
            pipe.send(("note", str(message)))

    warnings.showwarning = shown


def _send_error(pipe: Connection, sentence: str) -> None:
    with suppress(OSError):
        pipe.send(("error", sentence))


class _Log:
    """A stream into the log file, without passwords; several processes can write, each line at once."""

    def __init__(self, path: Path, url: str) -> None:
        self._path, self._url = path, url
        self.encoding = "utf-8"

    def write(self, text: str) -> int:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(redact(text, self._url))
        except OSError:
            pass  # a full disk must not hide the error that is being reported
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False
