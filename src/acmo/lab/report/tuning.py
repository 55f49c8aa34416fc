"""How much tuning an optimizer needs: its score at each learning rate, and the expected best of k settings."""

from collections.abc import Sequence

from acmo.lab.report import words
from acmo.lab.report.evidence import Contestant
from acmo.lab.results.run_record import finite_or_none
from acmo.lab.results.tables import Row

NEAR = {"accuracy": 0.01, "bleu": 1.0}  # what counts as near the best; a twentieth of it for other metrics


def sensitivity(contestants: Sequence[Contestant], metric: str, best: str) -> list[Row]:
    """Return by optimizer, for each learning rate tried, the best validation score with it (None: all diverged)."""
    choose, scale = max if best == "max" else min, words.scale(metric)
    series = []
    for c in contestants:
        scores: dict[float, list[float]] = {}
        for run in c.tuned:
            lr = finite_or_none(run.settings.get("lr"))
            if lr is None or lr <= 0 or run.status in ("unfinished", "failed"):
                continue
            value = finite_or_none(run.tuning_score("valid", metric))
            scores.setdefault(lr, []).extend([] if value is None else [value])
        if scores:
            rates = sorted(scores)
            found = [choose(scores[lr]) * scale if scores[lr] else None for lr in rates]
            series.append({"label": c.label, "lr": rates, "score": found})
    return series


def near_best(series: Row, metric: str, best: str) -> int:
    """Return at how many learning rates the score is near the optimizer's own best."""
    present = [s for s in series["score"] if s is not None]
    if not present:
        return 0
    top = max(present) if best == "max" else min(present)
    slack = NEAR[metric] * words.scale(metric) if metric in NEAR else abs(top) / 20
    return len([s for s in present if abs(s - top) <= slack * (1 + 1e-9)])


def nearness(metric: str) -> str:
    """Return what `near_best` counts, in words."""
    return {"accuracy": "1 point", "bleu": "1 BLEU"}.get(metric, "5 %")


def budget(contestants: Sequence[Contestant], metric: str) -> list[Row]:
    """Return by optimizer the expected score of the best of k settings, k = 1 … all."""
    scale = words.scale(metric)
    return [
        {"label": c.label, "score": [float(f"{v * scale:.5g}") for v in c.row["budget"]]}
        for c in contestants
        if c.row.get("budget")
    ]
