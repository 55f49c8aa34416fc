"""The commands together."""

import typer

from acmo.lab.cli import module_commands
from acmo.lab.cli.compare_command import compare, tune
from acmo.lab.cli.gallery_command import gallery
from acmo.lab.cli.listing import show
from acmo.lab.cli.report_command import report
from acmo.lab.cli.train_command import train

app = typer.Typer(
    name="acmo",
    help="Compare optimizers honestly: tuned on validation data, repeated over seeds, judged once on test data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they show local variables, and with them passwords
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compare")(compare)
app.command("tune")(tune)
app.command("train")(train)
app.command("report")(report)
app.command("list")(show)
app.command("gallery")(gallery)
for module in (module_commands.doctor, module_commands.bench, module_commands.theory):
    settings = module_commands.PASS_ON
    app.command(module.__name__, cls=module_commands.ModuleCommand, context_settings=settings)(module)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        import acmo

        print(acmo.__version__)
        raise typer.Exit
