"""The doctor says what serves and why, and its self-test can fail."""

import subprocess
import sys

import torch

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
    monkeypatch.setattr("acmo.backends.two_pass.compute_scalars", lambda *args: _halved(doctor_solve(*args)))
    assert doctor.main(["--self-test"]) == 1
    assert "FAIL cpu foreach" in capsys.readouterr().out


def test_half_precision_has_room_and_still_sees_five_percent(monkeypatch):
    """What rounding does is well inside the tolerance, and β̂ off by 5% well outside it, in every dtype."""
    monkeypatch.setattr(doctor, "backends", lambda device: {"foreach": {"foreach": True}})

    def ulps() -> list[tuple[float, float]]:
        rows = [detail.split() for _, _, detail in doctor.self_test()]
        assert len(rows) == len(doctor.ULPS)
        return [(float(row[0]), float(row[2])) for row in rows]

    assert all(found <= 0.5 * allowed for found, allowed in ulps())
    monkeypatch.setattr("acmo.backends.two_pass.compute_scalars", lambda *args: _scaled(doctor_solve(*args), 0.95))
    assert all(found > 2 * allowed for found, allowed in ulps())


def test_ulps_are_those_of_the_largest_number_that_went_in():
    one, two = torch.ones(1), torch.full((1,), 2.0)
    assert doctor.ulps(one + 3 * 2**-23, one) == 3
    assert doctor.ulps(one + 4 * 2**-23, one, two) == 2
    assert doctor.ulps(one.bfloat16() + 2**-7, one.bfloat16()) == 1
    assert doctor.ulps(torch.tensor([torch.nan]), one) == torch.inf
    assert doctor.ulps(torch.tensor([torch.inf]), torch.tensor([torch.inf])) == 0


def _scaled(scalars, factor):
    return scalars._replace(beta_hats=[factor * b for b in scalars.beta_hats])


def _halved(scalars):
    return _scaled(scalars, 0.5)


from acmo.backends.scalars import compute_scalars as doctor_solve  # noqa: E402  the true one, before it is patched


def test_gpu_tests_report_what_goes_wrong_without_a_gpu(monkeypatch):
    from acmo import gpu_test

    monkeypatch.setattr(gpu_test, "SPEED_SHAPES", ((8, 8),))
    found = {name: (passed, detail) for name, passed, detail in gpu_test.gpu_test(torch.device("cpu"))}
    assert found["equal bits"][0]
    assert not found["captured graph"][0]
    assert not found["speed"][0]
