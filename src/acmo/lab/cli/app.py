"""The commands together."""

import typer

from acmo.lab.cli import compare, gallery, listing, modules, report, train

app = typer.Typer(
    name="acmo",
    help="Compare optimizers honestly: tuned on validation data, repeated over seeds, judged once on test data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they show local variables, and with them passwords
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compare")(compare.compare)
app.command("tune")(compare.tune)
app.command("train")(train.train)
app.command("report")(report.report)
app.command("list")(listing.show)
app.command("gallery")(gallery.gallery)
for module in (modules.doctor, modules.bench, modules.theory):
    app.command(module.__name__, context_settings=modules.PASS_ON)(module)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        import acmo

        print(acmo.__version__)
        raise typer.Exit
