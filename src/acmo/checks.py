"""Checks of hyper-parameters: one place, one wording, for ACMo and for its rivals."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor


def at_least(name: str, value: Any, bound: float = 0.0, *, strict: bool = False, finite: bool = True) -> None:
    """Raise ValueError unless ``value`` is a number (or 1-element Tensor) that is >= ``bound`` (> when strict)."""
    number = _number(name, value)
    if not (number > bound if strict else number >= bound) or (finite and math.isinf(number)):
        raise ValueError(
            f"{name} must be {'finite and ' if finite else ''}{'>' if strict else '>='} {bound:g}, got {value}"
        )


def between(name: str, value: Any, low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> None:
    """Raise ValueError unless ``value`` lies between ``low`` and ``high``."""
    number = _number(name, value)
    above = number > low if open_low else number >= low
    below = number < high if open_high else number <= high
    if not (above and below):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise ValueError(f"{name} must be in {interval}, got {value}")


def one_of(name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise ValueError unless ``value`` is among ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def real_floating_dtype(name: str, value: Any) -> None:
    """Raise unless ``value`` is None or a real floating dtype."""
    if value is None:
        return
    if not isinstance(value, torch.dtype):
        raise TypeError(f"{name} must be a torch.dtype or None, got {value!r}")
    if not value.is_floating_point:
        raise ValueError(f"{name} must be a real floating dtype, got {value}")


def exclusive(options: dict[str, Any], *pairs: tuple[str, str]) -> None:
    """Raise ValueError when both options of a pair are set."""
    for first, second in pairs:
        if options[first] and options[second]:
            raise ValueError(f"{first}=True and {second}=True exclude each other: choose one of them")


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {name} must be 1-element, got shape {tuple(value.shape)}")
    elif not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)
