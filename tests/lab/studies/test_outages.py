"""A real PostgreSQL server that stops in the middle of a comparison, and workers that are killed meanwhile."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason='no driver: pip install "acmo[postgres]"')

from acmo.lab.studies.storage import StorageOutage, Store, outlast_outages
from acmo.lab.studies.trials import Studies
from tests.support.lab_runs import TASKS
from tests.support.lab_studies import finish_all, record, spec
from tests.support.postgres import ENCODED, PASSWORD, Server, serving

AWAY, BACK = "waiting for it to come back", "the database is back"


@pytest.fixture
def server():
    with serving() as found:
        yield found


class Command:
    """An ``acmo compare`` under way, with all that it prints.

    Args:
      folder: where it runs, with ``out`` inside.
      url: of the database; None: SQLite in the folder.
      more: further flags.
    """

    def __init__(self, folder: Path, url: str | None, *more: str) -> None:
        flags = ["--optimizers", "sgd,adam", "--try", "all.lr=0.1,0.01", "--no-extend", "--seeds", "3"]
        flags += ["--checkpoint-every", "5it"]
        flags += ["--workers", "2", "--out", "out", *(["--storage", url] if url else []), *more]
        command = [sys.executable, "-m", "acmo", "compare", f"{TASKS}:Slow", *flags]
        folder.mkdir(exist_ok=True)
        env = {**os.environ, "COLUMNS": "300", "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(command, cwd=folder, env=env, start_new_session=True, **pipes)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_for(self, words: str, timeout: float = 240) -> None:
        """Wait until the words were printed."""
        wait(lambda: words in self.text or self.process.poll() is not None, timeout)
        assert words in self.text, self.text

    def children(self) -> list[int]:
        """The process ids of the workers, which are the children with a pipe."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "-f", "spawn_main"], capture_output=True, text=True
        )
        return [int(number) for number in found.stdout.split()]

    def end(self, timeout: float = 400) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(timeout)
        self._reader.join(10)
        return code

    def kill(self) -> None:
        """End the whole group at once, as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.end()


def wait(done: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)


def rows(folder: Path) -> list[dict]:
    """What must not depend on outages and kills: every optimizer's setting and scores."""
    found = json.loads((folder / "out" / "summary.json").read_text())["tasks"][0]["rows"]
    return [{key: row[key] for key in ("label", "settings", "test_by_seed", "valid")} for row in found]


def runs_of(folder: Path) -> int:
    return len(list(folder.glob("out/runs/*/*/*/result.json")))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[dict]:
    """The rows of the same comparison without outages."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = Command(folder, None)
    assert command.end() == 0, command.text
    return rows(folder)


@pytest.mark.slow
def test_comparison_outlasts_a_server_stopped_in_the_middle(server, tmp_path, undisturbed):
    command = Command(tmp_path, server.url)
    command.wait_for("1/10 ")
    server.stop()
    command.wait_for(AWAY)
    time.sleep(25)
    assert command.process.poll() is None, command.text
    server.start()
    assert command.end() == 0, command.text
    assert command.text.count(AWAY) == 1, command.text
    assert command.text.count(BACK) == 1, command.text
    assert rows(tmp_path) == undisturbed
    assert not any(secret in command.text for secret in (PASSWORD, ENCODED))


@pytest.mark.slow
def test_comparison_gives_up_after_the_storage_timeout(server, tmp_path):
    command = Command(tmp_path, server.url, "--storage-timeout", "3s")
    command.wait_for("1/10 ")
    server.stop()
    try:
        assert command.end() == 2
    finally:
        server.start()
    assert "acmo: the database postgresql://acmo:***@127.0.0.1" in command.text
    again = Command(tmp_path, server.url)
    assert again.end() == 0, again.text
    assert runs_of(tmp_path) == 10


@pytest.mark.slow
def test_worker_killed_while_its_trial_runs_is_replaced(server, tmp_path, undisturbed):
    command = Command(tmp_path, server.url)
    wait(lambda: bool(list(tmp_path.glob("out/runs/*/*/*/checkpoints/*.pt"))), 120)
    os.kill(command.children()[0], signal.SIGKILL)
    assert command.end() == 0, command.text
    assert rows(tmp_path) == undisturbed


def kill_and_resume(server: Server, folder: Path, seed: int, *, phase: str) -> int:
    """Kill a comparison at a random moment of a phase, with its trials running; resume it, and count the dead trials.

    The database keeps the dead trials as running ones, whose heartbeat stops.
    """
    draw = random.Random(seed)
    command = Command(folder, server.url)
    command.wait_for("3 seeds of the best" if phase == "seeds" else "tuning")
    before = runs_of(folder)
    wait(lambda: bool(list(folder.glob("out/runs/*/*/*/checkpoints/*.pt"))) or runs_of(folder) > before, 60)
    time.sleep(draw.uniform(0, 1.5))
    command.kill()
    again = Command(folder, server.url)
    assert again.end() == 0, again.text
    assert runs_of(folder) == 10
    return again.text.count("waiting for a trial")


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["tuning", "seeds"])
def test_killed_comparison_resumes_from_its_dead_trials(server, tmp_path, undisturbed, phase):
    for seed in range(2):
        kill_and_resume(server, tmp_path / str(seed), seed, phase=phase)
        assert rows(tmp_path / str(seed)) == undisturbed
        drop_studies(server)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("phase", ["tuning", "seeds"])
def test_twenty_kills_per_phase_lose_nothing(server, tmp_path, undisturbed, phase, seed):
    kill_and_resume(server, tmp_path / "c", seed, phase=phase)
    assert rows(tmp_path / "c") == undisturbed


def drop_studies(server: Server) -> None:
    """Forget all studies, so that the next comparison begins at its beginning."""
    import sqlalchemy

    url = server.url.replace("postgresql://", "postgresql+psycopg://")
    arguments = {"client_encoding": "utf8"}  # the cluster is in SQL_ASCII
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", connect_args=arguments)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("DROP SCHEMA public CASCADE"))
        connection.execute(sqlalchemy.text("CREATE SCHEMA public"))
    engine.dispose()


def test_studies_wait_for_a_server_that_comes_back(server):
    said: list[str | None] = []
    store = Store(server.url, heartbeat=1, timeout=60)
    with Studies(store, [spec()], "w", said.append) as found:
        found.enqueue()
        claim = found.claim()
        server.stop()
        back = threading.Timer(3, server.start)
        back.start()
        assert found.finish(claim, record(claim))
        back.join()
        assert len(said) == 2
        assert "cannot be used" in said[0]
        assert said[1] is None
        finish_all(found)
        assert found.counts() == {"all": 6, "done": 6, "running": 0, "waiting": 0, "failed": 0}


def test_outage_beyond_the_timeout_is_raised(server):
    store = Store(server.url, heartbeat=1, timeout=2)
    with Studies(store, [spec()], "w") as found:
        server.stop()
        started = time.monotonic()
        try:
            with pytest.raises(StorageOutage):
                found.enqueue()
            assert 2 <= time.monotonic() - started < 30
            found.timeout = 0
            with pytest.raises(StorageOutage):
                found.claim()
        finally:
            server.start()
        found.enqueue()
        assert found.counts()["waiting"] == 6


def test_error_that_is_no_outage_is_not_repeated(tmp_path):
    calls = []

    def fail() -> None:
        calls.append(1)
        with Store("postgresql://me@127.0.0.1:1/x").explained():
            import sqlalchemy

            raise sqlalchemy.exc.ProgrammingError("SELECT", {}, Exception("no such table"))

    with pytest.raises(Exception, match="no such table"):
        outlast_outages(Store("postgresql://me@127.0.0.1:1/x"), fail, 60, print)
    assert len(calls) == 1
