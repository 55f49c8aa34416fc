"""``acmo compare`` and ``acmo tune``."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acmo.lab.cli import shared_options as o
from acmo.lab.errors import LabError

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from rich.console import Console

    from acmo.lab.config.plan import Plan
    from acmo.lab.results import Comparison
    from acmo.lab.studies.storage import Store

OPTIMIZERS_HELP = "Comma-separated: names, module:Class or file.py:Class. \\[default: the paper's seven]"
TRY_HELP = "Values to try: adam.lr=0.1,0.01 or all.lr=…, repeatable; adam.betas=[0.9,0.99],[0.9,0.999]."
GRID_HELP = (
    "equal: four learning rates, half a decade apart, for everyone; lr: the paper's eight; full: its whole grid; "
    "paper: its whole grid, never extended. \\[default: equal]"
)
Extend = Annotated[
    bool | None,
    typer.Option(
        "--extend/--no-extend",
        rich_help_panel=o.TUNING,
        help="Try the next learning rate out while the best one is at the edge of its grid, up to 4 times. "
        "\\[default: extend]",
    ),
]


Prune = Annotated[
    bool | None,
    typer.Option(
        "--prune",
        rich_help_panel=o.TUNING,
        help="Stop tuning runs that fall behind other settings of the same optimizer (successive halving).",
    ),
]


@o.with_run_options
def compare(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(help="Tasks, such as digits or cifar10:tiny/resnet20.", autocompletion=o.complete_task),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=o.WHAT,
            help="A TOML file, or a name of acmo list presets; flags override it. \\[default: the task's own, if any]",
            autocompletion=o.complete_preset,
        ),
    ] = None,
    optimizers: Annotated[
        str | None, typer.Option(rich_help_panel=o.WHAT, help=OPTIMIZERS_HELP, autocompletion=o.complete_optimizer)
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=o.TUNING,
            help="default-wd, fixed-wd (SGD's best for all) or tuned-wd (each its own). \\[default: default-wd]",
        ),
    ] = None,
    grid: Annotated[str | None, typer.Option(rich_help_panel=o.TUNING, help=GRID_HELP)] = None,
    extend: Extend = None,
    try_: Annotated[list[str] | None, typer.Option("--try", rich_help_panel=o.TUNING, help=TRY_HELP)] = None,
    sampler: Annotated[
        str | None, typer.Option(rich_help_panel=o.TUNING, help="grid, tpe or random. \\[default: grid]")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(rich_help_panel=o.TUNING, help="Budget of tpe and random, for each optimizer.")
    ] = None,
    prune: Prune = None,
    seeds: Annotated[
        int | None, typer.Option(rich_help_panel=o.WHAT, help="Runs of the best setting. \\[default: 5]")
    ] = None,
    test_every_setting: Annotated[
        bool | None,
        typer.Option(
            "--test-every-setting",
            rich_help_panel=o.DATA,
            help="Read test data after tuning runs too, for the budget curve; never to select.",
        ),
    ] = None,
    out: o.Out = None,
    storage: o.Storage = None,
    storage_timeout: o.StorageTimeout = "10m",
    workers: o.Workers = None,
    quiet: o.Quiet = False,
    dry_run: o.DryRun = False,
    *,
    run_options: dict[str, Any],
) -> None:
    """Tune optimizers on tasks, repeat the best settings over seeds, and report which differences are shown.

    The same command resumes a comparison that was stopped; more seeds or optimizers are added to it.

    [bold]Examples[/bold]

      acmo compare digits

      acmo compare cifar10:tiny --data DIR --optimizers acmo,sgd,adam

      acmo compare digits --optimizers acmo,my_module:MyOptimizer --try my_module:MyOptimizer.lr=0.1,0.01

      acmo compare --preset paper/cifar10-tuned-resnet50 --dry-run
    """
    from acmo.lab.config.plan import ALIASES, MAY_CHANGE, make_plan, parse_values, slug
    from acmo.lab.config.preset_files import find_preset, presets, read_toml
    from acmo.lab.studies.storage import Store, sqlite_in

    implied = slug(tasks[0]) if preset is None and tasks is not None and len(tasks) == 1 else None
    if implied in presets():
        preset = implied  # the one that ships for this task
    file = None if preset is None else find_preset(preset)
    values = {} if file is None else read_toml(file)
    if file is not None:
        make_plan({"tasks": ["digits"], **values}, file)  # an error in the file is reported with its line
    flags = o.given(
        optimizers=_names(optimizers), protocol=protocol, grid=grid, extend=extend, sampler=sampler, trials=trials,
        seeds=seeds, test_every_setting=test_every_setting, prune=prune,
        tasks=tasks if file is None or tasks != values.get("tasks") else None,
    )  # fmt: skip
    if flags or try_ or run_options.keys() - MAY_CHANGE:  # the file's title does not fit it any more
        values = {key: value for key, value in values.items() if key not in ("title", "needs")}
    values |= flags
    if run_options.keys() & {"epochs", "steps"}:  # one of the two instead of whichever the file has
        values = {key: value for key, value in values.items() if key not in ("epochs", "steps")}
    values |= run_options
    if not values.get("tasks"):
        raise LabError("name a task, such as acmo compare digits, or a --preset (acmo list tasks shows what there is)")
    if optimizers is not None:
        values.pop("contender", None)
        named = {ALIASES.get(name, name) for name in values["optimizers"]} | {"all"}
        values["grids"] = {name: grid for name, grid in values.get("grids", {}).items() if name in named}
        if "all" in values["grids"]:  # what was for the others alone goes with them
            values["grids"]["all"] = _for_some_of(values["grids"]["all"], named - {"all"})
        if not {ALIASES.get(name, name) for name in values.get("baselines", [])} & named:
            values.pop("baselines", None)
    for text in try_ or []:
        label, option, choices = parse_values(text)
        grids = values.setdefault("grids", {})
        grids[label] = {**grids.get(label, {}), option: choices}
    plan = make_plan(values)
    folder = out or o.default_out(*([preset.removesuffix(".toml").replace("/", "-")] if preset else plan.tasks))
    store = Store(storage or sqlite_in(folder), timeout=o.seconds(storage_timeout))
    if preset == implied and preset is not None and dry_run:
        print(f"What is not given comes from the preset {preset}.")
    _execute(plan, folder, store, workers, quiet=quiet, dry_run=dry_run)


@o.with_run_options
def tune(
    task: Annotated[str, typer.Argument(help="A task, such as digits.", autocompletion=o.complete_task)],
    optimizer: Annotated[
        str,
        typer.Option(
            rich_help_panel=o.WHAT, help="A name, module:Class or file.py:Class.", autocompletion=o.complete_optimizer
        ),
    ],
    grid: Annotated[str | None, typer.Option(rich_help_panel=o.TUNING, help=GRID_HELP)] = None,
    extend: Extend = None,
    try_: Annotated[
        list[str] | None,
        typer.Option("--try", rich_help_panel=o.TUNING, help="Values to try instead: lr=0.1,0.01; repeatable."),
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(rich_help_panel=o.TUNING, help="grid, tpe or random. \\[default: grid]")
    ] = None,
    trials: Annotated[int | None, typer.Option(rich_help_panel=o.TUNING, help="Budget of tpe and random.")] = None,
    prune: Prune = None,
    tune_decay: Annotated[
        bool, typer.Option("--tune-decay", rich_help_panel=o.TUNING, help="Tune the weight decay too.")
    ] = False,
    out: o.Out = None,
    storage: o.Storage = None,
    storage_timeout: o.StorageTimeout = "10m",
    workers: o.Workers = None,
    quiet: o.Quiet = False,
    dry_run: o.DryRun = False,
    *,
    run_options: dict[str, Any],
) -> None:
    """Find the best setting of one optimizer on one task, on validation data; test data is not read.

    [bold]Examples[/bold]

      acmo tune digits --optimizer acmo

      acmo tune cifar10:tiny --optimizer adam --sampler tpe --trials 20 --data DIR
    """
    from acmo.lab.config.plan import ALIASES, make_plan, parse_values
    from acmo.lab.studies.storage import Store, sqlite_in

    name = ALIASES.get(optimizer, optimizer)
    grids: dict[str, Any] = {}
    for text in try_ or []:
        before = text.partition("=")[0]
        label, option, choices = parse_values(text if "." in before else f"{name}.{text}")
        grids.setdefault(label, {})[option] = choices
    values = {**o.given(grid=grid, extend=extend, sampler=sampler, trials=trials, prune=prune), **run_options}
    protocol = "tuned-wd" if tune_decay else "default-wd"
    plan = make_plan(
        {**values, "tasks": [task], "optimizers": [name], "grids": grids, "protocol": protocol, "seeds": 1}
    )
    folder = out or o.default_out(f"tune-{task}-{name}")
    store = Store(storage or sqlite_in(folder), timeout=o.seconds(storage_timeout))
    _execute(plan, folder, store, workers, quiet=quiet, dry_run=dry_run, final=False)


def _execute(
    plan: "Plan", folder: Path, store: "Store", workers: int | None, *, quiet: bool, dry_run: bool, final: bool = True
) -> None:
    from rich.console import Console

    from acmo.lab.studies.comparison import Compare

    console = Console()
    store.check()
    if dry_run:
        from acmo.lab.studies.dry_run import describe_plan

        describe_plan(console, plan, folder, store, workers, final=final)
        return
    comparison = Compare(plan, folder, store, workers, console=console, quiet=quiet)
    try:
        found = comparison.run(final=final)
    except KeyboardInterrupt:
        from acmo.lab.redaction import redact_passwords

        command = shlex.join(["acmo", *(redact_passwords(word, store.url) for word in sys.argv[1:])])
        console.print("Stopped; what is done is kept. To resume, give the same command again:", highlight=False)
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    show(console, found, final=final)
    if final:
        from acmo.lab.cli.report_command import page

        page(found, console)
    console.print(f"Results: {folder}", highlight=False, markup=False, soft_wrap=True)
    if comparison.failed:
        last, n = comparison.failed[-1], len(comparison.failed)
        raise LabError(
            f"{n} run{'s' * (n > 1)} failed and {'are' if n > 1 else 'is'} missing in the results, the last one: "
            f"{last.label} on {last.task}: {last.error}; the same command tries again"
        )


def show(console: "Console", found: "Comparison", *, final: bool) -> None:
    """Print the verdict, or the settings in order of preference if there is none yet."""
    from acmo.lab.cli.verdict_table import settings, verdict

    assert found.summary is not None
    for task in found.summary["tasks"]:
        if final:
            console.print(verdict(task, console.width))
        else:
            console.print(settings(task, found.runs))


def _for_some_of(grid: dict[str, Any], optimizers: set[str]) -> dict[str, Any]:
    from acmo.lab.config.optimizers import options_of

    known = [options_of(name) for name in optimizers]
    return {option: values for option, values in grid.items() if any(k is None or option in k for k in known)}


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
