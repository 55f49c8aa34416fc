"""From the rows of a comparison's runs to its verdict: selection on validation data, everything else on test data."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Any, Literal

from acmo.lab.config.extension import extends
from acmo.lab.config.grids import Grid, grid_of, only_setting, title_of
from acmo.lab.config.plan import Contender, Plan
from acmo.lab.results import stats, ties
from acmo.lab.results.losses import summarise_losses
from acmo.lab.results.run_record import RunRecord, Score
from acmo.lab.results.tables import Row

Split = Literal["valid", "test"]


def select(runs: Iterable[RunRecord], score: Score) -> list[RunRecord]:
    """Return tuning runs in order of preference: by validation score, then by loss; pruned and diverged ones last."""
    metric, sign = score.metric, -score.sign
    order = []
    for number, run in enumerate(runs):  # of equals, the first of the grid
        value, loss = run.tuning_score("valid", metric), run.valid.get("loss")
        place = 2 if value is None else int(run.status == "pruned")
        order.append((place, sign * (value or 0.0), inf if loss is None or place == 2 else loss, number, run))
    return [entry[-1] for entry in sorted(order, key=itemgetter(slice(4)))]


def choose(runs: Iterable[RunRecord], score: Score) -> RunRecord | None:
    """Return the run whose setting is best on validation data; None if none finished."""
    ordered = select(runs, score)
    return ordered[0] if ordered and ordered[0].score_on("valid", score.metric) is not None else None


def choose_settings(
    plan: Plan, contender: Contender, tuned: Iterable[RunRecord], score: Score, fixed_decay: float | None = None
) -> dict[str, Any] | None:
    """Return the setting that the final runs repeat: the only one, or the best on validation data.

    Args:
      plan: the comparison.
      contender: one of its contenders.
      tuned: its tuning runs on a task.
      score: what counts on the task.
      fixed_decay: under ``fixed-wd``, the weight decay that SGD-momentum chose.

    Returns:
      The optimizer's options; None if there are several settings and no run of them finished.
    """
    only = only_setting(plan, contender, fixed_decay)
    if only is not None:
        return only
    pick = choose(tuned, score)
    return pick.settings if pick else None


def summarise(plan: Plan, runs: Iterable[RunRecord], scores: Mapping[str, Score]) -> Row:
    """Return what ``summary.json`` holds: for each task, its target and a row for each contender.

    Args:
      plan: the comparison.
      runs: its runs; those that are not finished are left out.
      scores: by task, what counts.
    """
    ended = [run for run in runs if run.status != "unfinished"]
    return {"tasks": [_task(plan, task, [r for r in ended if r.task == task], scores[task]) for task in plan.tasks]}


def _task(plan: Plan, task: str, runs: list[RunRecord], score: Score) -> Row:
    metric, best = score.metric, score.best
    contenders = plan.contenders()
    failed = [run for run in runs if run.status == "failed"]
    runs = [run for run in runs if run.status != "failed"]
    by_label = {c.label: [r for r in runs if r.label == c.label] for c in contenders}
    chosen: dict[str, dict[str, Any] | None] = {}
    for contender in sorted(contenders, key=_follows_sgd):  # under fixed-wd, they take over its weight decay
        decay = _fixed_decay(plan, chosen) if _follows_sgd(contender) else None
        tuned = _of(by_label[contender.label], "tune")
        chosen[contender.label] = choose_settings(plan, contender, tuned, score, decay)
    finals = {label: _finals(rs, chosen[label]) for label, rs in by_label.items()}

    # Set from the tuned baselines alone; nothing of ACMo's has been looked at here.
    reference = [b for b in plan.baselines if b in by_label] or [c.label for c in contenders if c.optimizer != "acmo"]
    ends = {label: _present([r.score_on("valid", metric) for r in finals[label]]) for label in reference}
    target = stats.target_score({label: e for label, e in ends.items() if e}, best)

    tests = {label: {r.seed: r.score_on("test", metric) for r in finals[label]} for label in by_label}
    intervals = {label: _within(metric, stats.bootstrap_interval(_present(t.values()))) for label, t in tests.items()}
    lost = {label: _diverged(finals[label]) for label in by_label}
    pairs = ties.compare_pairs(tests, best)
    rank = stats.ranks({label: i.mean for label, i in intervals.items()}, best, lost)
    groups = ties.group_ties(rank, pairs)
    decay = _fixed_decay(plan, chosen)
    split: Split = "test" if plan.test_every_setting else "valid"
    known = _present([r.score_on(split, metric) for r in runs])
    losses = summarise_losses(finals, plan.baselines)
    table = []
    for contender in contenders:
        label = contender.label
        tuned = _of(by_label[label], "tune")
        final, pick, settings = finals[label], choose(tuned, score), chosen[label]
        grid = grid_of(plan, contender, decay if _follows_sgd(contender) else None)
        beyond = _beyond(plan, grid, tuned)
        table.append(
            {
                "label": label,
                "title": title_of(contender),
                "optimizer": contender.optimizer,
                "rank": rank[label],
                "group": groups[label],
                "test": intervals[label]._asdict(),
                "test_by_seed": {str(seed): s for seed, s in sorted(tests[label].items()) if s is not None},
                "differences": {
                    other: stats.paired_difference(tests[label], tests[other], best)._asdict()
                    for other in plan.baselines
                    if other in tests and other != label
                },
                "to_target": stats.time_to_target([r.curve for r in final], target, best)._asdict(),
                "settings": settings,
                "valid": pick.score_on("valid", metric) if pick else None,
                "edges": stats.edges(settings, _tried_grid(grid, beyond)) if settings is not None else [],
                "extended": beyond,
                "tried": len(tuned),
                "diverged": {"tune": _diverged(tuned), "final": lost[label]},
                **({"pruned": len([r for r in tuned if r.status == "pruned"])} if plan.prune else {}),
                **_failures([r for r in failed if r.label == label]),
                "budget": _budget(tuned, split, known, score),
                "cost": _cost(final or tuned),
                **({"losses": losses[label]} if losses else {}),
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
        "pairs": [pair._asdict() for pair in pairs],
        "detectable": ties.typical_detectable(pairs),
        "budget_split": split,
        "counted": {split: how for split in ("valid", "test") if (how := _counted(runs, split))},
        "rows": table,
    }


def flat_rows(summary: Mapping[str, Any]) -> list[Row]:
    """Return the summary as a table: a row for each task and contender, without what is a curve."""
    return [
        {
            "task": t["task"],
            "metric": t["metric"],
            **{k: v for k, v in row.items() if k not in ("budget", "test_by_seed", "losses")},
        }
        for t in summary["tasks"]
        for row in t["rows"]
    ]


def explain_no_setting(row: Mapping[str, Any]) -> str:
    """Return why a row of the summary has no setting."""
    failed = row.get("failed")
    if failed and failed["tune"] and not row["tried"]:
        return f"every setting failed: {failed['reason']}"
    if not row["tried"]:
        return "not run yet"
    lost = ["diverged"] + ["was pruned"] * bool(row.get("pruned")) + ["failed"] * bool(failed)
    text = f"every setting {' or '.join(lost)}"
    return f"{text}: {failed['reason']}" if failed else text


def describe_untuned(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return which rows of the summary have a setting without a tuning run, as a sentence; empty if there is none."""
    known = [row for row in rows if row["settings"] is not None]
    titles = [row["title"] for row in known if not (row["tried"] or row.get("failed", {}).get("tune"))]
    return f"With one setting, so not tuned: {', '.join(titles)}." if titles else ""


def _failures(failed: Sequence[RunRecord]) -> Row:
    """Return how many runs failed and the error of the last, as ``failed``; nothing if none did."""
    if not failed:
        return {}
    return {
        "failed": {"tune": len(_of(failed, "tune")), "final": len(_of(failed, "final")), "reason": failed[-1].reason}
    }


def _of(runs: Iterable[RunRecord], role: str) -> list[RunRecord]:
    return [run for run in runs if run.role == role]


def _finals(runs: Iterable[RunRecord], chosen: dict[str, Any] | None) -> list[RunRecord]:
    return [r for r in _of(runs, "final") if r.settings == chosen]


def _within(metric: str, found: stats.Interval) -> stats.Interval:
    """Return the interval within what the metric can be: Student's t of two seeds knows nothing of 100 %."""
    if metric != "accuracy" or found.low is None or found.high is None:
        return found
    return found._replace(low=max(0.0, found.low), high=min(1.0, found.high))


def _present(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _follows_sgd(contender: Contender) -> bool:
    return contender.label != "sgd-momentum"


def _fixed_decay(plan: Plan, chosen: Mapping[str, dict[str, Any] | None]) -> float | None:
    sgd = chosen.get("sgd-momentum")
    return sgd.get("weight_decay", 0.0) if plan.protocol == "fixed-wd" and sgd is not None else None


def _beyond(plan: Plan, grid: Grid, tuned: Iterable[RunRecord]) -> list[float]:
    """Return the learning rates by which the grid was extended, from the least."""
    rates = {run.settings.get("lr") for run in tuned} if extends(plan) and "lr" in grid else set()
    return sorted(rate for rate in rates if rate is not None and rate not in grid["lr"])


def _tried_grid(grid: Grid, beyond: Sequence[float]) -> Grid:
    return {**grid, "lr": [*grid["lr"], *beyond]} if beyond else grid


def _counted(runs: Iterable[RunRecord], split: str) -> Row | None:
    """Return how BLEU was counted: no two ways of it can be compared."""
    found = [run.test if split == "test" else run.valid for run in runs]
    values = next(iter([values for values in found if values and "bleu_signature" in values]), {})
    return {key: values[key] for key in ("bleu_signature", "decoding", "translated") if key in values} or None


def _diverged(runs: Iterable[RunRecord]) -> int:
    return len([run for run in runs if run.status == "diverged"])


def _budget(tuned: Sequence[RunRecord], split: Split, known: Sequence[float], score: Score) -> list[float]:
    """Return the tuning-budget curve; a diverged run counts as 0 where more is better, else as the worst of all."""
    if not known or not tuned:
        return []
    worst = min(0.0, *known) if score.best == "max" else max(known)
    outcomes = [r.tuning_score(split, score.metric) for r in select(tuned, score)]
    return stats.budget_curve([worst if o is None else o for o in outcomes])


def _cost(runs: Sequence[RunRecord]) -> dict[str, float | None]:
    def mean(key: str) -> float | None:
        values = _present([getattr(run, key) for run in runs])
        return sum(values) / len(values) if values else None

    parameters, state = mean("parameters"), mean("state_bytes")
    return {
        "ms_per_step_optimizer": mean("ms_per_step_optimizer"),
        "state_bytes": state,
        "state_bytes_per_parameter": state / parameters if parameters and state is not None else None,
        "parameters": parameters,
        "seconds": mean("seconds"),
    }
