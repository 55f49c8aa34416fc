"""A real PostgreSQL server that stops in the middle of a comparison, and workers that are killed meanwhile."""

import os
import signal
import threading
import time

import pytest

pytest.importorskip("psycopg", reason='no driver: pip install "acmo[postgres]"')

from acmo.lab.studies.storage import StorageOutage, Store, outlast_outages
from acmo.lab.studies.trials import Studies
from tests.support.lab_comparison import RUNS, Command, rows, runs_of, wait
from tests.support.lab_studies import finish_all, record, spec
from tests.support.postgres import ENCODED, PASSWORD, serving

AWAY, BACK = "waiting for it to come back", "the database is back"


@pytest.fixture
def server():
    with serving() as found:
        yield found


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
    assert runs_of(tmp_path) == RUNS


@pytest.mark.slow
def test_worker_killed_while_its_trial_runs_is_replaced(server, tmp_path, undisturbed):
    command = Command(tmp_path, server.url)
    wait(lambda: bool(list(tmp_path.glob("out/runs/*/*/*/checkpoints/*.pt"))), 120)
    os.kill(command.children()[0], signal.SIGKILL)
    assert command.end() == 0, command.text
    assert rows(tmp_path) == undisturbed


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


def test_server_that_stops_within_a_query_is_waited_for(server):
    from sqlalchemy import event

    said: list[str | None] = []
    with Studies(Store(server.url, heartbeat=1, timeout=60), [spec()], "w", said.append) as found:
        found.enqueue()
        back, stopped = threading.Timer(3, server.start), []

        @event.listens_for(found._storage.engine, "before_cursor_execute")
        def stop_before_the_trials_are_read(conn, cursor, statement, *more):
            if "FROM trials" in statement and not stopped:
                stopped.append(statement)
                server.stop()
                back.start()

        try:
            assert found.counts()["waiting"] == 6
        finally:
            if stopped:
                back.join()
        assert stopped
        assert "cannot be used" in said[0]
        assert "rolled back" not in said[0]  # what Optuna's second query meets; the first one says more
        assert said[1:] == [None]


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
