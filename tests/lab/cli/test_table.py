"""The printed verdict fits the terminal, and names with brackets are no markup."""

from dataclasses import replace

import pytest
from rich.console import Console

from acmo.lab.cli.verdict_table import NARROW, WIDE, settings, verdict
from tests.support.lab_command import run_command
from tests.support.lab_rows import full_rows, summary_of

acmo = run_command  # a fixture


def test_brackets_in_names_are_no_markup(acmo, tmp_path):
    (tmp_path / "a.toml").write_text('title = "a [/] title"\ntasks = ["digits"]\noptimizers = []\n[[contender]]\n'
                                     'label = "[bold]x[/y]"\noptimizer = "acmo"\n')  # fmt: skip
    code, out, err = acmo("compare", "--preset", "a.toml", "--dry-run")
    assert code == 0, err
    assert "a [/] title" in out
    assert "[bold]x[/y]" in out
    rows = [replace(row, task="t[/x].py:T") for row in full_rows(0.9)]
    task = {**summary_of(full_rows(0.9)), "task": "t[/x].py:T"}
    console = Console(width=200)
    with console.capture() as shown:
        console.print(verdict(task, 200), settings(task, rows))
    assert shown.get().count("t[/x].py:T: ") == 2


@pytest.mark.parametrize("width", [60, NARROW, NARROW + 7, WIDE, 130, 200])
@pytest.mark.parametrize("long", [False, True])
def test_the_verdict_fits_the_terminal_and_loses_no_word(width, long):
    task = summary_of(full_rows(0.9))
    for row in task["rows"]:
        row["test"] = {"mean": 0.98765, "low": 0.97654, "high": 0.99876, "n": 5}
        row["settings"] = {"lr": 5e-05, "betas": [0.9, 0.999], "weight_decay": 0.0005} if long else {"lr": 0.1}
        row["edges"] = ["lr=5e-05 is the least tried"]
        row["title"] = "an optimizer with a long name" if long else row["title"]
    console = Console(width=width)
    with console.capture() as shown:
        console.print(verdict(task, width))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    text = "".join("".join(lines).split())
    assert text.count("!") == 4  # on each row, and in the caption
    assert all(text.count(c) >= 3 for c in ("98.77", "[97.65,", "99.88]") if width >= NARROW)
    for column in ("ms/step", "bytes/param"):
        assert (column in text) == (width >= WIDE) or width < 130  # a head may fold
    assert ("(seconds)" in text) == (width >= WIDE)


def test_a_verdict_without_seeds_has_dashes():
    task = summary_of([row for row in full_rows(0.9) if row.role == "tune"])
    for width in (60, 200):
        console = Console(width=width)
        with console.capture() as shown:
            console.print(verdict(task, width))
        assert "0 of 0" not in shown.get()
