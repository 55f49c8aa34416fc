"""A real PostgreSQL server in a temporary folder, which tests stop and start."""

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PASSWORD = "s3cr3t@of/the:server"
ENCODED = "s3cr3t%40of%2Fthe%3Aserver"
USER = "acmo"


class Server:
    """A server in a folder of its own, on a free port.

    Args:
      folder: its own.
      binaries: the folder of ``pg_ctl``.
      who: whom it runs as.
    """

    def __init__(self, folder: Path, binaries: Path, who: dict) -> None:
        self.folder, self.binaries, self.who = folder, binaries, who
        self.data = str(folder / "data")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://{USER}:{ENCODED}@127.0.0.1:{self.port}/postgres"
        passwords = folder / "password"
        passwords.write_text(PASSWORD)
        passwords.chmod(0o644)
        flags = ["-U", USER, "--auth=scram-sha-256", f"--pwfile={passwords}", "--no-sync"]
        self._run("initdb", "-D", self.data, *flags)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", self.data, "-l", log, "-w", "-t", "60", "-o", options, "start")

    def stop(self) -> None:
        """End it at once, as a power cut would."""
        self._run("pg_ctl", "-D", self.data, "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        command, streams = [str(self.binaries / program), *arguments], {"stdout": subprocess.PIPE, "text": True}
        done = subprocess.run(command, cwd=self.folder, env=env, stderr=subprocess.STDOUT, **streams, **self.who)
        assert done.returncode == 0, done.stdout


@contextmanager
def serving() -> Iterator[Server]:
    """Yield a server that runs; skip the test where none is installed."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server here; get one with: apt-get install -y postgresql")
    who = _unprivileged()
    # Not pytest's folder: only root can go through that one.
    made = subprocess.run(["mktemp", "-d", "/tmp/acmo-pg-XXXXXX"], check=True, capture_output=True, text=True)
    folder = Path(made.stdout.strip())
    if who:
        os.chown(folder, who["user"], who["group"])
    server = Server(folder, binaries, who)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[4]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def _unprivileged() -> dict:
    """Whom the server runs as: it refuses to be root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            who = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
