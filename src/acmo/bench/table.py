"""A run as text: aligned for a terminal, or in Markdown."""

from collections.abc import Iterator, Sequence

from acmo.bench.run import Row, SetResult
from acmo.bench.targets import THREADS, Verdict

COLUMNS = (
    "optimizer",
    "ms",
    "quartiles",
    "/ SGD",
    "/ AdamW",
    "words",
    "GB/s",
    "% triad",
    "% plain",
    "state B",
    "peak MB",
    "steps",
)
LEGEND = (
    "ms: median of a step, with quartiles. / SGD, / AdamW: over torch's fused SGD-momentum, or AdamW, in the "
    "same round; the median over rounds. words: float32 numbers per parameter that the update has to move; GB/s: those "
    "over the time. % triad: of a STREAM triad (a = b + s c) on this machine. % plain: of the bandwidth of m = g + βm; "
    "θ −= αm in place on the same set, by the kernel's pass 2 or by fused SGD-momentum, whichever is faster. state B: "
    "bytes of state per parameter. peak MB: what a step allocates at most while it lasts. steps: how many were timed."
)


def cells(row: Row) -> list[str]:
    return [
        row.name,
        number(row.ms),
        f"{number(row.q1_ms)}–{number(row.q3_ms)}",
        f"{row.to_sgd:.2f}",
        f"{row.to_adamw:.2f}",
        f"{row.words:.3g}",
        f"{row.gb_s:.1f}",
        f"{row.triad_percent:.0f}",
        f"{row.plain_percent:.0f}",
        f"{row.state_bytes:.1f}",
        f"{row.peak_bytes / 1e6:.2f}" if row.peak_bytes < 1e7 else f"{row.peak_bytes / 1e6:.0f}",
        str(row.steps),
    ]


def number(x: float) -> str:
    """Three digits, or four."""
    return f"{x:.3f}" if x < 1 else f"{x:.2f}" if x < 100 else f"{x:.0f}"


def heading(result: SetResult) -> str:
    batches = "" if result.batches == 1 else f"; measured in {result.batches} batches, SGD and AdamW in each"
    return (
        f"{result.label}: {result.parameters:,} parameters in {result.tensors:,} tensors"
        f" (triad {result.triad_gb_s:.1f} GB/s{batches})"
    )


def verdict_cells(verdict: Verdict) -> list[str]:
    bounds = [f">= {verdict.least:g}" if verdict.least is not None else ""]
    bounds.append(f"<= {verdict.most:g}" if verdict.most is not None else "")
    value = "–" if verdict.value is None else f"{verdict.value:.2f}"
    return [verdict.where, verdict.what, " and ".join(filter(None, bounds)), value, verdict.said]


def report(
    machine: dict[str, str], results: Sequence[SetResult], verdicts: Sequence[Verdict], threads: int, markdown: bool
) -> Iterator[str]:
    """The lines of a run."""
    grid, title = (markdown_grid, "### ") if markdown else (text_grid, "")
    for what, answer in machine.items():
        yield f"- {what}: {answer}" if markdown else f"{what:10} {answer}"
    for result in results:
        yield from ("", title + heading(result), "")
        yield from grid(COLUMNS, [cells(row) for row in result.rows], 1)
        yield from (f"\nleft out: {name}, {why}" for name, why in result.left_out.items())
    yield from ("", LEGEND, "")
    other = "" if threads == THREADS else f" (set for {THREADS} threads; this run had {threads})"
    yield from (f"{title}Targets{other}", "")
    yield from grid(("where", "what", "target", "measured", ""), [verdict_cells(v) for v in verdicts], 3)


def markdown_grid(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Columns from ``left`` on hold numbers."""
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * left + "---:|" * (len(columns) - left)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def text_grid(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Columns from ``left`` on hold numbers."""
    width = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        pairs = enumerate(zip(row, width, strict=True))
        yield "  ".join(cell.ljust(w) if j < left else cell.rjust(w) for j, (cell, w) in pairs).rstrip()
