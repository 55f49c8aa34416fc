"""Comparisons whose outcome is known, as if they were published."""

import numpy as np

from acmo.lab.published import Published
from acmo.lab.results.run_record import CurvePoint, RunRecord

SEEDS = (1, 2, 3, 4, 5)


def record(label, seed, value, *, metric, phase="final", settings=None, diverged=False, ms=2.0):
    return RunRecord(
        task="t", label=label, optimizer=label, role=phase, seed=seed, settings=settings or {"lr": 1.0}, phase=phase,
        status="diverged" if diverged else "finished", valid={"loss": value, metric: value},
        test={metric: value} if phase == "final" else None, steps=100, ms_per_step_optimizer=ms,
        train_curve=[CurvePoint(25, 0.1, value + 0.2), CurvePoint(50, 0.2, value + 0.1), CurvePoint(100, 0.4, value)],
    )  # fmt: skip


def published(name, levels, *, metric="bits_per_byte", best="min", diverged=()):
    """Return a comparison whose final scores are a level and the seed's own share, which pairing removes."""
    rng, runs, rows = np.random.default_rng(0), [], []
    for label, level in levels.items():
        values = {seed: level + 0.1 * seed + 0.001 * rng.normal() for seed in SEEDS}
        runs.append(record(label, 0, level, metric=metric, phase="tune"))
        for seed, value in values.items():
            runs.append(record(label, seed, value, metric=metric, diverged=(label, seed) in diverged))
        mean = float(np.mean(list(values.values())))
        rows.append({
            "label": label, "title": label.title(), "settings": {"lr": 1.0}, "valid": level, "group": 1,
            "test": {"mean": mean, "low": mean - 0.05, "high": mean + 0.05, "n": 5},
            "cost": {"state_bytes_per_parameter": 4.0, "ms_per_step_optimizer": 1.0},
            "to_target": {"steps": 10.0, "seconds": 1.0}, "losses": {"target": 1.5, "to_target": {"steps": 5.0}},
        })  # fmt: skip
    task = {"task": "t", "metric": metric, "best": best, "seeds": SEEDS, "target": {"score": 2.5}, "rows": rows}
    return Published(name, [task], runs)


def without_tuning(found, *labels):
    """Return the comparison as if these optimizers had one setting: without tuning runs, and without their scores."""
    runs = [run for run in found.runs if run.label not in labels or run.role == "final"]
    rows = [{**row, "valid": None} if row["label"] in labels else row for row in found.task["rows"]]
    return Published(found.name, [{**found.task, "rows": rows}], runs)


def text(name="text-char", **levels):
    usual = {"spectral-acmo": 1.0, "muon": 1.1, "row-acmo": 1.2, "adamw": 1.3}
    return published(name, {**usual, **{key.replace("_", "-"): level for key, level in levels.items()}})
