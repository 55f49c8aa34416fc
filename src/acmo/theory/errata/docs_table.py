"""The errata as the Markdown table of docs/theory.md, which lies there between two markers."""

from collections.abc import Iterable

from acmo.theory.errata.erratum import Erratum

COLUMNS = {  # heading: field of `Erratum`
    "key": "key",
    "where": "where",
    "printed": "printed",
    "why it is wrong": "reason",
    "repaired": "repaired",
    "effect on C_0, C_1": "effect",
}
BEGIN = "<!-- errata: made by python -m acmo.theory --errata docs/theory.md -->"
END = "<!-- errata: end -->"


def markdown_table(errata: Iterable[Erratum]) -> str:
    """Return one row per erratum, under `COLUMNS`."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for erratum in errata:
        key, *cells = (str(getattr(erratum, field)).replace("|", r"\|") for field in COLUMNS.values())
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def replace_table(page: str, errata: Iterable[Erratum]) -> str:
    """Return the page with a new table between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r} around its table")
    return f"{before}{BEGIN}\n\n{markdown_table(errata)}\n{END}{after}"
