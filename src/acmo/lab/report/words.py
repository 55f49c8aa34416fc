"""Format numbers and lists for readers."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PERCENT = {"accuracy"}
NONE = "–"


def scale(metric: str) -> float:
    """Return the factor by which a metric is shown: accuracy is shown in per cent."""
    return 100.0 if metric in _PERCENT else 1.0


def unit(metric: str) -> str:
    return " %" if metric in _PERCENT else ""


def name(metric: str) -> str:
    """Return a metric's name within a sentence."""
    return {"bleu": "BLEU"}.get(metric, metric.replace("_", " "))


def score(value: float | None, metric: str, *, sign: bool = False, units: bool = True) -> str:
    """Return a score: two decimals for per cent and BLEU, four digits otherwise."""
    if value is None:
        return NONE
    percent = metric in _PERCENT
    form = ("+" if sign else "") + (".2f" if percent or metric == "bleu" else ".4g")
    text = format(value * (100.0 if percent else 1.0), form).replace("-", "−")
    return f"{text} %" if percent and units else text


def interval(found: Any, metric: str) -> str:
    """Return ``98.1 % [97.5, 98.6]``."""
    if found["mean"] is None or found["low"] is None:
        return score(found["mean"], metric)
    low, high = score(found["low"], metric, units=False), score(found["high"], metric, units=False)
    return f"{score(found['mean'], metric)} [{low}, {high}]"


def figure(value: float | None, form: str = ".3g") -> str:
    return NONE if value is None else format(value, form)


def seconds(value: float | None) -> str:
    """Return a duration."""
    if value is None:
        return NONE
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def count(n: int, thing: str) -> str:
    """Return ``1 run``, ``1,200 runs``."""
    return f"{n:,} {thing}{'s' * (n != 1)}"


def listing(words: Sequence[str], limit: int = 8) -> str:
    """Return ``a, b and c``."""
    if len(words) > limit:
        words = [*words[: limit - 1], f"{len(words) - limit + 1} others"]
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def rates(values: Sequence[float]) -> str:
    """Return learning rates as ``0.2, 0.4``."""
    return ", ".join(f"{value:g}" for value in values)


def counted(found: Mapping[str, Any] | None) -> str:
    """Return how BLEU was counted, as a sentence; nothing for other scores."""
    if not found:
        return ""
    where = {"valid": "validation", "test": "test"}
    ways = [f"in the {where[s]} of {how['translated']:,} sentences ({how['decoding']})" for s, how in found.items()]
    return f" BLEU is sacrebleu's, {next(iter(found.values()))['bleu_signature']}, {listing(ways)}."


def command(words: Sequence[str] | None) -> str:
    """Return a command line, the program by its name alone."""
    if not words:
        return ""
    first = "python -m acmo" if words[0].endswith("__main__.py") else Path(words[0]).name
    return " ".join([first, *(f"'{w}'" if re.search(r"[\s\"$&;|<>]", w) else w for w in words[1:])])
