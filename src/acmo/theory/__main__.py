"""``python -m acmo.theory``: run all checks and measurements, print the results, write the figures."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from acmo.theory import descent, figures
from acmo.theory.errata import ERRATA, markdown_table, replace_table
from acmo.theory.extras import import_extra
from acmo.theory.rate import Measurement, Rate, describe_slopes
from acmo.theory.statements import TRIALS, run_trial


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser("python -m acmo.theory", description="Run the paper's theory (docs/theory.md).")
    parser.add_argument(
        "--out", type=Path, default=Path("theory"), metavar="DIR", help="folder of the figures (theory)"
    )
    parser.add_argument("--steps", type=int, default=2**14, help="largest T of the rate measurement (16384)")
    parser.add_argument("--seeds", type=int, default=200, help="number of trainings in the rate measurement (200)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of each training on digits (10)")
    parser.add_argument(
        "--errata", nargs="?", const=Path("-"), type=Path, metavar="FILE",
        help="only print the errata as a Markdown table; with FILE, put it between the markers there (docs/theory.md)",
    )  # fmt: skip
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 1 if a statement that should hold failed, else 0."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.errata is not None:
        return write_errata(args.errata)
    if args.steps < 128 or args.seeds < 4:
        parser.error(f"a rate needs --steps >= 128 and --seeds >= 4, got {args.steps} and {args.seeds}")
    for module in ("rich.progress", "matplotlib.figure", "scipy.optimize", "sklearn.datasets"):
        import_extra(module, "python -m acmo.theory")  # fail at once, not after a minute
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    console = Console()
    table, all_hold = make_table(), True
    torch.set_num_threads(1)  # the rate measurement uses the other cores, and the networks are small
    with (
        Measurement(args.steps, args.seeds) as measurement,
        Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as progress,
    ):
        bars = {
            "lemmas": progress.add_task("auxiliary problems, lemmas", total=len(TRIALS)),
            "errata": progress.add_task("errata", total=len(ERRATA)),
            "descent": progress.add_task("descent on digits", total=len(descent.OPTIMIZERS) + len(descent.COMPARED)),
            "rate": progress.add_task("rate of Theorem 4.1", total=1.0),
        }
        for name in TRIALS:
            for outcome in run_trial(name):
                all_hold &= outcome.holds
                add_row(table, outcome.statement, outcome.holds, f"{outcome.slack:.3g}", outcome.cases)
            progress.advance(bars["lemmas"])
        for erratum in ERRATA:
            if erratum.evaluate is None:
                progress.advance(bars["errata"])
                continue
            slacks = erratum.evaluate()
            right = slacks.printed < 0 <= slacks.repaired
            all_hold &= right
            add_row(table, f"erratum {erratum.key}: printed", slacks.printed >= 0, f"{slacks.printed:.3g}", 1)
            add_row(table, f"erratum {erratum.key}: repaired", slacks.repaired >= 0, f"{slacks.repaired:.3g}", 1)
            progress.advance(bars["errata"])
        descents = descent.measure(args.epochs, tick=lambda: progress.advance(bars["descent"]))
        while not measurement.finished:
            progress.update(bars["rate"], completed=measurement.progress)
            time.sleep(0.2)
        rate = measurement.result()
        progress.update(bars["rate"], completed=1.0)
    all_hold &= rate.slack() >= 0
    add_row(table, "Theorem 4.1, repaired", rate.slack() >= 0, f"{rate.slack():.3g}", len(rate.T) * rate.seeds)
    console.print(table)
    print_measurements(console, rate, descents, measurement)
    made = [figures.rate_figure(rate, args.out), figures.angle_figure(descents[: len(descent.OPTIMIZERS)], args.out)]
    console.print("figures:", *map(str, [*made, figures.geometry_figure(args.out)]))
    return 0 if all_hold else 1


def write_errata(page: Path) -> int:
    """Print the table of the errata if ``page`` is ``-``, else replace the one that the page has."""
    if page == Path("-"):
        print(markdown_table(ERRATA), end="")
    else:
        page.write_text(replace_table(page.read_text(encoding="utf-8"), ERRATA), encoding="utf-8")
    return 0


def make_table() -> Any:
    """Return the table of the statements, empty."""
    from rich.table import Table

    table = Table("statement", "holds", title="The paper's theory, checked (slack ≥ 0: holds)")
    table.add_column("smallest slack", justify="right")
    table.add_column("cases", justify="right")
    return table


def add_row(table: Any, statement: str, holds: bool, slack: str, cases: int) -> None:
    """Add one statement to the table."""
    table.add_row(statement, "yes" if holds else "[red]no[/red]", slack, f"{cases:,}")


def print_measurements(console: Any, rate: Rate, descents: list[descent.Descent], measurement: Measurement) -> None:
    """Print the measured rate and the shares of steps that descend."""
    from rich.table import Table

    rates = Table("T", "E‖∇f(θ_o)‖², sampled", "mean over o", "± stderr", "SGD", "repaired bound", "printed bound")
    shown = (rate.sampled, rate.averaged, rate.stderr, rate.sgd, rate.repaired, rate.printed)
    for t, *columns in zip(rate.T, *shown, strict=True):
        rates.add_row(f"{int(t)}", *(f"{x:.4g}" for x in columns))
    console.print(rates)
    console.print(describe_slopes(rate))
    p = measurement.problem
    console.print(f"L = {p.smoothness:.4g}, σ = {p.sigma:.4g}, G = {p.gradient_bound:.4g}, {rate.seeds} seeds")
    shares = Table(
        "optimizer", "lr", "steps", "lower this batch", "lower one of the last ten", "inequality of 3.2", "loss"
    )
    for d in descents:
        inequality = "–" if d.inequality != d.inequality else f"{d.inequality:.3f}"
        numbers = (
            f"{d.lr:g}",
            f"{d.steps}",
            f"{d.current:.3f}",
            f"{d.previous:.3f}",
            inequality,
            f"{d.final_loss:.4f}",
        )
        shares.add_row(d.optimizer, *numbers)
    console.print(shares)


if __name__ == "__main__":
    sys.exit(main())
