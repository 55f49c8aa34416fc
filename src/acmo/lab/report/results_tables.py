"""The tables of docs/results/README.md over all published comparisons: scores, costs, hypotheses, questions, rates.

``python -m acmo.lab.report.results_tables docs/results`` prints them.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from acmo.lab.claims import CLAIMS, Claim, DifferenceInterval, find_differences, holm, judge, judge_most
from acmo.lab.hypotheses import PARTS, Part, judge_primary
from acmo.lab.published import Published, find_fastest, read_published, seconds_per_step
from acmo.lab.questions import NOT_JUDGED, Answer, answer_questions
from acmo.lab.report import words
from acmo.rivals import REGISTRY

FIGURES = "questions"  # the folder of the questions' figures, in docs/results
OF_SETTING = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100-fixed",
    "translation": "multi30k-fixed",
}  # a claim's setting: comparison


def write_tables(published: Mapping[str, Published]) -> str:
    """Return the tables in Markdown: scores, costs, primary hypotheses, the paper's claims, questions, best rates.

    Comparisons of an optimizer's options, whose contenders have names of their own, are judged here; their scores and
    costs are on their own pages. Of comparisons with one seed only the rates are shown.
    """
    compared = {
        name: found for name, found in published.items() if found.has_seeds and REGISTRY.keys() >= found.rows.keys()
    }
    tables = {
        "Scores": _scores(compared),
        "Costs": _costs(compared),
        "Primary hypotheses": _hypotheses(judge_primary(published)),
        "The paper's claims": _claims(compared),
        "Questions": _questions(answer_questions(published)),
        "Best rates": _rates({name: found for name, found in published.items() if not found.has_seeds}),
    }
    return "\n\n".join(f"### {title}\n\n" + "\n".join(lines) for title, lines in tables.items() if lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _columns(published: Mapping[str, Published]) -> dict[str, str]:
    """Return the optimizers of all comparisons, label to title, in the order of the first that has each."""
    return {label: row["title"] for found in published.values() for label, row in found.rows.items()}


def _scores(published: Mapping[str, Published]) -> list[str]:
    heads = [f"{name} (a part)" if found.is_part else name for name, found in published.items()]
    lines = [_line(["optimizer", *heads]), _line(["---"] + ["---:"] * len(published))]
    for label, title in _columns(published).items():
        cells = []
        for found in published.values():
            row = found.rows.get(label)
            if row is None or not row.get("test"):
                cells.append(words.NONE)
            else:
                text = words.interval(row["test"], found.task["metric"])
                cells.append(f"**{text}** (1)" if row["group"] == 1 else f"{text} ({row['group']})")
        lines.append(_line([title, *cells]))
    least = [
        words.score(found.task.get("detectable"), found.task["metric"], units=False) for found in published.values()
    ]
    lines.append(_line(["*smallest difference that the seeds could show*", *least]))
    notes = []
    for name, found in published.items():
        better = "more" if found.task["best"] == "max" else "less"
        notes.append(
            f"{name}: test {words.name(found.task['metric'])}, {better} is better, {len(found.task['seeds'])} seeds"
        )
    return [
        *lines,
        "",
        f"{'; '.join(notes)}. Mean with 95 % interval, and in round brackets the group: within one, no difference from "
        "its first is shown; bold is the first group. The smallest difference: a true one of that size would be shown "
        "with a power of 80 % (median of all pairs).",
    ]


def _costs(published: Mapping[str, Published]) -> list[str]:
    heads = ["comparison", "optimizer", "bytes per parameter", "ms per optimizer step", "steps to target training loss"]
    heads += ["seconds to target training loss", "steps to target score", "seconds to target score"]
    lines = [_line(heads), _line(["---", "---"] + ["---:"] * 6)]
    for name, found in published.items():
        for label, row in found.rows.items():
            ms = find_fastest(published, found, label, attrgetter("ms_per_step_optimizer"))
            pace = find_fastest(published, found, label, seconds_per_step)
            loss = (row.get("losses") or {}).get("to_target", {}).get("steps")
            score = row["to_target"]["steps"]
            seconds = [None if pace is None or steps is None else pace * steps for steps in (loss, score)]
            numbers = [row["cost"]["state_bytes_per_parameter"], ms, loss, seconds[0], score, seconds[1]]
            forms = [".1f", ".2f", ".0f", ".1f", ".0f", ".1f"]
            cells = [words.figure(x, form) for x, form in zip(numbers, forms, strict=True)]
            lines.append(_line([f"{name} (a part)" if found.is_part else name, row["title"], *cells]))
    note = (
        "Milliseconds are of the fastest run of the optimizer on the task and the machine; seconds are steps times the "
        "time per step of its fastest run. Machines differ, and were shared; other work only adds time. A target is "
        "the worst of the baselines' means at the end, so compare within a comparison only: "
    )
    return [*lines, "", note + "; ".join(f"{name} {_targets(found)}" for name, found in published.items()) + "."]


def _targets(found: Published) -> str:
    """Return the targets of a comparison, of the training loss and of the validation score, in words."""
    metric, losses = found.task["metric"], [row["losses"] for row in found.rows.values() if row.get("losses")]
    parts = [f"training loss {words.figure(losses[0]['target'], '.3g')}"] if losses else []
    parts.append(f"{words.name(metric)} {words.score(found.task['target']['score'], metric)}")
    return ", ".join(parts)


def _hypotheses(judged: Mapping[str, Sequence[Part]]) -> list[str]:
    lines = [_line(["hypothesis", "part", "ahead by", "p", "seeds", "accepted"]), _line(["---", "---"] + ["---:"] * 4)]
    complete = {name: len(parts) == PARTS[name] for name, parts in judged.items()}
    accepted = holm({name: max(p.p for p in parts) if complete[name] else 1.0 for name, parts in judged.items()})
    for name, parts in judged.items():
        verdict = NOT_JUDGED if not complete[name] else "yes" if accepted[name] else "no"
        for part in parts:
            ahead = f"{part.ahead:.3g}".replace("-", "−")
            lines.append(_line([name, part.text, ahead, f"{part.p:.2g}", str(part.n), verdict]))
        if not complete[name]:
            missing = PARTS[name] - len(parts)
            lines.append(
                _line([name, f"{words.count(missing, 'part')} of {PARTS[name]} not run yet", "", "", "", verdict])
            )
    return lines


def _claims(published: Mapping[str, Published]) -> list[str]:
    """Return each claim of the paper with its verdict, from the comparisons that have ACMo."""
    found = {name: comparison for name, comparison in published.items() if "acmo" in comparison.rows}
    lines = [_line(["claim", "judged by", "verdict", "ACMo minus the others"]), _line(["---"] * 4)]
    for claim in CLAIMS:
        verdict, numbers = _judge_claim(claim, found)
        quote = f"“{claim.quote}” ({claim.lines})"
        lines.append(_line([quote, f"{claim.quantity}; {claim.setting}", f"**{verdict}**", numbers]))
    return lines


def _judge_claim(claim: Claim, published: Mapping[str, Published]) -> tuple[str, str]:
    """Return a claim's verdict, and the intervals behind it.

    A comparison without some of the rivals can refute a claim, and cannot support it.
    """
    own = OF_SETTING.get(claim.setting.partition(",")[0])
    if own:
        published = {name: found for name, found in published.items() if f"{name}-".startswith(f"{own}-")}
    differences = {
        (name, rival): difference
        for name, found in published.items()
        for rival, difference in find_differences(claim, found.task["rows"], found.task["metric"]).items()
    }
    numbers = _intervals(differences, published)
    if claim.key == "generalisation":
        return judge_most(claim, differences), numbers
    judged = {
        name: judge(claim, {rival: x for (of, rival), x in differences.items() if of == name}) for name in published
    }
    refuted = [name for name, verdict in judged.items() if verdict == "does not hold"]
    if refuted:
        where = f" on {words.listing(refuted)}" if len(refuted) < len(judged) else ""
        return f"does not hold{where}", numbers
    complete = [name for name in published if all((name, rival) in differences for rival in claim.rivals)]
    if complete:
        return "holds" if all(judged[name] == "holds" for name in complete) else "not shown", numbers
    lacking = [REGISTRY[x].title for x in claim.rivals if not any(x == rival for _, rival in differences)]
    without = f"not run with {words.listing(lacking)}" if published else "not run with ACMo"
    return NOT_JUDGED, "; ".join(filter(None, [without, numbers]))


def _intervals(differences: Mapping[tuple[str, str], DifferenceInterval], published: Mapping[str, Published]) -> str:
    """Return the intervals of a claim's differences by comparison."""
    texts = []
    for name in published:
        own = [
            f"{REGISTRY[rival].title} {_ends(x.low, x.high)}"
            for (of, rival), x in differences.items()
            if of == name and x.low is not None and x.high is not None
        ]
        if own:
            texts.append(f"{name}: {', '.join(own)}")
    return "; ".join(texts)


def _ends(low: float, high: float) -> str:
    text = f"{low:+.3g}" if low == high else f"[{low:+.3g}, {high:+.3g}]"
    return text.replace("-", "−")


def _questions(answers: Sequence[Answer]) -> list[str]:
    lines = [_line(["question", "verdict", "numbers"]), _line(["---"] * 3)]
    lines += [_line([a.question, f"**{a.verdict}**", a.numbers]) for a in answers]
    shown = [a for a in answers if a.evidence]
    if shown:
        lines += [
            "",
            "Points are means over seeds, lines 95 % intervals; a dashed line is the limit, unless that is 0.",
        ]
    for a in shown:
        lines += ["", f"![{a}]({FIGURES}/{a.slug}.svg)"]
    return lines


def _rates(published: Mapping[str, Published]) -> list[str]:
    """Return the learning rates that validate best, where several were tried on one seed."""
    lines = []
    columns = _columns(published)
    for name, found in published.items():
        for task in found.tasks:
            rows = {row["label"]: row for row in task["rows"] if row["tried"] > 1 and row["settings"]}
            cells = [
                f"{rows[label]['settings']['lr']:g} ({words.score(rows[label]['valid'], task['metric'])})"
                if label in rows
                else words.NONE
                for label in columns
            ]
            if rows:
                lines.append(_line([name, f"`{task['task']}`", *cells]))
    if not lines:
        return []
    heads = [_line(["comparison", "task", *columns.values()]), _line(["---", "---"] + ["---:"] * len(columns))]
    note = "The learning rate that validates best, and its validation score; one run per rate, no interval."
    return [*heads, *lines, "", note]


if __name__ == "__main__":
    print(write_tables(read_published(Path(sys.argv[1]))))
