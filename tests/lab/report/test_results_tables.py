"""The tables over comparisons whose outcome is known."""

import pytest

pytest.importorskip("optuna", reason='needs the lab: pip install "acmo[lab]"')

from acmo.lab.published import Published
from acmo.lab.report.results_tables import write_tables
from tests.support.lab_published import published, text


def test_contenders_with_names_of_their_own_are_not_among_the_scores():
    tables = write_tables({"text-char": text(), "ablation": published("ablation", {"row": 1.0, "row, int8": 1.0})})
    assert "| text-char |" in tables
    assert "ablation |" not in tables
    assert "| int8 moments cost nothing | **holds**" in tables


def test_one_seed_gives_rates_and_no_scores():
    rows = {label: {"label": label, "title": label, "tried": 6, "valid": 2.5} for label in ("row-acmo", "adamw")}
    tasks = [
        {"task": task, "metric": "bits_per_byte", "best": "min", "seeds": [1],
         "rows": [{**rows["row-acmo"], "settings": {"lr": lr}}, {**rows["adamw"], "settings": {"lr": 0.001}}]}
        for task, lr in (("narrow", 0.004), ("wide", 0.002))
    ]  # fmt: skip
    one_rate = {**tasks[0], "rows": [{**tasks[0]["rows"][0], "tried": 1}]}
    tables = write_tables(
        {"text-char": text(), "width": Published("width", tasks, []), "gpt-10m": Published("gpt-10m", [one_rate], [])}
    )
    scores, rates = tables.split("### Best rates")
    assert "width" not in scores
    assert "gpt-10m" not in tables
    assert "| width | `narrow` | 0.004 (2.5) | 0.001 (2.5) |\n| width | `wide` | 0.002 (2.5) | 0.001 (2.5) |" in rates
