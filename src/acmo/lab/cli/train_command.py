"""``acmo train``: one run."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acmo.lab.cli import shared_options as o
from acmo.lab.errors import LabError, own_traceback

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from rich.console import Console

    from acmo.lab.results.run_record import RunRecord
    from acmo.lab.runs.training import Progress


@o.with_run_options
def train(
    task: Annotated[
        str, typer.Argument(help="A task, such as digits or cifar100:paper/resnet50.", autocompletion=o.complete_task)
    ],
    optimizer: Annotated[
        str,
        typer.Option(
            rich_help_panel=o.OPTIMIZER,
            help="A name, module:Class or file.py:Class.",
            autocompletion=o.complete_optimizer,
        ),
    ] = "acmo",
    lr: Annotated[
        float | None, typer.Option(rich_help_panel=o.OPTIMIZER, help="Learning rate. \\[default: the optimizer's]")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(rich_help_panel=o.OPTIMIZER, help="Weight decay. \\[default: the optimizer's]")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            rich_help_panel=o.OPTIMIZER,
            help="Another option of the optimizer: momentum=0.8, betas=[0.9,0.99]; repeatable.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(rich_help_panel=o.TRAINING, help="Of the split, the weights, the order of the data.")
    ] = 0,
    test: Annotated[
        bool,
        typer.Option(
            "--test", rich_help_panel=o.DATA, help="Read the test data at the end. Not while you are still choosing."
        ),
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=o.MACHINE, help="Of torch. \\[default: torch's]")
    ] = None,
    out: o.Out = None,
    quiet: o.Quiet = False,
    *,
    run_options: dict[str, Any],
) -> None:
    """Train once; the same command resumes a run that was killed or stopped from its last checkpoint.

    [bold]Examples[/bold]

      acmo train digits --optimizer acmo --lr 0.3

      acmo train cifar100:paper/resnet50 --optimizer acmo --lr 0.1 --weight-decay 5e-4

      torchrun --nproc-per-node 4 -m acmo train cifar10:paper/vgg16 --optimizer sgd --lr 0.1
    """
    from acmo.lab.config.plan import ALIASES, slug
    from acmo.lab.config.run_options import run_config
    from acmo.lab.runs.run_folder import run
    from acmo.lab.runs.stop_signals import stop_on_signal
    from acmo.lab.runs.trackers import require_trackers
    from acmo.lab.tasks import find_task

    settings = o.settings_of(set_ or [], o.given(lr=lr, weight_decay=weight_decay))
    config = run_config(
        task=task, optimizer=ALIASES.get(optimizer, optimizer), settings=settings, seed=seed,
        phase="final" if test else "tune",
        **o.given(threads=threads), **run_options,
    )  # fmt: skip
    require_trackers(config, ())
    config = config.model_copy(update={"fingerprint": find_task(task, config.data, seed).fingerprint()})
    folder = (out or o.default_out(task)) / "runs" / slug(task) / slug(config.optimizer) / config.run_id()
    first = os.environ.get("RANK", "0") == "0"
    console = _console(quiet or not first)
    try:
        with _Shown(console) as progress, stop_on_signal() as stop:
            result = run(config, folder, progress, stop)
    except KeyboardInterrupt:
        console.print("Stopped. To resume from the last checkpoint, give the same command again:", highlight=False)
        console.print(f"  {shlex.join(['acmo', *sys.argv[1:]])}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except Exception as error:
        shown = None if isinstance(error, LabError) else own_traceback(error)
        if shown is None:
            raise
        print(shown, file=sys.stderr)
        raise LabError(f"{config.optimizer} on {task} failed: {type(error).__name__}: {error}; run: {folder}") from None
    if first:
        _print_result(result, folder)


def _print_result(result: "RunRecord", folder: Path) -> None:
    from acmo.lab.studies.progress import clock

    if result.status == "diverged":
        print(f"diverged: {result.reason}")
    for split in ("valid", "test"):
        metrics = getattr(result, split) or {}
        shown = ", ".join(
            f"{k} {v:.4g}" for k, v in metrics.items() if isinstance(v, float) and k not in ("step", "epoch")
        )
        if shown:
            print(f"{split}: {shown}")
    print(f"{result.steps} steps in {clock(result.seconds or 0.0)}; results: {folder}")


def _console(quiet: bool) -> "Console":
    from rich import get_console

    console = get_console()
    console.quiet = quiet
    return console


class _Shown:
    """Epoch, loss and time left of a run under way."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[steps]}"),
            TimeRemainingColumn(),
        )
        self._bar = Bar(*columns, console=console, disable=not console.is_terminal, transient=True)

    def __enter__(self) -> "Callable[[Progress], None]":
        self._bar.start()
        task = self._bar.add_task("loading", total=None, steps="")

        def progress(p: "Progress") -> None:
            loss = f" loss {p.loss:.4g}" if p.step else ""
            steps = f"{p.step}/{p.steps} steps"
            self._bar.update(
                task, completed=p.step, total=p.steps, description=f"epoch {p.epoch:.1f}{loss}", steps=steps
            )

        return progress

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()
