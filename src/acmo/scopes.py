"""What norms are taken over: the scopes by row, and the shapes that decide between rows, columns and matrices.

A new scope is named here, in `options.NORM_SCOPES`, in `blocks.find_scopes` (the reference) and in the tables of the
backends that are to take it (`SCOPE_CODES`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

ROW_SCOPES = ("row", "column", "auto")  # of the option norm_scope
ROW_KINDS = ("row", "column", "whole", "spectral")  # of a parameter; "whole": its entries are one row
TABLE_RATIO = 8  # a matrix with more rows per column is taken for a vocabulary table
SPECTRAL_SIDE = 8  # a matrix is orthogonalised if both of its sides are longer


def has_rows(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a parameter group goes by row."""
    return any(group["norm_scope"] in ROW_SCOPES or group["unit_step"] == "spectral" for group in groups)


def resolve_scope(norm_scope: str, shape: Sequence[int]) -> str:
    """Return the scope of one parameter from the option and its global shape.

    Example:
      >>> [resolve_scope("auto", s) for s in [(512, 64), (513, 64), (64, 3, 3, 3), (64,), (64, 1)]]
      ['row', 'column', 'row', 'whole', 'whole']
    """
    if norm_scope not in ROW_SCOPES:
        return norm_scope
    if len(shape) < 2:
        return "whole"
    is_table = len(shape) == 2 and shape[0] > TABLE_RATIO * shape[1]
    if len(shape) == 2 and (norm_scope == "column" or (norm_scope == "auto" and is_table and shape[1] > 1)):
        return "column" if shape[0] > 1 else "whole"
    return "row" if prod(shape[1:]) > 1 else "whole"


def is_spectral(norm_scope: str, shape: Sequence[int], chosen: bool | None = None) -> bool:
    """Return whether a spectral step orthogonalises a parameter, seen as a matrix (rows, everything else).

    ``chosen`` is the group's ``spectral``. None leaves out groups by column and what is shaped as a vocabulary table.

    Example:
      >>> shapes = [(64, 64), (64, 3, 3, 3), (8, 64), (64,), (1000, 64)]
      >>> [is_spectral("auto", s) for s in shapes], is_spectral("auto", (1000, 64), True)
      ([True, True, False, False, False], True)
    """
    if len(shape) < 2 or chosen is False or min(shape[0], prod(shape[1:])) <= SPECTRAL_SIDE:
        return False
    is_table = len(shape) == 2 and shape[0] > TABLE_RATIO * shape[1]
    return chosen is True or (norm_scope != "column" and not is_table)


def resolve_kind(group: Mapping[str, Any], p: Any) -> str:
    """Return the scope of a parameter of a group, ``"spectral"`` where its step is orthogonalised."""
    scope, shape = group["norm_scope"], p.shape
    if group["unit_step"] == "spectral" and not p.is_complex() and is_spectral(scope, shape, group["spectral"]):
        return "spectral"
    return resolve_scope(scope, shape)


def describe_scope(norm_scope: str, kinds: Iterable[str]) -> str:
    """Return a group's scope in words: by row, with how many parameters go which way.

    Example:
      >>> describe_scope("auto", ["row", "row", "column", "whole", "spectral"])
      'auto (2 by row, 1 by column, 1 whole, 1 spectral)'
    """
    counts = Counter("whole" if kind == "tensor" else kind for kind in kinds)
    if norm_scope not in ROW_SCOPES and not counts["spectral"]:
        return norm_scope
    words = {"row": "by row", "column": "by column"}
    shown = [f"{counts[kind]} {words.get(kind, kind)}" for kind in ROW_KINDS if counts[kind]]
    return f"{norm_scope} ({', '.join(shown)})"


def count_entries(kind: str, shape: Sequence[int]) -> int:
    """Return how many entries share a norm."""
    return {"row": prod(shape[1:]), "column": shape[0] if shape else 1}.get(kind, prod(shape))


def reduced_dims(kind: str, ndim: int, is_complex: bool) -> tuple[int, ...]:
    """Return the dimensions that norms are taken over; of a complex parameter, of its view as pairs of reals."""
    if kind == "column":
        return (0, 2) if is_complex else (0,)
    return tuple(range(1 if kind == "row" else 0, ndim))
