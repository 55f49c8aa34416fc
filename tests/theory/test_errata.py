"""Errata with a counter-example: the printed statement fails on it, the repaired one holds there; and their table."""

import re
from pathlib import Path

import numpy as np
import pytest

from acmo.theory import auxiliary
from acmo.theory.__main__ import main
from acmo.theory.errata import ERRATA, Erratum, Severity, count_by_severity, markdown_table, replace_table
from acmo.theory.errata.proof_t3 import alpha0_on_the_papers_route
from tests.support.paths import ROOT

DOCS = ROOT / "docs" / "theory.md"
RUNNING = [row for row in ERRATA if row.evaluate is not None]


@pytest.mark.parametrize("row", RUNNING, ids=[row.key for row in RUNNING])
def test_the_printed_statement_fails_and_the_repaired_one_holds(row: Erratum) -> None:
    assert row.evaluate is not None
    slacks = row.evaluate()
    assert slacks.printed < 0 <= slacks.repaired


def test_rows_that_run_nothing_are_those_that_the_docs_name() -> None:
    unrun = [row.key for row in ERRATA if row.evaluate is None]
    assert sorted(unrun) == ["decay-on-test-data", "sufficient", "two-points"]


def test_sufficients_example_changes_the_loss_by_exactly_zero() -> None:
    g, m = np.array([1.0, 0.0]), np.array([0.0, 3.0])  # f_A = ‖θ‖²/2 at θ = g
    after = g + auxiliary.acmo_minimiser(g, m, float(auxiliary.compute_beta_hat(g, m, 1.0)), 1.0)
    assert float(after @ after - g @ g) == 0.0


def test_every_row_names_its_lines_of_the_source() -> None:
    for row in ERRATA:
        lists = re.findall(r"\((?:tex )?(\d+(?:(?:, |–)\d+)*)\)", row.where)
        numbers = [int(x) for text in lists for x in re.findall(r"\d+", text)]
        assert numbers, row.key
        assert 126 <= min(numbers) <= max(numbers) <= 1289, row.key


def test_counts_cover_all_rows_and_the_table_is_sorted_by_weight() -> None:
    counts = count_by_severity(ERRATA)
    assert sum(counts.values()) == len(ERRATA)
    assert min(counts.values()) > 0
    table = markdown_table(ERRATA)
    places = [table.index(f"| {severity.value} |") for severity in Severity]
    assert places == sorted(places)


def test_the_papers_route_with_all_rows_ends_at_3_over_3837() -> None:
    assert 3 / alpha0_on_the_papers_route() == pytest.approx(3837, abs=1)


def test_no_two_rows_have_one_key() -> None:
    assert len({row.key for row in ERRATA}) == len(ERRATA) >= 30


def test_docs_table_is_the_one_that_the_code_makes() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert replace_table(page, ERRATA) == page, "run: python -m acmo.theory --errata docs/theory.md"


def test_errata_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--errata"]) == 0
    assert capsys.readouterr().out == markdown_table(ERRATA)


def test_errata_command_replaces_the_table_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "theory.md"
    text = DOCS.read_text(encoding="utf-8")
    page.write_text(text.replace(ERRATA[0].printed, "out of date"), encoding="utf-8")
    assert main(["--errata", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == text


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        replace_table("# A page\n", ERRATA)
