"""``acmo list``."""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer

Listing = tuple[Sequence[tuple[str, ...]], tuple[str, ...]]


class What(str, Enum):
    """What can be listed."""

    tasks = "tasks"
    optimizers = "optimizers"
    presets = "presets"


def show(what: Annotated[What, typer.Argument(help="What to list.")]) -> None:
    """List what can be named on the command line.

    [bold]Example[/bold]

      acmo list tasks
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    rows, columns = {What.tasks: _tasks, What.optimizers: _optimizers, What.presets: _presets}[what]()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False)


def _tasks() -> Listing:
    from acmo.lab.objects import load_object
    from acmo.lab.tasks import TASKS

    rows = []
    for name, where in TASKS.items():
        cls = load_object(where)
        rows.append((name, ", ".join(cls.sizes), ", ".join(cls.nets), (cls.__doc__ or "").strip().splitlines()[0]))
    return rows, ("task", "sizes", "nets", "")


def _optimizers() -> Listing:
    from acmo.lab.config.plan import PAPER
    from acmo.rivals import REGISTRY

    rows = [
        (name, entry.title, "paper" if name in PAPER else "", ", ".join(entry.grid), str(len(entry)), entry.reference)
        for name, entry in REGISTRY.items()
    ]
    return rows, ("optimizer", "title", "", "tuned over", "points", "from")


def _presets() -> Listing:
    from acmo.lab.config.preset_files import presets, read_toml

    return [(name, str(read_toml(path).get("title", ""))) for name, path in presets().items()], ("preset", "")
