"""From evidence to HTML: tables and sentences by Jinja2, the plots' data as JSON for the page's own script."""

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from acmo.lab.config.grids import describe
from acmo.lab.errors import missing_extra
from acmo.lab.redaction import redact
from acmo.lab.report import angles, curves, samples, sentences, speed, tuning, words
from acmo.lab.report.evidence import Evidence
from acmo.lab.report.paper import original
from acmo.lab.report.training_losses import tabulate_losses
from acmo.lab.results.run_record import RunRecord
from acmo.lab.results.summary import explain_no_setting
from acmo.lab.results.tables import Row

HERE = Path(__file__).parent
PLOTLY = "/* Plotly stands here */"


def render(evidence: Evidence) -> str:
    """Return the page about one comparison."""
    return render_template("page.html", make_view(evidence))


def render_template(template: str, view: Row) -> str:
    """Return a page that needs no other file; what it shows is in ``view``."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "plotly") from None
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    data = {"titles": view["titles"], "plots": view["plots"]}
    page = environment.get_template(template).render(
        **view,
        data=_script_safe(data),
        plotly=PLOTLY if view["plots"] else "",
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        js=(HERE / "page.js").read_text(encoding="utf-8"),
    )
    return redact(page).replace(PLOTLY, get_plotlyjs(), 1)  # there are no secrets in megabytes of Plotly


def make_view(evidence: Evidence, prefix: str = "") -> Row:
    """Return what the page shows; ``prefix`` begins the ids of its plots, for a page about several comparisons."""
    found = evidence.found
    titles = {row["label"]: row["title"] for task in evidence.tasks for row in task["rows"]}
    metrics = {task["task"]: task["metric"] for task in evidence.tasks}
    plots: list[Row] = []
    tasks = [_task(f"{prefix}t{i}", task, found.plan, plots) for i, task in enumerate(evidence.tasks)]
    profile = speed.profile(evidence.tasks)
    profile_sentence = ""
    if profile:
        plots.append({"id": f"{prefix}profile", "type": "profile", "axes": profile})
        profile_sentence = sentences.profile(profile["step"], titles)
    stated = found.provenance if isinstance(found.provenance, dict) else {}
    return {
        "title": found.plan.get("title")
        or ", ".join(task["task"] for task in evidence.tasks)
        or found.folder.resolve().name,
        "notes": evidence.notes,
        "tasks": tasks,
        "titles": titles,
        "plots": plots,
        "profile_sentence": profile_sentence,
        "runs": [_run(run, metrics.get(run.task, "loss")) for run in found.runs],
        "runs_sentence": sentences.runs(found.runs),
        "facts": _facts(found.plan, stated),
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _task(prefix: str, task: Row, plan: Row, plots: list[Row]) -> Row:
    """Return what the sections show of a task; its plots are added to ``plots``, their ids begin with ``prefix``."""
    contestants, metric, best = task["contestants"], task["metric"], task["best"]
    common = {"score": metric, "unit": words.unit(metric).strip(), "best": best}

    def add(kind: str, plot: Row) -> Row:
        plots.append({**common, **plot, "id": f"{prefix}-{kind}-{len(plots)}", "type": kind})
        return {"id": plots[-1]["id"], "title": plot["title"]}

    learned = curves.learning(contestants, metric)
    rates, budgets = tuning.sensitivity(contestants, metric, best), tuning.budget(contestants, metric)
    reached = speed.hits(contestants, task)
    turned = angles.telemetry(contestants)
    split = {"valid": "validation", "test": "test"}[task.get("budget_split", "valid")]
    view = {
        "name": task["task"],
        "metric": words.name(metric),
        "seeds": len(task["seeds"]),
        "baselines": list(dict.fromkeys(o for row in task["rows"] for o in row["differences"])),
        "rows": _verdict(task, original(plan, task["task"])),
        "paper": original(plan, task["task"]),
        "verdict": sentences.verdict(task),
        "matrix": _matrix(task),
        "power": sentences.power(task),
        "curves_sentence": sentences.curves(task, learned),
        "curves": [add("curve", plot) for plot in learned],
        "losses": tabulate_losses(task),
        "tuning_sentence": sentences.tuned(task, rates, budgets),
        "tuning": [],
        "speed_sentence": sentences.target(task, reached),
        "speed": [add("speed", {"title": "To the target: each seed, and the median", "series": reached})]
        if any(s["step"] for s in reached)
        else [],
        "angles": [add("curve", plot) for plot in turned],
        "angles_sentence": " ".join(
            sentences.angle(c) for c in contestants if any(c.label == s["label"] for p in turned for s in p["series"])
        ),
        "samples": samples.samples(contestants),
    }
    if rates:
        title = f"Validation {words.name(metric)} by learning rate (× all diverged)"
        view["tuning"].append(add("sensitivity", {"title": title, "series": rates}))
    if budgets:
        title = f"Expected {split} {words.name(metric)} of the best of k settings"
        view["tuning"].append(add("budget", {"title": title, "series": budgets}))
    return view


def _verdict(task: Row, paper: Any) -> list[Row]:
    """Return the rows of the table, best first; next to each text the number to sort by."""
    metric = task["metric"]
    ends = [row["test"][k] for row in task["rows"] for k in ("low", "mean", "high") if row["test"][k] is not None]
    low, wide = (min(ends), max(ends) - min(ends) or 1.0) if ends else (0.0, 1.0)
    table = []
    for row in sorted(task["rows"], key=lambda r: (r["rank"] is None, r["rank"] or 0)):
        test, reached, cost = row["test"], row["to_target"], row["cost"]
        bar = None
        if test["mean"] is not None:
            left, middle, right = (
                96 * ((test[k] if test[k] is not None else test["mean"]) - low) / wide + 2
                for k in ("low", "mean", "high")
            )
            bar = {"left": round(left, 1), "width": round(max(right - left, 0.5), 1), "mean": round(middle, 1)}
        flags = list(row["edges"])
        if row.get("extended"):  # not in summaries of earlier versions
            flags.append(f"grid extended by lr={words.rates(row['extended'])}")
        among = {"tune": (row["tried"], "settings"), "final": (len(task["seeds"]), "seeds")}
        flags += [f"{n} of {among[role][0]} {among[role][1]} diverged" for role, n in row["diverged"].items() if n]
        if row.get("pruned"):
            flags.append(f"{row['pruned']} of {row['tried']} settings pruned")
        if row.get("failed") and row["settings"] is not None:
            n = row["failed"]["tune"] + row["failed"]["final"]
            flags.append(f"{words.count(n, 'run')} failed: {row['failed']['reason']}")
        setting = explain_no_setting(row) if row["settings"] is None else describe(row["settings"])
        table.append(
            {
                "label": row["label"], "title": row["title"], "bar": bar,
                "group": row.get("group") or row["rank"],  # summaries of earlier versions have no groups

                "test": words.interval(test, metric), "test_value": test["mean"],
                "paper": paper.finals.get(row["label"]) if paper else None,
                "differences": {o: format_difference(d, metric) for o, d in row["differences"].items()},
                "steps": words.figure(reached["steps"], ",.0f"), "steps_value": reached["steps"],
                "seconds": words.seconds(reached["seconds"]), "seconds_value": reached["seconds"],
                "reached": f"{reached['reached']} of {reached['n']}" if reached["reached"] < reached["n"] else "",
                "bytes": words.figure(cost.get("state_bytes_per_parameter"), ".1f"),
                "ms": words.figure(cost.get("ms_per_step_optimizer"), ".2f"),
                "setting": setting, "flags": flags,
            }
        )  # fmt: skip
    return table


def _matrix(task: Row) -> list[Row]:
    """Return every pair, a row per optimizer, best first: what it has over the one of the column."""
    pairs = {(p["first"], p["second"]): p for p in task.get("pairs", [])}
    scored = [r["label"] for r in sorted(task["rows"], key=lambda r: r["rank"] or 0) if r["rank"] is not None]
    other_way = {"better": "worse", "worse": "better"}
    table = []
    for label in scored if len(scored) > 2 else ():
        cells: list[Row | None] = []
        for other in scored:
            pair, sign = (pairs.get((label, other)), 1) if (label, other) in pairs else (pairs.get((other, label)), -1)
            if pair is None or pair["mean"] is None:
                cells.append(None)
                continue
            verdict = pair["verdict"] if sign == 1 else other_way.get(pair["verdict"], pair["verdict"])
            least = words.score(pair["detectable"], task["metric"]) if pair["detectable"] is not None else ""
            cells.append(
                {
                    "text": words.score(sign * pair["mean"], task["metric"], sign=True, units=False),
                    "verdict": verdict,
                    "about": verdict + (f"; {least} could have been shown" if least else ""),
                }
            )
        table.append({"label": label, "cells": cells})
    return table


def format_difference(found: Row, metric: str) -> Row:
    """Return ``text``, ``value`` and ``verdict`` of a difference, for a cell of a table."""
    text = words.score(found["mean"], metric, sign=True, units=False)
    if found["low"] is not None:
        text += f" [{', '.join(words.score(found[k], metric, sign=True, units=False) for k in ('low', 'high'))}]"
    return {"text": text, "value": found["mean"], "verdict": found["verdict"]}


def _run(run: RunRecord, metric: str) -> Row:
    valid, test = run.valid.get(metric), (run.test or {}).get(metric)
    return {
        "task": run.task, "label": run.label, "role": run.role, "seed": run.seed, "status": run.status,
        "setting": describe(run.settings), "reason": run.reason or "", "run": run.run,
        "valid": words.score(valid, metric), "valid_value": valid,
        "test": words.score(test, metric), "test_value": test,
        "steps": words.figure(run.steps, ",.0f"), "steps_value": run.steps,
        "seconds": words.seconds(run.seconds), "seconds_value": run.seconds,
        "href": run.folder and f"./{quote(run.folder)}/",
    }  # fmt: skip


def _facts(plan: Row, stated: Row) -> list[tuple[str, str]]:
    """Return where the results come from."""
    machine, versions = stated.get("machine") or {}, stated.get("versions") or {}
    gpus = machine.get("gpus") or []
    place = [
        machine.get("processor"),
        f"{machine['cores']} cores" if "cores" in machine else None,
        *gpus,
        machine.get("system"),
    ]
    options = {
        k: v for k, v in plan.items() if v not in (None, "", [], {}, False) and k not in ("title", "needs", "tasks")
    }
    facts = [
        ("command", words.command(stated.get("command"))),
        ("commit", stated.get("commit") or ""),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("machine", ", ".join(str(part) for part in place if part)),
        ("options", ", ".join(f"{k} = {v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items())),
    ]
    return [(name, text) for name, text in facts if text]


def _script_safe(data: Any) -> str:
    """Return JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")
