"""Many machines, one PostgreSQL server: a real one, in a temporary folder, with workers that are killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("psycopg", reason='no driver: pip install "acmo[postgres]"')

from acmo.lab.studies.storage import Store
from acmo.lab.studies.trials import Studies
from tests.support.lab_studies import LRS, record, spec
from tests.support.postgres import ENCODED, PASSWORD, serving


@pytest.fixture(scope="module")
def url():
    """A server of our own on a free port."""
    with serving() as server:
        yield server.url


WORKER = """
import sys, time
sys.path.insert(0, sys.argv[3])
from acmo.lab.studies.storage import Store
from acmo.lab.studies.trials import Studies
from tests.support.lab_studies import record, spec
found = Studies(Store(sys.argv[1], heartbeat=1, grace=3), [spec(name=sys.argv[2])], "worker")
found.enqueue()
while True:
    claim = found.claim()
    if claim is None:
        counts = found.counts()
        if counts["running"] + counts["waiting"] == 0:
            break
        time.sleep(0.2)
        continue
    print("claimed", claim.trial.number, claim.point["lr"], flush=True)
    with found.alive(claim):
        time.sleep(0.5 if len(sys.argv) < 5 else float(sys.argv[4]))
    print("finished", found.finish(claim, record(claim)), claim.point["lr"], flush=True)
"""


def start(url: str, name: str, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-c", WORKER, url, name, str(ROOT), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_workers_share_the_grid_and_survive_a_killed_one(url):
    victim = start(url, "killed", "600")  # at its trial for ten minutes
    assert victim.stdout.readline().startswith("claimed 0")
    others = [start(url, "killed") for _ in range(3)]
    time.sleep(1)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    outputs = [other.communicate(timeout=120) for other in others]
    assert [other.returncode for other in others] == [0, 0, 0], outputs
    lines = [line.split() for out, _ in outputs for line in out.splitlines()]
    assert sorted(float(words[2]) for words in lines if words[0] == "finished") == sorted(
        LRS
    )  # none missing, none twice
    assert all(words[1] == "True" for words in lines if words[0] == "finished")
    assert not any(secret in json.dumps(outputs) for secret in (PASSWORD, ENCODED))
    with Studies(Store(url), [spec(name="killed")]) as found:
        states = [t.state.name for t in found._trials(found.specs[0], "FAIL", "COMPLETE", "RUNNING", "WAITING")]
    assert sorted(states) == ["COMPLETE"] * len(LRS) + ["FAIL"]


def test_a_lock_is_given_back_when_its_holder_is_killed(url):
    hold = "with Store(sys.argv[1]).lock():\n    print('held', flush=True)\n    time.sleep(600)"
    code = f"import sys, time\nfrom acmo.lab.studies.storage import Store\n{hold}"
    holder = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate()
    started = time.monotonic()
    with Store(url).lock():
        assert time.monotonic() - started < 10


def test_growing_studies_find_their_results_on_another_machine(url):
    with Studies(Store(url), [spec([{"seed": 1}], name="seeds", phase="final")]) as first:
        first.enqueue()
        claim = first.claim()
        first.finish(claim, record(claim, 0.5))
    with Studies(Store(url), [spec([{"seed": 1}, {"seed": 2}], name="seeds", phase="final")]) as second:
        second.enqueue()
        assert second.counts() == {"all": 2, "done": 1, "running": 0, "waiting": 1, "failed": 0}
        assert second.records(second.specs[0]) == [record(claim, 0.5)]


def acmo(*args: str, cwd: Path) -> subprocess.CompletedProcess:
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "acmo", *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["password", "host"])
def test_unreachable_database_is_a_sentence_without_password(url, wrong, tmp_path):
    bad = url.replace(ENCODED, "wr0ng-passw0rd") if wrong == "password" else re.sub(r":\d+/", ":1/", url)
    done = acmo("compare", "digits", "--storage", bad, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("acmo: the database postgresql://acmo:***@127.0.0.1")
    assert len(done.stderr.strip().splitlines()) == 1
    for secret in (PASSWORD, ENCODED, "wr0ng-passw0rd", "Traceback"):
        assert secret not in done.stdout + done.stderr


@pytest.mark.slow
def test_two_machines_share_a_comparison_and_print_one_table(url, tmp_path):
    command = [
        "compare",
        "digits",
        "--optimizers",
        "sgd,adam",
        "--try",
        "all.lr=0.1,0.01",
        "--seeds",
        "2",
        "--epochs",
        "1",
    ]
    command += ["--no-extend", "--workers", "1", "--storage", url]
    env = {**os.environ, "COLUMNS": "200"}
    machines = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        arguments = [sys.executable, "-m", "acmo", *command, "--out", "out"]
        machines.append(
            subprocess.Popen(arguments, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    outputs = [m.communicate(timeout=300) for m in machines]
    assert [m.returncode for m in machines] == [0, 0], outputs
    summaries = [json.loads((tmp_path / name / "out" / "summary.json").read_text()) for name in ("a", "b")]
    assert summaries[0] == summaries[1]
    assert all(row["test"]["n"] == 2 for row in summaries[0]["tasks"][0]["rows"])
    folders = [path.name for path in tmp_path.glob("*/out/runs/*/*/*")]
    assert len(folders) == len(set(folders)) == 8  # each run on one machine alone
    written = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".pt"]
    assert not [p for p in written if any(s.encode() in p.read_bytes() for s in (PASSWORD, ENCODED))]
    assert not any(secret in json.dumps(outputs) for secret in (PASSWORD, ENCODED))
