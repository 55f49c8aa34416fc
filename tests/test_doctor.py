"""The doctor says what serves and why, and its self-test can fail."""

import subprocess
import sys

from acmo import doctor, native


def test_it_names_versions_backend_and_threads(capsys):
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for word in ("acmo", "torch", "python", "threads", "kernel", "cpu"):
        assert word in out
    assert ("fused" in out) == (native.kernel() is not None)


def test_it_says_why_the_kernel_is_missing_and_what_to_do():
    command = [sys.executable, "-m", "acmo.doctor"]
    done = subprocess.run(command, capture_output=True, text=True, env={"ACMO_NATIVE": "0", "PATH": ""}, check=True)
    assert "ACMO_NATIVE=0" in done.stdout
    assert "install a C compiler" in done.stdout
    assert "foreach" in done.stdout


def test_the_self_test_passes_on_every_backend(capsys):
    assert doctor.main(["--self-test"]) == 0
    assert "all backends agree" in capsys.readouterr().out


def test_the_self_test_fails_where_a_backend_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr("acmo.foreach.solve", lambda *args: _halved(doctor_solve(*args)))
    assert doctor.main(["--self-test"]) == 1
    assert "FAIL cpu foreach" in capsys.readouterr().out


def _halved(scalars):
    return scalars._replace(beta_hats=[b / 2 for b in scalars.beta_hats])


from acmo.calibration import solve as doctor_solve  # noqa: E402  the true one, before it is patched
