"""The doctor says what serves and why, and its self-test can fail."""

import subprocess
import sys

import torch

from acmo import doctor, gpu_test, native


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
    monkeypatch.setattr(gpu_test, "SPEED_SHAPES", ((8, 8),))
    monkeypatch.setattr(gpu_test, "SHAPES", ((16, 24), (7,), (40, 4)))
    found = {name: (passed, detail) for name, passed, detail in gpu_test.gpu_test(torch.device("cpu"))}
    for name in ("equal bits", "stochastic rounding", "spectral steps"):
        assert found[name][0], found[name][1]
    for name in ("launches", "captured graph", "speed"):  # these need a GPU
        assert not found[name][0]


def test_kernels_are_told_from_copies_and_named_shortly():
    events = ["sum_chunks", "Memcpy HtoD (Pinned -> Device)", "void at::native::fill(int)", "Memset (Device)"]
    assert gpu_test.list_kernels(events) == ["sum_chunks", "void at::native::fill"]


def test_speed_table_has_milliseconds_ratios_and_rates():
    table = gpu_test.format_times("two tensors", {"SGD fused": 2.0, "ACMo": 3.0}, 4_000_000)
    assert table.splitlines()[2].split() == ["ACMo", "3.000", "1.50", "1.3"]


def test_self_test_ends_with_a_block_to_paste(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "self_test", lambda: iter([("cpu foreach", True, "1.0 of 2 ulps")]))
    assert doctor.main(["--self-test"]) == 0
    out = capsys.readouterr().out
    block = out[out.index("```text") :]
    assert block.endswith("```\n")
    for line in ("ok   cpu foreach: 1.0 of 2 ulps", f"torch    {torch.__version__}", "triton"):
        assert line in block


def test_contenders_are_timed_in_one_order():
    names = list(gpu_test.build_contenders(gpu_test.make_params(torch.device("cpu"), ((8, 8),))))
    assert names[:2] == ["SGD fused", "AdamW fused"]
