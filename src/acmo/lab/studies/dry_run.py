"""What a comparison would take, without running any of it."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from acmo.lab.config.extension import LIMIT, extends
from acmo.lab.config.grids import run_counts
from acmo.lab.config.plan import Plan
from acmo.lab.config.run_options import run_config
from acmo.lab.errors import LabError
from acmo.lab.runs.provenance import describe_data
from acmo.lab.studies.comparison import check, check_folder, pool_size
from acmo.lab.studies.storage import Store


def describe_plan(
    console: Console, plan: Plan, out: Path, store: Store, workers: int | None, *, final: bool = True
) -> None:
    """Check all that the comparison itself would check, and print how many runs there are and what they need."""
    here = plan.data is not None  # nothing is downloaded to look at a plan
    tasks = check(plan, data=here)
    check_folder(plan, out, {name: describe_data(task) for name, task in tasks.items()} if here else None)
    counts = run_counts(plan, final=final)
    lengths = [_length(plan, task) for task in plan.tasks]
    table = Table(title=escape(plan.title) or None)
    for column in ("optimizer", "tuning runs", "final runs"):
        table.add_column(column, justify="left" if column == "optimizer" else "right")
    tune = sum(c["tune"] for c in counts.values())
    seeds = sum(c["final"] for c in counts.values())
    for label, c in counts.items():
        table.add_row(escape(label), str(c["tune"]), str(c["final"]))
    table.add_row("all", str(tune), str(seeds), style="bold")
    console.print(table)
    runs = tune + seeds
    for task, (count, unit) in zip(plan.tasks, lengths, strict=True):
        console.print(
            f"{task}: {runs} runs of {count} {unit}, {runs * count:,} {unit} in all.", highlight=False, markup=False
        )
    if any(not c["tune"] for c in counts.values()):
        console.print("An optimizer with one setting is not tuned.", highlight=False)
    if extends(plan) and tune:
        console.print(
            f"Where a best learning rate is at the edge of its grid, up to {LIMIT} more are tried (--no-extend: none).",
            highlight=False,
        )
    if plan.prune and tune:
        console.print("Tuning runs that fall behind after 25 % or 50 % of their steps are stopped.", highlight=False)
    size, gpus = pool_size(plan.device, workers)
    kind = f"on {gpus} GPU{'s' * (gpus > 1)}" if gpus else "with one thread each"
    where = "SQLite in the folder" if store.url.startswith("sqlite") else store.safe_url
    console.print(
        f"Here: {size} process{'es' * (size > 1)} {kind}; studies in {where}; results in {out}.",
        highlight=False,
        markup=False,
    )
    for name in plan.tasks:
        console.print(_data(name, plan), highlight=False, markup=False, soft_wrap=True)
    if plan.needs:
        console.print(f"Needs: {plan.needs}", highlight=False, markup=False)


def _data(name: str, plan: Plan) -> str:
    """Return where the data of a task is, or raise a `LabError` if it is not where it should be; downloads nothing."""
    from acmo.lab.tasks import find_task

    task = find_task(name, plan.data, plan.tune_seed)
    if not task.data_folder:
        return f"{name}: needs no data."
    if task.data is None:
        return f"{name}: its data is downloaded once; --data ROOT reads ROOT/{task.data_folder} instead."
    missing = [path.name for path in task.data_files() if not path.is_file()]
    if missing:
        raise LabError(f"{task.data} lacks {', '.join(missing)} of {name}")
    return f"{name}: its data is in {task.data}."


def _length(plan: Plan, name: str) -> tuple[int, str]:
    from acmo.lab.tasks import find_task

    task = find_task(name, plan.data, plan.tune_seed)
    options: dict[str, Any] = {k: v for k, v in plan.run_options().items() if v is not None}
    recipe = task.recipe.changed(run_config(task=name, optimizer="acmo", **options))
    return (recipe.epochs, "epochs") if recipe.epochs is not None else (recipe.steps or 0, "steps")
