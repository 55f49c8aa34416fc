"""Checks of hyper-parameters: one place, one wording, for ACMo and for its rivals."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

REAL_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def at_least(name: str, value: Any, bound: float = 0.0, *, strict: bool = False, finite: bool = True) -> None:
    """Raise ValueError unless ``value`` is a number (or 1-element Tensor) that is >= ``bound`` (> when strict)."""
    x = number(name, value)
    if not (x > bound if strict else x >= bound) or (finite and math.isinf(x)):
        raise ValueError(
            f"{name} must be {'finite and ' if finite else ''}{'>' if strict else '>='} {bound:g}, got {value}"
        )


def between(name: str, value: Any, low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> None:
    """Raise ValueError unless ``value`` lies between ``low`` and ``high``."""
    x = number(name, value)
    above = x > low if open_low else x >= low
    below = x < high if open_high else x <= high
    if not (above and below):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise ValueError(f"{name} must be in {interval}, got {value}")


def one_of(name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise ValueError unless ``value`` is among ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def flag(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise TypeError unless ``value`` is a bool (or None, where optional): "no" would count as True."""
    if not isinstance(value, bool) and not (optional and value is None):
        raise TypeError(f"{name} must be True or False{' or None' if optional else ''}, got {value!r}")


def real_floating_dtype(name: str, value: Any) -> None:
    """Raise unless ``value`` is None or a real floating dtype that torch computes with (float8 is for storage)."""
    if value is None:
        return
    if not isinstance(value, torch.dtype):
        raise TypeError(f"{name} must be a torch.dtype or None, got {value!r}")
    if value not in REAL_DTYPES:
        raise ValueError(f"{name} must be one of {', '.join(map(str, REAL_DTYPES))}, got {value}")


def exclusive(options: dict[str, Any], *pairs: tuple[str, str]) -> None:
    """Raise ValueError when both options of a pair are set."""
    for first, second in pairs:
        if options[first] and options[second]:
            raise ValueError(f"{first}=True and {second}=True exclude each other: choose one of them")


def number(name: str, value: Any) -> float:
    """``value`` as a float; raises unless it is a real number or a Tensor of one."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {name} must be 1-element, got shape {tuple(value.shape)}")
        if value.is_complex():
            raise TypeError(f"{name} must be real, got {value}")
        return float(value.detach())
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"{name} must be a number, got {value!r}")
