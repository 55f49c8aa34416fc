"""The charts: bars are what optimizers hold and what the tables of benchmarks have; every picture has an alt text."""

import re
import shutil

import pytest

from acmo.lab.gallery import charts
from tests.support.paths import ROOT


def test_state_per_parameter_is_what_each_moment_takes():
    bars = dict(charts.measure_state())
    entries = 2 * 512 * 513
    assert bars["SGD-momentum"] == 4
    assert bars["AMSGrad"] == pytest.approx(12, abs=1e-3)  # and the step count
    assert bars["Adam, AdamW"] == pytest.approx(8, abs=1e-3)
    for ours in ("ACMo", "RowACMo", "SpectralACMo"):
        assert 4 <= bars[ours] < 4.001
    assert 2 <= bars["ACMo, m in bfloat16"] < 2.001
    int8 = 2 * 512 * (512 + 4) + 2 * 512 * 4 + 4 * 4  # matrices and their scales, biases, step counts
    assert bars["RowACMo, m in int8"] == pytest.approx(int8 / entries, rel=1e-3)


def test_step_times_are_read_from_the_benchmarks_tables():
    times = charts.read_step_times(
        """### ResNet-50: 25 parameters

| optimizer | ms | / SGD | / AdamW |
|---|---:|---:|---:|
| SGD-momentum fused | 13.30 | 1.00 | 0.77 |
| AdamW foreach | 86.29 | 6.49 | 5.00 |
| ACMo fused | 16.90 | 1.27 | 0.98 |

"""
    )
    assert times == {"ResNet-50": [("SGD-momentum fused", 1.0), ("ACMo fused", 1.27)]}


def test_new_results_replace_the_archive_on_the_page(tmp_path):
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    (tmp_path / "docs" / "images").mkdir()
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "README.md", tmp_path / "benchmarks")
    archived = next((tmp_path / "docs" / "results").glob("archive/*/curves-*.svg")).parent
    shutil.copytree(archived, tmp_path / "docs" / "results" / "new")
    written = charts.write(tmp_path)
    assert [path.name for path in written][:3] == ["state.svg", "steps.svg", "pictures.md"]
    assert {path.parent.name for path in written[3:]} == {"questions"}
    page = written[2].read_text(encoding="utf-8")
    assert "](results/new/curves-" in page
    assert "archive" not in page
    pictures = re.findall(r"!\[(.*?)\]\((.*?)\)", page)
    assert len(pictures) >= 4
    assert all(len(alt.split()) > 10 for alt, _ in pictures)
    assert all((tmp_path / "docs" / target).exists() for _, target in pictures if "angles" not in target)


def test_every_published_comparison_can_be_described():
    curves = sorted((ROOT / "docs" / "results").glob("**/curves-*.svg"))
    assert curves
    for path in curves:
        assert re.search(r"Mean test \w+: .* \d", charts.describe_curves(path)), path


def test_the_page_in_docs_has_todays_state_and_step_times():
    page = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    times = charts.read_step_times((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8"))
    assert charts.describe(charts.measure_state(), "{:.1f}") in page
    for bars in times.values():
        assert charts.describe(bars, "{:.2f}") in page, "run: python -m acmo.lab.gallery.charts"
