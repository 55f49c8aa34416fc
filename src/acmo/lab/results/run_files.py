"""``config.json`` and ``result.json`` of a run's folder: one writer and one reader for each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acmo.lab import atomic
from acmo.lab.errors import LabError
from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.results.run_record import CurvePoint, RunRecord, Score, finite_or_none, thin_curve

CONFIG, RESULT = "config.json", "result.json"


def write_config(folder: Path, content: Mapping[str, Any]) -> None:
    """Write what a run is, before it begins: ``config``, ``provenance``, ``effective`` settings and ``data``."""
    atomic.write_json(folder / CONFIG, content)


def read_config(folder: Path) -> dict[str, Any]:
    """Read what `write_config` wrote; empty if it is missing or damaged."""
    content = read_json(folder / CONFIG)
    return content if isinstance(content, dict) else {}


def write_outcome(folder: Path, record: RunRecord) -> None:
    """Write how a run ended."""
    atomic.write_json(folder / RESULT, record.outcome())


def read_outcome(folder: Path, score: Score | None) -> dict[str, Any] | None:
    """Read how a run ended; None if it has not, or if the file is damaged.

    Args:
      folder: the run's.
      score: for results of earlier versions, which have no curve: that of which it is read from the metrics.
    """
    found = read_json(folder / RESULT)
    if not isinstance(found, dict) or "status" not in found:
        return None
    if "curve" not in found and score is not None:
        found["curve"] = read_curve(folder, score)
    return found


def require_outcome(folder: Path, score: Score) -> dict[str, Any] | None:
    """Return `read_outcome`; None if the run has not ended, and a `LabError` if the file is damaged."""
    found = read_outcome(folder, score)
    if found is None and (folder / RESULT).exists():
        raise LabError(f"{folder / RESULT} is damaged; delete it to have the run done again")
    return found


def read_curve(folder: Path, score: Score) -> list[CurvePoint]:
    """Read the evaluations on validation data from the metrics."""
    lines = read_metrics(folder).of("valid")
    return thin_curve([CurvePoint(r["step"], r["seconds"], finite_or_none(r.get(score.metric))) for r in lines], score)


def read_json(path: Path) -> Any | None:
    """Return what a JSON file holds; None if it is missing or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
