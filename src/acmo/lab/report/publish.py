"""A finished comparison as a folder to publish: its runs, its summary, its figures, and a page about them.

``python -m acmo.lab.report.publish docs/results`` prints the table over all that are published there; with
``--rewrite`` it first computes every summary and page again from the published runs, as after a change of their form.
"""

import re
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from acmo.lab import atomic
from acmo.lab.config.grids import describe, run_counts
from acmo.lab.config.plan import make_plan
from acmo.lab.config.preset_files import presets
from acmo.lab.errors import LabError
from acmo.lab.report import words
from acmo.lab.report.evidence import gather
from acmo.lab.report.paper_figures import draw, draw_rates
from acmo.lab.report.sentences import power
from acmo.lab.report.training_losses import tabulate_losses
from acmo.lab.results.comparison_folder import Comparison, load, write_head
from acmo.lab.results.run_files import read_json
from acmo.lab.results.summary import describe_untuned, explain_no_setting, flat_rows, summarise
from acmo.lab.results.tables import Row, write_csv, write_lines

FORMATS = ("svg", "png")
DATA = "DIR"  # in place of the folder of the data, which is another one on every machine


def publish(folder: Path, target: Path) -> list[Path]:
    """Write what others need to check and to read a comparison; the runs' own folders stay where they are.

    Args:
      folder: of a comparison in which every run is finished.
      target: where to; made if it is not there.

    Returns:
      What was written: ``comparison.json``, ``trials.jsonl`` (one line per run), ``summary.json`` and ``.csv``,
      ``README.md``, the figures.
    """
    evidence = gather(folder)
    found = evidence.found
    if not found.plan:
        raise LabError(f"{folder} holds no comparison to publish")
    missing = _missing(found)
    if missing:
        raise LabError(
            f"{folder} is not finished ({words.count(missing, 'run')} missing): give the command again, then publish"
        )
    with atomic.explained(target):
        target.mkdir(parents=True, exist_ok=True)
    stated = {**found.provenance, "command": _without_paths(found.provenance.get("command") or [])}
    config = {**found.plan, "data": DATA} if found.plan.get("data") else found.plan
    write_head(target, {"config": config, "scores": found.scores, "provenance": stated, "data": found.data})
    runs = [{key: value for key, value in run.to_json().items() if key != "folder"} for run in found.runs]
    write_lines(target / "trials.jsonl", runs)
    figures = draw([evidence], target, FORMATS) + draw_rates([evidence], target, FORMATS)
    tables = write_tables(target, figures)
    return [target / "comparison.json", target / "trials.jsonl", *tables, *figures]


def write_tables(folder: Path, figures: Iterable[Path]) -> list[Path]:
    """Write ``summary.json``, ``summary.csv`` and ``README.md`` from the published runs alone."""
    summary = recomputed(folder)
    atomic.write_json(folder / "summary.json", summary)
    write_csv(folder / "summary.csv", flat_rows(summary))
    atomic.write(folder / "README.md", page(folder, figures).encode())
    return [folder / name for name in ("summary.json", "summary.csv", "README.md")]


def _without_paths(command: list[str]) -> list[str]:
    """Return a command line as others can repeat it: the program by its name, the data as ``DIR``, no output folder."""
    words = [*(Path(word).name for word in command[:1]), *command[1:]]
    words = [word for i, word in enumerate(words) if not word.startswith("--out") and words[i - 1] != "--out"]
    words = [f"--data={DATA}" if word.startswith("--data=") else word for word in words]
    return [DATA if i and words[i - 1] == "--data" else word for i, word in enumerate(words)]


def _missing(found: Comparison) -> int:
    """Return how many runs the comparison lacks, those that have not begun among them."""
    plan = make_plan(found.plan)
    expected = run_counts(plan)
    missing = 0
    for task in summarise(plan, found.runs, found.scores)["tasks"]:
        for row in task["rows"]:
            missing += max(0, expected[row["label"]]["tune"] - row["tried"])
            if row["settings"] is not None:
                missing += plan.seeds - len(row["test_by_seed"]) - row["diverged"]["final"]
    return missing


def recomputed(folder: Path) -> Row:
    """Return the summary, from the published runs alone."""
    found = load(folder)
    return summarise(make_plan(found.plan), found.runs, found.scores)


def page(folder: Path, figures: Iterable[Path]) -> str:
    """Return the text of a published folder's ``README.md``."""
    found = load(folder)
    stated = found.provenance
    said = [f"# {_text(found.plan.get('title') or folder.name)}", "", *_about(stated.get("command") or [])]
    command = words.command(stated.get("command"))
    said += ["```", command, "```", ""]
    if re.search(rf"--data[ =]{DATA}\b", command):
        part = any(data.get("subset") for data in found.data.values())
        what = "the data, a part of the official one as said below each table" if part else "the official files"
        said += [f"`{DATA}` is a folder with {what}{'' if part else ' of the data set'}.", ""]
    total = sum(run.seconds or 0.0 for run in found.runs)
    said.append(
        f"{words.count(len(found.runs), 'run')}, {words.seconds(total)} in all, pauses included{_each(found)}. "
        f"{_machine(stated)} The data of each table and figure is beside this page: `trials.jsonl` (one line per run, "
        "with its validation curve), `summary.json`, `summary.csv`, `comparison.json`."
    )
    for task in (found.summary or recomputed(folder))["tasks"]:
        said += ["", f"## {_text(task['task'])}", "", *verdict(task), *losses(task), *_data(found, task["task"])]
    for path in sorted(figures):
        if path.suffix == ".svg":
            said += ["", f"![{path.stem}]({path.name})"]
    return "\n".join(said) + "\n"


def verdict(task: Row) -> list[str]:
    """Return a task's rows as a table in Markdown, best first."""
    metric = task["metric"]
    others = list(dict.fromkeys(other for row in task["rows"] for other in row["differences"]))
    titles = {row["label"]: row["title"] for row in task["rows"]}
    heads = ["optimizer", f"test {words.name(metric)}", *(f"against {_text(titles[o])}" for o in others)]
    heads += ["steps to target", "bytes per parameter", "setting"]
    lines = [_line(heads), _line(["---"] + ["---:"] * (len(heads) - 2) + ["---"])]
    for row in sorted(task["rows"], key=lambda r: (r["rank"] is None, r["rank"] or 0)):
        reached, cost = row["to_target"], row["cost"]
        steps = (
            words.figure(reached["steps"], ",.0f")
            if reached["steps"] is not None
            else f"{reached['reached']} of {reached['n']} runs"
        )
        setting = explain_no_setting(row) if row["settings"] is None else describe(row["settings"])
        if row["edges"]:
            setting += f" (at the edge: {', '.join(edge.partition('=')[0] for edge in row['edges'])})"
        if row.get("extended"):
            setting += f" (grid extended by {words.rates(row['extended'])})"
        if row.get("pruned"):
            setting += f" ({row['pruned']} of {row['tried']} settings pruned)"
        if row["diverged"]["final"]:
            setting += f" ({row['diverged']['final']} of {words.count(len(task['seeds']), 'seed')} diverged)"
        cells = [_text(row["title"]), words.interval(row["test"], metric)]
        cells += [difference(row["differences"].get(other), metric) for other in others]
        lines.append(_line([*cells, steps, words.figure(cost["state_bytes_per_parameter"], ".1f"), _text(setting)]))
    n = len(task["seeds"])
    lines += [
        "",
        "One seed, so no interval."
        if n == 1
        else f"Mean and 95 % interval over {n} seeds" + (", differences paired by seed." if others else "."),
    ]
    if task["target"]["score"] is not None:
        setters = words.listing([_text(titles.get(label, label)) for label in task["target"]["from"]])
        lines[-1] += f" The target is {words.score(task['target']['score'], metric)} in validation, set from {setters}."
    if task["weight_decay"] is not None:
        lines[-1] += f" Weight decay is {task['weight_decay']:g} for all, the best for SGD-momentum."
    if untuned := describe_untuned(task["rows"]):
        lines[-1] += f" {_text(untuned)}"
    lines[-1] += words.counted(task.get("counted"))
    if least := power(task):
        lines += ["", least]
    return lines


def losses(task: Row) -> list[str]:
    """Return the training losses as a table in Markdown; nothing where none was recorded."""
    table = tabulate_losses(task)
    if table is None:
        return []
    lines = [_line(map(_text, cells)) for cells in (table.heads, *table.cells)]
    return ["", lines[0], _line(["---"] + ["---:"] * (len(table.heads) - 1)), *lines[1:], "", table.note]


def difference(found: Row | None, metric: str) -> str:
    """Return ``−0.39 [−1.00, +0.11]``, in bold where the interval leaves out 0."""
    if found is None or found["mean"] is None:
        return words.NONE
    mean, low, high = (words.score(found[key], metric, sign=True, units=False) for key in ("mean", "low", "high"))
    if found["low"] is None:
        return mean
    text = f"{mean} [{low}, {high}]"
    return text if found["verdict"].startswith("no ") else f"**{text}**"


def overview(folder: Path) -> list[str]:
    """Return one table over every published comparison that has ACMo beside SGD-momentum and Adam."""
    names = ("acmo", "sgd-momentum", "adam")
    heads = [
        "comparison",
        "score",
        "ACMo",
        "SGD-momentum",
        "Adam",
        "ACMo − SGD-momentum",
        "ACMo − Adam",
        "steps to target: ACMo, SGD-m., Adam",
    ]
    lines = [_line(heads), _line(["---", "---"] + ["---:"] * (len(heads) - 2))]
    for path in sorted(folder.glob("*/summary.json")):
        for task in read_json(path)["tasks"]:  # type: ignore[index]
            rows = {row["label"]: row for row in task["rows"]}
            if not set(names) <= rows.keys():
                continue
            metric = task["metric"]
            steps = [rows[n]["to_target"]["steps"] for n in names]
            lines.append(
                _line(
                    [
                        f"[{path.parent.name}]({path.parent.name}/README.md)",
                        words.name(metric) + words.unit(metric).replace(" %", ", %"),
                        *(words.interval(rows[n]["test"], metric).replace(" %", "") for n in names),
                        *(difference(rows["acmo"]["differences"].get(n), metric) for n in names[1:]),
                        ", ".join(words.figure(s, ",.0f") for s in steps),
                    ]
                )
            )
    return lines


def _about(command: list[str]) -> list[str]:
    """Return the comment at the head of the preset that the command names, if it ships with acmo."""
    given = [command[i + 1] for i, word in enumerate(command[:-1]) if word == "--preset"]
    given += [word.partition("=")[2] for word in command if word.startswith("--preset=")]
    preset = presets().get(given[0].removesuffix(".toml")) if given else None
    if preset is None:
        return []
    lines = preset.text.splitlines()
    head = lines[: next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))]
    return [*(line.lstrip("# ") for line in head), ""]


def _machine(stated: Row) -> str:
    machine, versions = stated.get("machine", {}), stated.get("versions", {})
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    commit = f", commit {stated['commit'][:12]}" if stated.get("commit") else ""
    where = f"{machine.get('processor')}, {machine.get('cores')} cores, {machine.get('system')}"
    return f"Machine: {where}; {software}{commit}."


def _data(found: Comparison, task: str) -> list[str]:
    """Return what data a task had; nothing where an earlier version did not note it."""
    data = found.data.get(task, {})
    if data.get("fingerprint") is None:
        return []
    part = data.get("subset") or ("the official data" if data.get("files") else "the task's own")
    return ["", f"Data: {_text(part)}; fingerprint `{data['fingerprint']}`, its files are in `comparison.json`."]


def _each(found: Comparison) -> str:
    cores = found.plan.get("device", "auto") in ("auto", "cpu") and not found.provenance.get("machine", {}).get("gpus")
    return ", each on one core" if cores else ""


def _text(name: str) -> str:
    """Return a name that Markdown shows as it is."""
    return escape(" ".join(name.split()), quote=False)


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"


if __name__ == "__main__":
    *flags, root = sys.argv[1:]
    for head in Path(root).rglob("comparison.json") if "--rewrite" in flags else ():
        write_tables(head.parent, sorted(head.parent.glob("*.svg")))
    print("\n".join(overview(Path(root))))
