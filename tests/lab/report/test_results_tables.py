"""The tables over comparisons whose outcome is known."""

from dataclasses import replace

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


def test_claims_on_translation_are_judged_at_a_fixed_rate_alone():
    cosine, fixed = (
        scored(name, {"acmo": acmo, "sgd-momentum": 5.0, "adam": 9.0, "adamw": 9.0})
        for name, acmo in (("multi30k-acmo", 3.0), ("multi30k-fixed", 7.0))
    )
    line = next(x for x in write_tables({"multi30k-acmo": cosine}).splitlines() if "fixed learning rate settings" in x)
    assert "**not judged** | not run with ACMo |" in line
    tables = write_tables({"multi30k-acmo": cosine, "multi30k-fixed": fixed})
    line = next(x for x in tables.splitlines() if "fixed learning rate settings" in x)
    assert "**holds** | multi30k-fixed: SGD-momentum [+" in line
    assert "multi30k-acmo" not in line
    line = next(x for x in tables.splitlines() if "comparable with those in Adam" in x)
    assert "**does not hold**" in line


def test_a_comparison_without_some_rivals_can_refute_a_claim():
    partial = scored("multi30k-fixed", {"acmo": 7.0, "adamw": 9.0})
    line = next(x for x in write_tables({"multi30k-fixed": partial}).splitlines() if "comparable with those in Ad" in x)
    assert "**does not hold** | multi30k-fixed: AdamW [−" in line
    partial = scored("multi30k-fixed", {"acmo": 9.0, "adamw": 7.0})
    line = next(x for x in write_tables({"multi30k-fixed": partial}).splitlines() if "comparable with those in Ad" in x)
    assert "**not judged** | not run with Adam; multi30k-fixed: AdamW [+" in line


def scored(name, levels):
    """Return a comparison by BLEU whose rows have their test scores by seed, and no training losses."""
    found = published(name, levels, metric="bleu", best="max")
    rows = []
    for row in found.task["rows"]:
        tests = {str(seed): score for seed, score in found.tests(row["label"]).items()}
        rows.append({**row, "test_by_seed": tests, "losses": None})
    return Published(name, [{**found.task, "rows": rows}], found.runs)


def test_times_of_another_machine_are_not_taken():
    levels = {"row-acmo": 1.0, "adamw": 1.1}
    here, there = published("text-char", levels), published("text-char-fine", levels)
    fast = Published("text-char-fine", there.tasks, [replace(run, ms_per_step_optimizer=0.5) for run in there.runs])
    assert costs_of(here, fast) == ["0.50"] * 4
    assert costs_of(here, replace(fast, machine="another")) == ["2.00", "2.00", "0.50", "0.50"]


def test_targets_and_groups_stand_in_the_tables():
    tables = write_tables({"text-char": text()})
    assert "compare within a comparison only: text-char training loss 1.5, bits per byte 2.5." in tables
    assert [line.endswith("]** (1) |") for line in tables.splitlines() if line.startswith("| Row-Acmo |")] == [True]


def costs_of(*comparisons):
    """Return the milliseconds per step in the table of costs."""
    table = write_tables({found.name: found for found in comparisons}).split("### Costs")[1].split("###")[0]
    return [line.split(" | ")[3] for line in table.splitlines() if line.startswith("| text-char")]
