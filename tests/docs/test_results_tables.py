"""The tables over all published comparisons are those that the per-run files give."""

import pytest

from tests.support.paths import ROOT

pytest.importorskip("optuna", reason='needs the lab: pip install "acmo[lab]"')

from acmo.lab.published import read_published
from acmo.lab.report.results_tables import write_tables

RESULTS = ROOT / "docs" / "results"


def test_the_tables_are_what_the_runs_give():
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    shown = page.split("<!-- tables: begin -->")[1].split("<!-- tables: end -->")[0]
    assert shown.strip() == write_tables(read_published(RESULTS)).strip()
