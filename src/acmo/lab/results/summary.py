"""From the rows of a comparison's runs to its verdict: selection on validation data, everything else on test data."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from acmo.lab.config.grids import grid_of, title_of
from acmo.lab.config.plan import Contender, Plan
from acmo.lab.results import stats

Row = dict[str, Any]


def select(rows: Iterable[Row], metric: str, best: str) -> list[Row]:
    """The tuning runs in the order of preference: by validation score, then by validation loss; diverged ones last."""
    sign = -1 if best == "max" else 1

    def key(row: Row) -> tuple[bool, float, float]:
        valid = row.get("valid") or {}
        score, loss = valid.get(metric), valid.get("loss")
        if row["status"] != "finished" or score is None:
            return (True, 0.0, 0.0)
        return (False, sign * score, inf if loss is None else loss)

    return sorted(rows, key=key)  # stable: of equals, the first of the grid


def chosen(rows: Iterable[Row], metric: str, best: str) -> Row | None:
    """The run whose setting is best on validation data; None if all diverged."""
    ordered = select(rows, metric, best)
    return ordered[0] if ordered and _score(ordered[0], "valid", metric) is not None else None


def summarise(plan: Plan, rows: Iterable[Row], scores: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """What ``summary.json`` holds: for each task, its target and a row for each contender.

    Args:
      plan: the comparison.
      rows: its runs, as `results.Comparison.runs` has them, with a ``curve`` of (step, seconds, validation score).
      scores: by task, {"metric": …, "best": "max" or "min"}.
    """
    rows = [row for row in rows if row["status"] != "unfinished"]
    return {"tasks": [_task(plan, task, [r for r in rows if r["task"] == task], **scores[task]) for task in plan.tasks]}


def _task(plan: Plan, task: str, rows: list[Row], metric: str, best: Any) -> dict[str, Any]:
    contenders = plan.contenders()
    by_label = {c.label: [r for r in rows if r["label"] == c.label] for c in contenders}
    picked = {label: chosen(_of(rs, "tune"), metric, best) for label, rs in by_label.items()}
    finals = {label: _finals(rs, picked[label]) for label, rs in by_label.items()}

    # Set from the tuned baselines alone; nothing of ACMo's has been looked at here.
    reference = [b for b in plan.baselines if b in by_label] or [c.label for c in contenders if c.optimizer != "acmo"]
    ends = {label: _present(_score(r, "valid", metric) for r in finals[label]) for label in reference}
    target = stats.target_score({label: e for label, e in ends.items() if e}, best)

    tests = {label: {r["seed"]: _score(r, "test", metric) for r in finals[label]} for label in by_label}
    intervals = {label: _within(metric, stats.bootstrap_interval(_present(t.values()))) for label, t in tests.items()}
    lost = {label: _diverged(finals[label]) for label in by_label}
    rank = stats.ranks({label: i.mean for label, i in intervals.items()}, best, lost)
    decay = _fixed_decay(plan, picked)
    table = []
    for contender in contenders:
        label = contender.label
        tuned = _of(by_label[label], "tune")
        final = finals[label]
        table.append(
            {
                "label": label,
                "title": title_of(contender),
                "optimizer": contender.optimizer,
                "rank": rank[label],
                "test": intervals[label]._asdict(),
                "test_by_seed": {str(seed): s for seed, s in sorted(tests[label].items()) if s is not None},
                "differences": {
                    other: stats.paired_difference(tests[label], tests[other], best)._asdict()
                    for other in plan.baselines
                    if other in tests and other != label
                },
                "to_target": stats.time_to_target([r.get("curve") or [] for r in final], target, best)._asdict(),
                "settings": picked[label]["settings"] if picked[label] else None,  # type: ignore[index]
                "valid": _score(picked[label], "valid", metric),
                "edges": _edges(plan, contender, picked[label], decay),
                "tried": len(tuned),
                "diverged": {"tune": _diverged(tuned), "final": lost[label]},
                "budget": _budget(plan, tuned, rows, metric, best),
                "cost": _cost(final or tuned),
            }
        )
    return {
        "task": task,
        "metric": metric,
        "best": best,
        "protocol": plan.protocol,
        "weight_decay": decay,
        "seeds": plan.final_seeds(),
        "target": {"score": target, "split": "valid", "from": sorted(label for label, e in ends.items() if e)},
        "budget_split": "test" if plan.test_every_setting else "valid",
        "counted": {split: how for split in ("valid", "test") if (how := _counted(rows, split))},
        "rows": table,
    }


def flat_rows(summary: Mapping[str, Any]) -> list[Row]:
    """The summary as a table: a row for each task and contender, without what is a curve."""
    return [
        {
            "task": t["task"],
            "metric": t["metric"],
            **{k: v for k, v in row.items() if k not in ("budget", "test_by_seed")},
        }
        for t in summary["tasks"]
        for row in t["rows"]
    ]


def _of(rows: Iterable[Row], role: str) -> list[Row]:
    return [row for row in rows if row["role"] == role]


def _finals(rows: Iterable[Row], pick: Row | None) -> list[Row]:
    return [r for r in _of(rows, "final") if pick is not None and r["settings"] == pick["settings"]]


def _score(row: Row | None, split: str, metric: str) -> float | None:
    if row is None or row["status"] != "finished":
        return None
    return (row.get(split) or {}).get(metric)


def _within(metric: str, found: stats.Interval) -> stats.Interval:
    """The interval within what the metric can be: Student's t of two seeds knows nothing of 100 %."""
    if metric != "accuracy" or found.low is None or found.high is None:
        return found
    return found._replace(low=max(0.0, found.low), high=min(1.0, found.high))


def _present(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _fixed_decay(plan: Plan, picked: Mapping[str, Row | None]) -> float | None:
    sgd = picked.get("sgd-momentum")
    return sgd["settings"].get("weight_decay", 0.0) if plan.protocol == "fixed-wd" and sgd else None


def _edges(plan: Plan, contender: Contender, pick: Row | None, decay: float | None) -> list[str]:
    if pick is None:
        return []
    return stats.edges(pick["settings"], grid_of(plan, contender, None if contender.label == "sgd-momentum" else decay))


def _counted(rows: Iterable[Row], split: str) -> dict[str, Any] | None:
    """How BLEU was counted: no two ways of it can be compared."""
    values: dict[str, Any] = next((r[split] for r in rows if "bleu_signature" in (r.get(split) or {})), {})
    return {key: values[key] for key in ("bleu_signature", "decoding", "translated") if key in values} or None


def _diverged(rows: Iterable[Row]) -> int:
    return sum(row["status"] == "diverged" for row in rows)


def _budget(plan: Plan, tuned: list[Row], everyone: list[Row], metric: str, best: str) -> list[float]:
    """The tuning-budget curve; a diverged run counts as 0 where more is better, else as the worst that anyone had."""
    split = "test" if plan.test_every_setting else "valid"
    known = _present(_score(r, split, metric) for r in everyone)
    if not known or not tuned:
        return []
    worst = min(0.0, *known) if best == "max" else max(known)
    outcomes = [_score(r, split, metric) for r in select(tuned, metric, best)]
    return stats.budget_curve([worst if o is None else o for o in outcomes])


def _cost(rows: list[Row]) -> dict[str, float | None]:
    def mean(key: str) -> float | None:
        values = _present(r.get(key) for r in rows)
        return sum(values) / len(values) if values else None

    parameters, state = mean("parameters"), mean("state_bytes")
    return {
        "ms_per_step_optimizer": mean("ms_per_step_optimizer"),
        "state_bytes": state,
        "state_bytes_per_parameter": state / parameters if parameters and state is not None else None,
        "parameters": parameters,
        "seconds": mean("seconds"),
    }
