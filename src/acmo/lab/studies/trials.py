"""A study: the settings of one contender on one task, each tried once, by whichever worker on whichever machine.

Every claim of a trial happens under the store's lock, so that no setting is handed out twice, none beyond the last, and
a trial that runs but bears no worker's mark can only be one whose worker died while it was claiming.
"""

import json
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from math import inf, isfinite
from typing import Any, TypeVar

from acmo.lab.config.run_options import RunConfig
from acmo.lab.errors import LabError
from acmo.lab.results.run_record import RunRecord
from acmo.lab.studies.spec import Spec, decode, encode
from acmo.lab.studies.storage import StorageOutage, Store, import_optuna, outlast_outages

T = TypeVar("T")
DONE = ("COMPLETE", "PRUNED")
# Successive halving: after 25 % and 50 % of the steps, the better half is promoted to the next rung.
FIRST_RUNG, REDUCTION = 25, 2


@dataclass
class Claim:
    """A trial that this worker runs."""

    spec: Spec
    trial: Any
    point: dict[str, Any]

    @property
    def config(self) -> RunConfig:
        return self.spec.config(self.point)


def _outlasting(method: Callable[..., T]) -> Callable[..., T]:
    """Make a method of `Studies` wait for a database that has gone away, and begin again."""

    @wraps(method)
    def persistent(self: "Studies", *args: Any, **more: Any) -> T:
        return outlast_outages(self.store, lambda: method(self, *args, **more), self.timeout, self.notify)

    return persistent


class Studies:
    """The studies of one stage of a comparison.

    Args:
      store: where they are kept.
      specs: which.
      worker: a mark for the trials that are claimed here.
      notify: called with a sentence when the database goes away, and with None when it is back.
    """

    def __init__(
        self,
        store: Store,
        specs: Sequence[Spec],
        worker: str = "",
        notify: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self.store, self.notify, self.timeout = store, notify, store.timeout
        self.specs = list(specs)
        self.worker = worker
        self._optuna = import_optuna()
        self._connect()
        self._key_of: dict[int, str] = {}  # of trials
        self._keys = {spec.name: [json.dumps(p, sort_keys=True) for p in spec.points] for spec in self.specs}

    @_outlasting
    def _connect(self) -> None:
        self._storage = self.store.open()
        with self.store.lock(), self.store.explained():
            self._studies = {spec.name: self._open(spec) for spec in self.specs}

    def close(self) -> None:
        """Let go of the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def __enter__(self) -> "Studies":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @_outlasting
    def enqueue(self) -> None:
        """Put every point in the queue that is neither waiting, running nor done; doing it again adds nothing."""
        with self.store.lock(), self.store.explained():
            for spec in self.specs:
                study = self._studies[spec.name]
                live = set(map(self._read_key, self._trials(spec, "WAITING", "RUNNING", *DONE)))
                for point, key in zip(spec.points, self._keys[spec.name], strict=True):
                    if key not in live:
                        study.enqueue_trial({o: encode(v) for o, v in point.items()}, user_attrs={"point": point})

    def claim(self) -> Claim | None:
        """Return the next trial; None if nothing waits (but `running` ones may come back to the queue)."""
        return outlast_outages(self.store, self._claim, self.timeout, self.notify, settle=True)

    def _claim(self) -> Claim | None:
        with self.store.lock(), self.store.explained():
            for spec in self.specs:
                study = self._studies[spec.name]
                self._requeue_dead(spec)
                full = spec.sampler != "tpe" or self._drawn(spec) >= spec.trials
                if full and not self._trials(spec, "WAITING"):
                    continue
                trial = study.ask()
                point = self._point(spec, trial)
                self._storage.record_heartbeat(trial._trial_id)
                trial.set_user_attr("point", point)
                trial.set_user_attr("claimed", {"trial": trial.number, "worker": self.worker})
                return Claim(spec, trial, point)
        return None

    @_outlasting
    def finish(self, claim: Claim, record: RunRecord) -> bool:
        """Store the record; return False if the trial was given to someone else because we seemed dead."""
        study = self._studies[claim.spec.name]
        score = claim.spec.score
        value = record.score_on("test" if claim.spec.phase == "final" else "valid", score.metric)
        worst = -score.sign * inf
        with self.store.explained():
            try:
                claim.trial.set_user_attr("record", record.to_json())
                if record.status == "pruned":
                    study.tell(claim.trial, state=self._optuna.trial.TrialState.PRUNED)
                else:
                    study.tell(claim.trial, worst if value is None or not isfinite(value) else float(value))
            except (ValueError, self._optuna.exceptions.UpdateFinishedTrialError):
                return False
        return True

    def should_prune(self, claim: Claim, percent: int, score: float) -> bool:
        """Report a validation score after so many per cent of the steps; return whether to stop the run there.

        A database that is away for a moment stops nothing.
        """
        if not claim.spec.prune:
            return False
        with suppress(StorageOutage), self.store.explained():
            try:
                claim.trial.report(score, percent)
                return bool(claim.trial.should_prune())
            except self._optuna.exceptions.UpdateFinishedTrialError:  # it was given to someone else
                return False
        return False

    @_outlasting
    def give_back(self, name: str, number: int, *, died: bool = False, error: str | None = None) -> None:
        """End a trial that is not done. `enqueue` takes it up again, or we at once if its worker died.

        Args:
          name: of the study.
          number: of the trial.
          died: put it in the queue again.
          error: that ended its run, if one did.
        """
        study = self._studies[name]
        with self.store.lock(), self.store.explained():
            trial = study.trials[number]
            if trial.state.is_finished():
                return
            if error is not None:
                self._storage.set_trial_user_attr(trial._trial_id, "error", error)
            study.tell(number, state=self._optuna.trial.TrialState.FAIL)
            if died:
                self._storage.get_heartbeat_stale_trial_callback()(study, trial)

    @_outlasting
    def records(self, spec: Spec) -> list[RunRecord]:
        """Return the records of the trials that are complete, in the order of their points."""
        try:
            return [RunRecord.from_json(trial.user_attrs["record"]) for trial in self._done(spec)]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise LabError(f"a trial of {spec.name} in {self.store.safe_url} holds no record of a run") from None

    @_outlasting
    def failures(self, spec: Spec) -> list[RunRecord]:
        """Return a record with the error as its reason for every point that failed and was not done since."""
        with self.store.explained():
            failed = {_key(t.user_attrs.get("point")): t for t in self._trials(spec, "FAIL") if "error" in t.user_attrs}
        done = {_key(t.user_attrs.get("point")) for t in self._done(spec)} if failed else set()
        return [self._failure(spec, t) for key, t in failed.items() if key not in done]

    def _failure(self, spec: Spec, trial: Any) -> RunRecord:
        config = spec.config(trial.user_attrs["point"])
        about = {"task": spec.task, "label": spec.label, "optimizer": config.optimizer, "role": spec.phase}
        where = {"run": config.run_id(), "folder": f"{spec.folder}/{config.run_id()}"}
        ended = {"seed": config.seed, "settings": config.settings, "status": "failed"}
        return RunRecord.from_json({**about, **ended, **where, "reason": trial.user_attrs["error"]})

    def _done(self, spec: Spec) -> list[Any]:
        with self.store.explained():
            complete = self._trials(spec, *DONE)
        if spec.sampler == "tpe":
            return complete
        found: dict[str, Any] = {}
        for t in complete:
            found.setdefault(self._key_of.get(t._trial_id) or self._read_key(t), t)
        return [found[key] for key in self._keys[spec.name] if key in found]

    def _read_key(self, trial: Any) -> str:
        """Return what identifies a trial's point, and keep it."""
        key = self._key_of.get(trial._trial_id)
        if key is None:
            key = self._key_of[trial._trial_id] = json.dumps(trial.user_attrs.get("point"), sort_keys=True)
        return key

    def _drawn(self, spec: Spec) -> int:
        """Return how many trials the sampler has drawn, those that ended with an error among them."""
        return len(self._trials(spec, "RUNNING", *DONE)) + self._count_failed(spec)

    def _count_failed(self, spec: Spec) -> int:
        """Return how many trials ended with an error and were not done since."""
        failed = [_key(t.user_attrs.get("point")) for t in self._trials(spec, "FAIL") if "error" in t.user_attrs]
        if spec.sampler == "tpe":
            return len(failed)
        return len(set(failed) - {_key(t.user_attrs.get("point")) for t in self._done(spec)}) if failed else 0

    @_outlasting
    def counts(self) -> dict[str, int]:
        """Return how many trials there are in all, and how many are done, running, waiting, or ended with an error."""
        total = {"all": 0, "done": 0, "running": 0, "waiting": 0, "failed": 0}
        with self.store.explained():
            for spec in self.specs:
                states = [trial.state.name for trial in self._trials(spec)]
                total["all"] += len(spec)
                total["done"] += len(self._done(spec))
                total["running"] += states.count("RUNNING")
                total["waiting"] += states.count("WAITING")
                total["failed"] += self._count_failed(spec) if "FAIL" in states else 0
        return total

    @contextmanager
    def alive(self, claim: Claim) -> Iterator[None]:
        """Give signs of life for a trial while it runs."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self.store.heartbeat):
                # A database that is away for a moment must not end a training of hours.
                try:
                    self._storage.record_heartbeat(claim.trial._trial_id)
                except Exception:
                    continue

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _open(self, spec: Spec) -> Any:
        samplers = self._optuna.samplers
        seed = zlib.crc32(self.worker.encode())  # workers that start at once must not draw the same
        sampler = samplers.TPESampler(seed=seed, constant_liar=True) if spec.sampler == "tpe" else None
        halving = self._optuna.pruners.SuccessiveHalvingPruner(min_resource=FIRST_RUNG, reduction_factor=REDUCTION)
        return self._optuna.create_study(
            storage=self._storage,
            study_name=spec.name,
            direction="maximize" if spec.score.best == "max" else "minimize",
            sampler=sampler or samplers.RandomSampler(seed=0),  # asked for nothing: all is in the queue
            pruner=halving if spec.prune else self._optuna.pruners.NopPruner(),
            load_if_exists=True,
        )

    def _requeue_dead(self, spec: Spec) -> None:
        """End the trials whose workers died, and put them in the queue again. The lock is held."""
        study = self._studies[spec.name]
        self._optuna.storages.fail_stale_trials(study)
        for trial in self._trials(spec, "RUNNING"):
            if trial.user_attrs.get("claimed", {}).get("trial") != trial.number:
                study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
                if "point" in trial.user_attrs:
                    self._storage.get_heartbeat_stale_trial_callback()(study, trial)

    def _trials(self, spec: Spec, *states: str) -> list[Any]:
        """Return the trials in these states; all if none is given."""
        wanted = tuple(map(self._optuna.trial.TrialState.__getitem__, states)) or None
        trials: list[Any] = self._studies[spec.name].get_trials(deepcopy=False, states=wanted)
        return trials

    def _point(self, spec: Spec, trial: Any) -> dict[str, Any]:
        if spec.phase == "final":
            return {"seed": trial.suggest_int("seed", 0, 2**31 - 1)}
        point = {}
        for option, values in spec.grid.items():
            if spec.sampler != "grid" and option == "lr" and len(values) > 1:
                point[option] = trial.suggest_float(option, min(values), max(values), log=True)
            else:
                point[option] = decode(trial.suggest_categorical(option, [encode(v) for v in values]), values)
        return point


def require_all(studies: Studies) -> None:
    """Raise a `LabError` if trials were given up, apart from those that ended with an error."""
    counts = studies.counts()
    lost = counts["all"] - counts["done"] - counts["failed"]
    if lost > 0:
        raise LabError(
            f"{lost} of {counts['all']} trials were given up after their workers died {studies.store.retries + 1} "
            "times (out of memory?); the same command tries them again"
        )


def _key(point: Any) -> str:
    return json.dumps(point, sort_keys=True)
