"""Every row of the errata: the printed statement fails on its counter-example, the repaired one holds there."""

from pathlib import Path

import pytest

from acmo.theory.__main__ import main
from acmo.theory.errata import ERRATA, Erratum, markdown_table, replace_table
from tests.support.paths import ROOT

DOCS = ROOT / "docs" / "theory.md"


@pytest.mark.parametrize("row", ERRATA, ids=[row.key for row in ERRATA])
def test_the_printed_statement_fails_and_the_repaired_one_holds(row: Erratum) -> None:
    slacks = row.evaluate()
    assert slacks.printed < 0 <= slacks.repaired


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
