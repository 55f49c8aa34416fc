"""The errata as the Markdown table of docs/theory.md, which lies there between two markers."""

from collections.abc import Iterable

from acmo.theory.errata.erratum import Erratum, Severity

COLUMNS = {  # heading: field of `Erratum`
    "key": "key",
    "severity": "severity",
    "where": "where",
    "printed": "printed",
    "why it is wrong": "reason",
    "repaired": "repaired",
    "effect on C_0, C_1": "effect",
}
BEGIN = "<!-- errata: made by python -m acmo.theory --errata docs/theory.md -->"
END = "<!-- errata: end -->"


def count_by_severity(errata: Iterable[Erratum]) -> dict[Severity, int]:
    """Return how many errata there are of each severity, the heaviest first."""
    severities = [erratum.severity for erratum in errata]
    return {severity: severities.count(severity) for severity in Severity}


def markdown_table(errata: Iterable[Erratum]) -> str:
    """Return the counts in one sentence, then one row per erratum under `COLUMNS`, the heaviest first."""
    rows = sorted(errata, key=lambda erratum: list(Severity).index(erratum.severity))
    counts = ", ".join(f"{number} *{severity.value}*" for severity, number in count_by_severity(rows).items())
    unrun = [f"`{erratum.key}`" for erratum in rows if erratum.evaluate is None]
    lines = [
        f"**{len(rows)} errata: {counts}.** {len(rows) - len(unrun)} have a counter-example that runs; the others "
        f"({', '.join(unrun)}) are matters of wording or of record.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for erratum in rows:
        fields = (getattr(erratum, field) for field in COLUMNS.values())
        key, *cells = (str(x.value if isinstance(x, Severity) else x).replace("|", r"\|") for x in fields)
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def replace_table(page: str, errata: Iterable[Erratum]) -> str:
    """Return the page with a new table between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r} around its table")
    return f"{before}{BEGIN}\n\n{markdown_table(errata)}\n{END}{after}"
