"""Two comparisons on one page: what differs between them, their scores in one table, their plots beside each other."""

import json
from collections.abc import Sequence
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from acmo.lab import atomic
from acmo.lab.config.plan import slug
from acmo.lab.errors import LabError
from acmo.lab.report import words
from acmo.lab.report.evidence import Evidence, gather
from acmo.lab.report.html_page import format_difference, make_view, render_template
from acmo.lab.results import Comparison
from acmo.lab.results.stats import paired_difference
from acmo.lab.results.tables import Row

_MATCHED_BY = ("type", "kind", "key")
_NOT_COMPARED = {"title", "needs", "data"}
_NOT_USED = {"default", "false", "[]", "{}"}  # values of an option that changes nothing


def write_side_by_side(sources: Sequence[Comparison | Path | str]) -> Path:
    """Write a page about two comparisons beside the first one's folder, and return its path.

    Args:
      sources: two folders that were given to ``acmo compare`` as ``--out``, or what `acmo.lab.results.load` made of
        them.
    """
    evidences = [gather(source) for source in sources]
    first, second = (evidence.found.folder.resolve() for evidence in evidences)
    if first == second:
        raise LabError(f"{evidences[0].found.folder} is given twice: a page side by side needs two folders")
    names = (
        [first.name, second.name]
        if first.name != second.name
        else [f"{f.parent.name}/{f.name}" for f in (first, second)]
    )
    path, here = first.parent / f"{slug('-'.join(names))}.html", Path.cwd()
    path = path.relative_to(here) if path.is_relative_to(here) else path
    atomic.write(path, render_side_by_side(evidences, names, path.parent).encode())
    return path


def render_side_by_side(evidences: Sequence[Evidence], names: Sequence[str], folder: Path) -> str:
    """Return the page, to be written into ``folder``."""
    views = [make_view(evidence, prefix) for evidence, prefix in zip(evidences, "ab", strict=True)]
    plots = [plot for view in views for plot in view["plots"]]
    tasks = [_compare_task(evidences, views, pair) for pair in _pair_tasks(evidences)]
    differing = _differing(evidences)
    sides = [
        {
            "name": name,
            "href": quote(relpath(e.found.folder / "report.html", folder)),
            "runs_sentence": v["runs_sentence"],
        }
        for name, e, v in zip(names, evidences, views, strict=True)
    ]
    alone = [t["task"] for e in evidences for t in e.tasks if t["task"] not in {n for t2 in tasks for n in t2["names"]}]
    sentence = (
        f"{words.count(len(differing), 'option')} differ{'s' * (len(differing) == 1)}."
        if differing
        else "Both have the same options."
    )
    if alone:
        sentence += f" In one of the two only, and not shown: {words.listing(alone)}."
    view = {
        "title": f"{names[0]} and {names[1]}",
        "notes": [f"{name}: {note}" for name, e in zip(names, evidences, strict=True) for note in e.notes],
        "titles": {**views[0]["titles"], **views[1]["titles"]},
        "plots": plots,
        "written": views[0]["written"],
        "sides": sides,
        "tasks": tasks,
        "differences": differing,
        "differences_sentence": sentence,
    }
    return render_template("side_by_side.html", view)


def _pair_tasks(evidences: Sequence[Evidence]) -> list[tuple[int, int]]:
    """Return which tasks belong together: those of one name, or the only one of each."""
    first, second = ([task["task"] for task in evidence.tasks] for evidence in evidences)
    if len(first) == len(second) == 1:
        return [(0, 0)]
    return [(i, second.index(name)) for i, name in enumerate(first) if name in second]


def _compare_task(evidences: Sequence[Evidence], views: Sequence[Row], pair: tuple[int, int]) -> Row:
    tasks = [evidence.tasks[i] for evidence, i in zip(evidences, pair, strict=True)]
    shown = [view["tasks"][i] for view, i in zip(views, pair, strict=True)]
    names = [task["task"] for task in tasks]
    paired = _same_data(evidences, names) and tasks[0]["metric"] == tasks[1]["metric"]
    rows = [{row["label"]: row for row in task["rows"]} for task in tasks]
    texts = [{row["label"]: row for row in view["rows"]} for view in shown]
    table = []
    for label in dict.fromkeys(label for side in texts for label in side):
        found = [side.get(label) for side in texts]
        table.append(
            {
                "label": label,
                "scores": [words.NONE if row is None else row["test"] for row in found],
                "settings": [words.NONE if row is None else row["setting"] for row in found],
                "difference": _difference([side.get(label) for side in rows], tasks[0]) if paired else None,
            }
        )
    how = (
        "Differences are paired by seed: both have the same data, so the same split, weights and batches."
        if paired
        else "No difference is computed: the tasks, their data or their scores are not the same."
    )
    return {
        "name": " and ".join(dict.fromkeys(names)),
        "names": names,
        "metrics": [view["metric"] for view in shown],
        "sentence": how,
        "rows": table,
        "verdicts": [view["verdict"] for view in shown],
        "plots": _pair_plots(views, shown),
    }


def _same_data(evidences: Sequence[Evidence], names: Sequence[str]) -> bool:
    prints = [(e.found.data.get(name) or {}).get("fingerprint") for e, name in zip(evidences, names, strict=True)]
    return names[0] == names[1] and prints[0] == prints[1]


def _difference(rows: Sequence[Row | None], task: Row) -> Row | None:
    """Return what the second has over the first on the seeds that both have."""
    if rows[0] is None or rows[1] is None:
        return None
    first, second = ({int(seed): score for seed, score in row.get("test_by_seed", {}).items()} for row in rows if row)
    found = paired_difference(second, first, task["best"])
    return None if found.mean is None else format_difference(found._asdict(), task["metric"])


def _pair_plots(views: Sequence[Row], shown: Sequence[Row]) -> list[list[Row | None]]:
    """Return the plots of a task in pairs, with the same range of values where both have one."""
    known = {plot["id"]: plot for view in views for plot in view["plots"]}
    sections = ("curves", "tuning", "speed", "angles")
    keys: list[Any] = []
    sides: list[dict[Any, Row]] = []
    for view in shown:
        side = {}
        for place in (place for section in sections for place in view[section]):
            key = tuple(known[place["id"]].get(name) for name in _MATCHED_BY)
            side[key] = place
            keys.append(key)
        sides.append(side)
    pairs = []
    for key in dict.fromkeys(keys):
        pair = [side.get(key) for side in sides]
        _share_range([known[place["id"]] for place in pair if place])
        pairs.append(pair)
    return pairs


def _share_range(plots: Sequence[Row]) -> None:
    """Give two plots of curves one range of values, so that heights can be compared by eye."""
    if len(plots) < 2 or plots[0]["type"] != "curve":
        return
    means = [value for plot in plots for series in plot["series"] for value in series["mean"]]
    for plot in plots:
        plot["extent"] = [min(means), max(means)]


def _differing(evidences: Sequence[Evidence]) -> list[Row]:
    """Return the options, versions and commits that are not the same. An option of a later version may be missing."""
    sides = [_flat_facts(evidence) for evidence in evidences]
    both = {name: [side.get(name) for side in sides] for name in dict.fromkeys([*sides[0], *sides[1]])}
    return [
        {"name": name, "values": [words.NONE if value is None else value for value in values]}
        for name, values in both.items()
        if values[0] != values[1] and not (None in values and {*values} & _NOT_USED)
    ]


def _flat_facts(evidence: Evidence) -> dict[str, str]:
    plan, stated = evidence.found.plan, evidence.found.provenance
    options = {key: value for key, value in plan.items() if key not in _NOT_COMPARED}
    facts = {**options, "commit": stated.get("commit") or "unknown", **(stated.get("versions") or {})}
    return {key: _shown(value) for key, value in facts.items()}


def _shown(value: Any) -> str:
    return "default" if value is None else value if isinstance(value, str) else json.dumps(value)
