"""``python -m acmo.theory``: one command, one table, three figures, and nothing heavy in ``import acmo``."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from acmo.theory import figures
from acmo.theory.__main__ import main
from acmo.theory.descent import Descent
from acmo.theory.extras import import_extra
from acmo.theory.rate import Rate

HEAVY = ("scipy", "matplotlib", "rich", "sklearn")


def test_importing_the_theory_imports_none_of_the_labs_packages() -> None:
    code = f"import acmo, acmo.theory.__main__, sys; print([m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"the descent measurement needs scikit-learn: pip install acmo\[lab\]"):
        import_extra("sklearn.datasets", "the descent measurement")


def test_a_rate_of_too_few_steps_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", "10"])
    assert "--steps >= 128" in capsys.readouterr().err


def test_the_three_figures_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    t = 2.0 ** np.arange(10)
    rate = Rate(t, t**-0.5, t**-0.5, 0.1 * t**-0.5, 9 * t**-0.5, 3 * t**-0.5, 5, t**-0.5)
    cosines = np.random.default_rng(0).uniform(0.4, 1, 50)
    made = [
        figures.rate_figure(rate, tmp_path / "new"),
        figures.angle_figure([Descent("ACMo", 0.1, 50, 1.0, 0.5, 1.0, 0.1, cosines)], tmp_path / "new"),
        figures.geometry_figure(tmp_path / "new"),
    ]
    assert [p.name for p in made] == ["rate.png", "angles.png", "geometry.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in made)


@pytest.mark.slow
def test_a_short_run_has_its_table_and_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in HEAVY:
        pytest.importorskip(module)
    threads = torch.get_num_threads()
    try:
        assert main(["--steps", "128", "--seeds", "4", "--epochs", "1", "--out", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "Theorem 4.1, repaired" in out
    assert "exponent of T" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["angles.png", "geometry.png", "rate.png"]


@pytest.mark.slow
def test_full_run_ends_in_two_minutes_and_true_statements_hold(tmp_path: Path) -> None:
    for module in HEAVY:
        pytest.importorskip(module)
    resource = pytest.importorskip("resource")  # not on Windows
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    out = subprocess.run(
        [sys.executable, "-m", "acmo.theory", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert out.returncode == 0, out.stdout + out.stderr
    assert "Theorem 4.1, repaired" in out.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["angles.png", "geometry.png", "rate.png"]
    assert seconds < 180  # processor time, of two cores: the wall's depends on who else is working here
