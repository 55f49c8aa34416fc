"""Every row of the errata: the printed statement fails on its counter-example, the repaired one holds there."""

from pathlib import Path

import pytest

from acmo.theory.errata import Erratum, errata, markdown

DOCS = Path(__file__).parents[1] / "docs" / "theory.md"
ROWS = errata()


@pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])
def test_the_printed_statement_fails_and_the_repaired_one_holds(row: Erratum) -> None:
    shown = row.show()
    assert shown.printed < 0 <= shown.repaired


def test_no_two_rows_have_one_key() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS) >= 30


def test_the_docs_have_the_table_as_the_code_has_it() -> None:
    assert markdown() in DOCS.read_text(encoding="utf-8")
