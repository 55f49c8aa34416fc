"""``acmo doctor``, ``acmo bench``, ``acmo theory``: modules that work without the lab, as commands of its own."""

import argparse
import importlib
import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

# What follows the command's name goes to the module's own parser.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_MODULES = {"doctor": "acmo.doctor", "bench": "acmo.bench.__main__", "theory": "acmo.theory.__main__"}


class ModuleCommand(TyperCommand):
    """A command whose options are those of a module's parser, which is imported when they are needed."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help as for every other command."""
        assert self.name is not None
        self.params = _read_options(importlib.import_module(_MODULES[self.name]).build_parser())
        super().format_help(ctx, formatter)


def doctor(context: typer.Context) -> None:
    """Show which backend is used on each device, and why.

    It is also python -m acmo.doctor.

    [bold]Examples[/bold]

      acmo doctor

      acmo doctor --self-test
    """
    _run(context)


def bench(context: typer.Context) -> None:
    """Time a step of ACMo beside those of torch's optimizers.

    It is also python -m acmo.bench.

    [bold]Examples[/bold]

      acmo bench --quick

      acmo bench --sets resnet50 --threads 2
    """
    _run(context)


def theory(context: typer.Context) -> None:
    """Check the paper's lemmas, bounds and errata, and draw the figures.

    It is also python -m acmo.theory.

    [bold]Examples[/bold]

      acmo theory --out theory

      acmo theory --errata
    """
    _run(context)


def _run(context: typer.Context) -> None:
    assert context.command.name is not None
    raise typer.Exit(importlib.import_module(_MODULES[context.command.name]).main(context.args))


def _read_options(parser: argparse.ArgumentParser) -> list[Any]:
    """Return the options of a parser as those of a command of typer, for its help."""
    parameters = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        flag = action.nargs == 0
        metavar = "|".join(map(str, action.choices)) if action.choices else action.metavar or action.dest.upper()
        text = (action.help or "").replace("[", "\\[")
        option = typer.Option(
            *action.option_strings,
            help=f"{text[:1].upper()}{text[1:]}.",
            metavar=None if flag else str(metavar),
            show_default=False,
        )
        annotation = Annotated[bool if flag else str | None, option]  # type: ignore[valid-type]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(action.dest, kind, default=None, annotation=annotation))

    def command(**options: Any) -> None: ...

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return list(typer.main.get_command(app).params)
