"""The command ``acmo`` in this process, for tests: ``acmo = run_command`` makes it a fixture of a module."""

import signal
import sys

import pytest

QUICK = ["--optimizers", "sgd,adam", "--try", "all.lr=0.1,0.01", "--seeds", "2", "--epochs", "1", "--no-extend"]


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    """Run the command in this process, in an empty folder: (exit code, output, errors)."""
    from acmo.lab.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    before = signal.getsignal(signal.SIGTERM)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["acmo", *args])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    yield run
    signal.signal(signal.SIGTERM, before)


def sentence(result: tuple[int, str, str]) -> str:
    """The one sentence of a command that failed as it should."""
    code, out, err = result
    assert code == 2, (code, out, err)
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("acmo: ")
    return err
