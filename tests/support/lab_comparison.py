"""A small ``acmo compare`` in a process of its own, which tests disturb and kill, and what must not depend on that."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.lab_runs import TASKS

RUNS = 10  # two optimizers with two rates and three seeds each


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
