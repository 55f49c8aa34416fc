"""``acmo doctor``, ``acmo bench``, ``acmo theory``: modules that need no lab, found under its command too."""

import importlib

import typer

# What follows the name goes to the module's own parser, --help too.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def doctor(context: typer.Context) -> None:
    """Say which backend serves each device here, and why; --self-test checks them all (python -m acmo.doctor)."""
    _run("acmo.doctor", context)


def bench(context: typer.Context) -> None:
    """Time a step of ACMo beside those of torch's optimizers (python -m acmo.bench)."""
    _run("acmo.bench.__main__", context)


def theory(context: typer.Context) -> None:
    """Run the paper's lemmas, bounds and errata (python -m acmo.theory)."""
    _run("acmo.theory.__main__", context)


def _run(module: str, context: typer.Context) -> None:
    raise typer.Exit(importlib.import_module(module).main(context.args))
