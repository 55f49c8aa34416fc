"""``acmo report``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acmo.lab.errors import LabError

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from rich.console import Console

    from acmo.lab.results import Comparison


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="What was given to compare as --out; two are also shown side by side."),
    ],
    figures: Annotated[
        Path | None,
        typer.Option(help="Draw the learning curves as the paper does, as SVG, PDF and PNG, into this folder."),
    ] = None,
    publish: Annotated[
        Path | None,
        typer.Option(help="Write what is worth publishing into this folder: runs, summary, figures, a README.md."),
    ] = None,
) -> None:
    """Sum up what a folder holds, finished or not: table, summary.json and .csv, trials.jsonl and .csv, report.html.

    [bold]Examples[/bold]

      acmo report runs/digits

      acmo report runs/digits runs/digits-cosine

      acmo report runs/paper-cifar10-tuned-* --figures figures

      acmo report runs/evidence-digits --publish docs/results/digits
    """
    if publish is not None and len(folders) > 1:
        raise LabError("--publish takes one comparison at a time")
    comparisons = [sum_up(folder) for folder in folders]
    if len(comparisons) == 2:
        from acmo.lab.report.side_by_side import write_side_by_side

        print(f"Side by side: {write_side_by_side(comparisons)}")
    if figures is not None:
        from acmo.lab.report.evidence import gather
        from acmo.lab.report.paper_figures import draw

        for path in draw([gather(found) for found in comparisons], figures):
            print(path)
    if publish is not None:
        from acmo.lab.report.publish import publish as write_out

        for path in write_out(folders[0], publish):
            print(path)


def sum_up(folder: Path) -> "Comparison":
    """Write and show the summary of one folder, and return what it holds."""
    from rich.console import Console

    from acmo.lab.cli.verdict_table import verdict
    from acmo.lab.config.plan import make_plan
    from acmo.lab.results.comparison_folder import load, write_summary

    console = Console()
    found = load(folder)
    if found.plan and found.scores:
        found.summary = write_summary(folder, make_plan(found.plan), found.runs, found.scores)
        for task in found.summary["tasks"]:
            console.print(verdict(task, console.width))
    unfinished = sum(run.status == "unfinished" for run in found.runs)
    if not found.runs:
        console.print(f"There is no run in {folder} yet.", highlight=False, markup=False)
    elif unfinished:
        console.print(f"{unfinished} of {len(found.runs)} runs are not finished.", highlight=False)
    page(found, console)
    return found


def page(found: "Comparison", console: "Console") -> None:
    """Write the HTML report."""
    from acmo.lab.report import write

    console.print(f"Report: {write(found)}", highlight=False, markup=False, soft_wrap=True)
