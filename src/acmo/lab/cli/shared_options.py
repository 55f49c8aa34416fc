"""Options that several commands share."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from acmo.lab.errors import LabError

# The panels of a command's help.
WHAT, TUNING, TRAINING = "What is compared", "Tuning", "Training"
OPTIMIZER, DATA, MACHINE, OUTPUT = "Optimizer", "Data and evaluation", "Where it runs", "Output"


def complete_task(incomplete: str) -> list[str]:
    """Return the tasks whose names begin so."""
    from acmo.lab.tasks import TASKS

    return [name for name in TASKS if name.startswith(incomplete)]


def complete_optimizer(incomplete: str) -> list[str]:
    """Return the lists whose last name begins so."""
    from acmo.rivals import REGISTRY

    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in ("sgd", *REGISTRY) if name.startswith(last)]


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets whose names begin so."""
    from acmo.lab.config.preset_files import presets

    return [name for name in presets() if name.startswith(incomplete)]


# What every run takes: fields of `acmo.lab.config.run_options.RunOptions` that have a flag.
RUN: dict[str, Any] = {
    "epochs": Annotated[
        int | None, typer.Option(rich_help_panel=TRAINING, help="Train for so many epochs. \\[default: the task's]")
    ],
    "steps": Annotated[int | None, typer.Option(rich_help_panel=TRAINING, help="Train for so many steps instead.")],
    "batch_size": Annotated[
        int | None, typer.Option(rich_help_panel=TRAINING, help="Global batch, over all ranks. \\[default: the task's]")
    ],
    "accumulate": Annotated[
        int | None,
        typer.Option(
            rich_help_panel=TRAINING, help="Into how many parts a rank splits its share of a batch. \\[default: 1]"
        ),
    ],
    "schedule": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=TRAINING,
            help="constant, steps:50:0.1, cosine, linear, warmup:5+cosine. \\[default: the task's]",
        ),
    ],
    "max_grad_norm": Annotated[
        float | None,
        typer.Option(rich_help_panel=TRAINING, help="Clip gradients to this norm; 0: do not. \\[default: the task's]"),
    ],
    "autocast": Annotated[
        str | None, typer.Option(rich_help_panel=TRAINING, help="off, bfloat16 or float16. \\[default: off]")
    ],
    "deterministic": Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--fast",
            rich_help_panel=TRAINING,
            help="Get the same bits on each run, or not. \\[default: deterministic]",
        ),
    ],
    "data": Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=DATA,
            help="Root of the data of all tasks (ROOT/cifar-10-batches-bin, ROOT/multi30k, …), or a task's own folder. "
            "\\[default: ACMO_DATA, or downloads]",
        ),
    ],
    "refit_on_all": Annotated[
        bool | None,
        typer.Option(
            "--refit-on-all",
            rich_help_panel=DATA,
            help="Train on the validation data too; a comparison does so in its final runs.",
        ),
    ],
    "test_curves": Annotated[
        bool | None,
        typer.Option(
            "--test-curves",
            rich_help_panel=DATA,
            help="Test at every evaluation, a comparison in its final runs; nothing is selected by it.",
        ),
    ],
    "full_train_loss": Annotated[
        bool | None,
        typer.Option(
            "--full-train-loss", rich_help_panel=DATA, help="Compute the loss on all training data at evaluations."
        ),
    ],
    "device": Annotated[
        str | None, typer.Option(rich_help_panel=MACHINE, help="auto, cpu, cuda, cuda:1 or mps. \\[default: auto]")
    ],
    "checkpoint_every": Annotated[
        str | None, typer.Option(rich_help_panel=MACHINE, help="60s, 5m, 1h, or 200it for iterations. \\[default: 60s]")
    ],
    "log": Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=OUTPUT, help="Log metrics to wandb, mlflow or tensorboard too; repeatable."),
    ],
    "tensorboard": Annotated[
        bool | None, typer.Option("--tensorboard", rich_help_panel=OUTPUT, help="The same as --log tensorboard.")
    ],
    "keep_checkpoints": Annotated[
        bool | None,
        typer.Option("--keep-checkpoints", rich_help_panel=OUTPUT, help="Keep the weights of finished runs."),
    ],
}
Out = Annotated[
    Path | None,
    typer.Option(rich_help_panel=OUTPUT, help="Output folder. \\[default: in runs, named after the task or preset]"),
]
Storage = Annotated[
    str | None,
    typer.Option(
        envvar="ACMO_STORAGE",
        show_default=False,
        rich_help_panel=MACHINE,
        help="Database of the studies, for many machines: postgresql://user@host/name. "
        "\\[default: SQLite in the folder]",
    ),
]
StorageTimeout = Annotated[
    str,
    typer.Option(
        rich_help_panel=MACHINE, help="How long to wait for a database that goes away: 90s, 10m, 2h; 0s: not at all."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=MACHINE, help="Processes. \\[default: one per core, or one per GPU]"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="No progress, only the result.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", rich_help_panel=OUTPUT, help="Show how many runs there are and what they need; run nothing."
    ),
]


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of `RUN`; those that are used reach it as the dict ``run_options``."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "run_options"]
    shared = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=a) for n, a in RUN.items()]
    place = [p.name for p in own].index("out")  # the help has them before what every command has
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own[:place], *shared, *own[place:])]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        asked = {name: values.pop(name) for name in RUN}
        run_options = given(**{name: None if value == [] else value for name, value in asked.items()})
        command(**values, run_options=run_options)

    # What typer looks at.
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def given(**values: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {key: value for key, value in values.items() if value is not None}


def settings_of(pairs: Iterable[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``option=value`` flags as settings, beside those known from flags of their own."""
    from acmo.lab.config.plan import parse_value

    settings = dict(known)
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not equals or not option:
            raise LabError(f"{pair!r} is not of the form option=value")
        if option.strip() in settings:
            raise LabError(f"{option.strip()} is given twice: once as {settings[option.strip()]!r}, once as {value!r}")
        settings[option.strip()] = parse_value(value.strip())
    return settings


def default_out(*names: str) -> Path:
    """Return where results go by default."""
    from acmo.lab.config.plan import slug

    return Path("runs") / "+".join(slug(name) for name in names)


def seconds(text: str) -> float:
    """Return a duration such as ``90s``, ``10m`` or ``2h`` in seconds."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh])", text)
    if found is None:
        raise LabError(f"{text!r} is not of the form 90s, 10m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
