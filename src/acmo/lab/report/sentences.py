"""The sentence above each section, worked out from the data."""

from collections.abc import Sequence
from typing import Any

from acmo.lab.report import angles, speed, tuning, words
from acmo.lab.report.curves import last
from acmo.lab.report.evidence import Contestant
from acmo.lab.results.run_record import RunRecord
from acmo.lab.results.summary import describe_untuned
from acmo.lab.results.tables import Row

MOST_BANDS = 4  # more curves are shown without their bands, unless the reader switches them on


def verdict(task: Row) -> str:
    """Return who is first, and what is shown of it."""
    metric, rows = task["metric"], task["rows"]
    scored = sorted((r for r in rows if r["rank"] is not None), key=lambda r: r["rank"])
    if not scored:
        tried = sum(c.shown != [] for c in task["contestants"])
        return f"No test score yet on {task['task']}: {tried} of {words.count(len(rows), 'optimizer')} tried so far."
    first = scored[0]
    ties = [r["title"] for r in scored if r["rank"] == 1]
    best = "highest" if task["best"] == "max" else "lowest"
    text = (
        f"On {task['task']}, the {best} mean test {words.name(metric)} of {words.count(len(scored), 'optimizer')} is "
        f"{words.interval(first['test'], metric)}, by {words.listing(ties)} "
        f"over {words.count(first['test']['n'], 'seed')}."
    )
    tied = [r["title"] for r in scored if r.get("group") == 1]
    if len(tied) == len(scored) > 1:
        text += " No optimizer is shown to differ from it."
    elif len(tied) > len(ties):
        text += f" Not shown to differ from it: {words.listing([t for t in tied if t not in ties])}."
    titles = {r["label"]: r["title"] for r in rows}
    for other in dict.fromkeys(o for r in rows for o in r["differences"]):
        text += f" {_against(titles.get(other, other), [r for r in scored if other in r['differences']], other)}"
    edged = [r["title"] for r in rows if r["edges"]]
    if edged:
        text += f" At the edge of the grid, so perhaps not at their best: {words.listing(edged)}."
    missing = [r["title"] for r in rows if r["rank"] is None]
    if missing:
        text += f" Without a score: {words.listing(missing)}."
    return text + words.counted(task.get("counted"))


def power(task: Row) -> str:
    """Return what difference the seeds could have shown."""
    least = task.get("detectable")
    if least is None:
        return ""
    if task["metric"] == "accuracy" and least >= 1:
        return f"{words.count(len(task['seeds']), 'seed').capitalize()} are too few to show any difference."
    shown = words.score(least, task["metric"], units=False) + " points" * (words.unit(task["metric"]) != "")
    return (
        f"With {words.count(len(task['seeds']), 'seed')}, a true difference of {shown} would have been shown "
        "with a power of 80 % (median of all pairs); smaller ones may be there unseen. Intervals are of one pair each: "
        "of many pairs, one in twenty may be shown by chance."
    )


def _against(title: str, rows: Sequence[Row], other: str) -> str:
    by = {v: [r["title"] for r in rows if r["differences"][other]["verdict"] == v] for v in ("better", "worse")}
    rest = [r["title"] for r in rows if r["differences"][other]["verdict"] not in by]
    said = [f"{words.listing(who)} {'is' if len(who) == 1 else 'are'} {v}" for v, who in by.items() if who]
    if len(rest) == 1:
        said.append(f"no difference is shown for {rest[0]}")
    elif rest:
        said.append(f"no difference is shown for {'the' if said else 'any of the'} {len(rest)} others")
    return f"Against {title}, {words.listing(said)}." if said else ""


def curves(task: Row, plots: Sequence[Row]) -> str:
    """Return where the curves end."""
    if not plots:
        return "There is no curve yet."
    titles = {r["label"]: r["title"] for r in task["rows"]}
    most = max(s["n"] for plot in plots for s in plot["series"])
    finals = any(run.role == "final" for c in task["contestants"] for run in c.shown)
    text = "One tuning run per optimizer, its best so far. "
    if finals:
        text = (
            f"Mean over {words.count(most, 'seed')} of the chosen setting, band from the lowest to the highest seed. "
        )
        if len(titles) > MOST_BANDS:
            text += f"Bands are off, since {len(titles)} of them would cover each other: the switch above shows them. "
    ends = []
    for plot in plots[:2]:
        down = plot["key"] == "loss" or task["best"] == "min"
        found = last(plot)
        label = (min if down else max)(found, key=found.__getitem__)
        shown = words.score(found[label] / words.scale(plot["key"]), plot["key"])
        split = {"train": "training", "valid": "validation"}[plot["kind"]]
        best = "lowest" if down else "highest"
        ends.append(f"the {best} {split} {words.name(plot['key'])} is {shown} ({titles.get(label, label)})")
    return f"{text}At the end, {words.listing(ends)}."


def tuned(task: Row, series: Sequence[Row], budgets: Sequence[Row]) -> str:
    """Return who is forgiving, and what one setting drawn at random is worth."""
    metric, titles = task["metric"], {r["label"]: r["title"] for r in task["rows"]}
    parts = []
    if series:
        near = {s["label"]: (tuning.near_best(s, metric, task["best"]), len(s["lr"])) for s in series}
        ordered = sorted(near, key=lambda label: -near[label][0] / near[label][1])
        said = [f"{titles.get(x, x)} at {near[x][0]} of {near[x][1]}" for x in ordered]
        parts.append(
            f"Learning rates that come within {tuning.nearness(metric)} of the optimizer's own best validation "
            f"{words.name(metric)}: {words.listing(said)}."
        )
    if budgets:
        first = sorted(budgets, key=lambda b: b["score"][0], reverse=task["best"] == "max")
        ends = [
            f"{words.score(b['score'][0] / words.scale(metric), metric)} with {titles.get(b['label'], b['label'])}"
            for b in (first[0], first[-1])
        ]
        split = {"valid": "validation", "test": "test"}[task.get("budget_split", "valid")]
        worst = f", at worst {ends[1]}" if len(first) > 1 else ""
        parts.append(
            f"One setting drawn from the grid gives on average a {split} {words.name(metric)} of "
            f"{ends[0]} at best{worst}."
        )
    beyond = [f"{r['title']} by {words.rates(r['extended'])}" for r in task["rows"] if r.get("extended")]
    if beyond:
        parts.append(f"Grids were extended, since the best learning rate was at the edge: {'; '.join(beyond)}.")
    parts.append(describe_untuned(task["rows"]))
    runs = [run for c in task["contestants"] for run in c.tuned]
    ended = [run.status for run in runs]
    if runs:
        parts.append(f"{ended.count('diverged') or 'None'} of {words.count(len(runs), 'tuning run')} diverged.")
    pruned = ended.count("pruned")
    if pruned:
        was = "was" if pruned == 1 else "were"
        parts.append(
            f"{pruned} {was} pruned, behind others of the same optimizer, and {was} scored where they stopped."
        )
    if "failed" in ended:
        parts.append(f"{ended.count('failed')} failed with an error.")
    return " ".join(filter(None, parts)) or "Nothing was tuned yet."


def target(task: Row, series: Sequence[Row]) -> str:
    """Return who is quickest to the target, and where the target comes from."""
    score = task["target"]["score"]
    if score is None:
        return f"No target on {task['task']} yet: it is set from the baselines' final scores."
    titles = {r["label"]: r["title"] for r in task["rows"]}
    who = words.listing([titles.get(x, x) for x in task["target"]["from"]])
    text = (
        f"The target on {task['task']} is a validation {words.name(task['metric'])} of "
        f"{words.score(score, task['metric'])}, the worst of the mean final scores of {who}."
    )
    for axis, form in (("step", "{:,.0f} steps"), ("seconds", "{}")):
        found = speed.quickest(series, axis)
        if found:
            value = form.format(found[1] if axis == "step" else words.seconds(found[1]))
            most = {"step": "Fewest steps", "seconds": "Least time"}[axis]
            text += f" {most}: {titles.get(found[0], found[0])}, median {value}."
    late = [
        f"{titles.get(s['label'], s['label'])} ({len(s['step'])} of {s['n']})"
        for s in series
        if len(s["step"]) < s["n"]
    ]
    return text + (f" Not every run got there: {words.listing(late)}." if late else " Every run got there.")


def profile(stairs: Sequence[Row], titles: dict[str, str]) -> str:
    """Return who is fastest most often."""
    top = max(stairs, key=lambda s: s["share"][0])
    return f"{titles.get(top['label'], top['label'])} is the fastest on {top['share'][0]:.0%} of the tasks."


def angle(contestant: Contestant) -> str:
    """Return how gradient and moment lay to each other, early and late, and how often the gradient was clipped."""
    early, late = (angles.median_of(contestant, "cos_grad_moment", part) for part in (slice(0.0, 0.1), slice(0.9, 1.0)))
    beta = angles.median_of(contestant, "beta_hat", slice(0.0, 1.0))
    clipped = angles.share_clipped(contestant)
    text = contestant.title
    if early is not None and late is not None:
        text += f": median cos(g, m) is {early:.2f} in the first tenth of the run and {late:.2f} in the last".replace(
            "-", "−"
        )
    if beta is not None:
        text += f"; β̂ has median {beta:.3g}"
    if beta is not None and beta > 1:
        text += ", so the moment before a step is shorter than the gradient and is lengthened"
    if clipped is not None:
        text += f"; clipped {f'{clipped:.1%} of the logged steps' if clipped else 'nowhere'}"
    return text + "."


def runs(found: Sequence[RunRecord]) -> str:
    """Return how many runs there are, and how they ended."""
    states: list[str] = [run.status for run in found]
    spent = sum([run.seconds or 0.0 for run in found])
    said: list[Any] = [f"{states.count(s)} {word}" for s, word in (
        ("finished", "finished"), ("diverged", "diverged"), ("pruned", "pruned"), ("failed", "failed"),
        ("unfinished", "not finished"),
    ) if states.count(s)]  # fmt: skip
    if not found:
        return "There is no run."
    return f"{words.count(len(found), 'run')}: {words.listing(said)}; {words.seconds(spent)} of training in all."
