"""Comparisons that a power cut ends while their trials run, in every database and phase."""

import random
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from optuna.trial import TrialState

from acmo.lab.studies.storage import Store, sqlite_in
from tests.support.lab_comparison import RUNS, Command, rows, runs_of, wait
from tests.support.postgres import serving


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request) -> Iterator[str | None]:
    """The database's URL; None is SQLite in the output folder."""
    if request.param == "sqlite":
        yield None
        return
    if find_spec("psycopg") is None:
        pytest.skip('no driver: pip install "acmo[postgres]"')
    with serving() as server:
        yield server.url


def kill_and_resume(url: str | None, folder: Path, seed: int, phase: str) -> None:
    """Kill a comparison at a random moment of a phase when a trial runs, and resume it.

    The database keeps the dead trials as running ones, whose heartbeat stops.
    """
    draw = random.Random(seed)
    out = folder / "out"
    out.mkdir()
    storage = Store(url or sqlite_in(out)).open()  # before the command: it takes longer than some of the phases
    try:
        command = Command(folder, url)
        command.wait_for("3 seeds of the best" if phase == "seeds" else "tuning")
        before = runs_of(folder)
        wait(lambda: any(out.glob("runs/*/*/*/checkpoints/*.pt")) or runs_of(folder) > before, 60)
        time.sleep(draw.uniform(0, 1.0))
        wait(lambda: count_running(storage) > 0 or command.process.poll() is not None, 60)
        command.kill()
        dead = count_running(storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()
    assert dead > 0, f"no trial was running when the kill came: {command.text}"
    again = Command(folder, url)
    assert again.end() == 0, again.text


def count_running(storage) -> int:
    """Return how many trials of all studies run, as the database has it."""
    running = (TrialState.RUNNING,)
    studies = [study._study_id for study in storage.get_all_studies()]
    return sum(len(storage.get_all_trials(study, deepcopy=False, states=running)) for study in studies)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["tuning", "seeds"])
def test_killed_comparison_resumes_from_its_dead_trials(url, tmp_path, undisturbed, phase):
    kill_and_resume(url, tmp_path, 0, phase)
    assert runs_of(tmp_path) == RUNS
    assert rows(tmp_path) == undisturbed


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("phase", ["tuning", "seeds"])
def test_twenty_kills_per_phase_lose_nothing(url, tmp_path, undisturbed, phase, seed):
    kill_and_resume(url, tmp_path, seed, phase)
    assert runs_of(tmp_path) == RUNS
    assert rows(tmp_path) == undisturbed
