"""What norms are taken over: the scopes by row, and the shapes that decide between rows and columns."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

ROW_SCOPES = ("row", "column", "auto")  # of the option norm_scope
ROW_KINDS = ("row", "column", "whole")  # of a parameter under them; "whole": its entries are one row
TABLE_RATIO = 8  # a matrix with more rows per column is taken for a vocabulary table


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


def describe_scope(norm_scope: str, shapes: Iterable[Sequence[int]]) -> str:
    """Return a group's scope in words: by row, with how many parameters go which way.

    Example:
      >>> describe_scope("auto", [(8, 8), (8, 8), (900, 8), (8,)])
      'auto (2 by row, 1 by column, 1 whole)'
    """
    if norm_scope not in ROW_SCOPES:
        return norm_scope
    counts = Counter(resolve_scope(norm_scope, shape) for shape in shapes)
    words = {"row": "by row", "column": "by column", "whole": "whole"}
    return f"{norm_scope} ({', '.join(f'{counts[kind]} {words[kind]}' for kind in ROW_KINDS if counts[kind])})"


def count_entries(kind: str, shape: Sequence[int]) -> int:
    """Return how many entries share a norm."""
    return {"row": prod(shape[1:]), "column": shape[0] if shape else 1, "whole": prod(shape)}[kind]


def reduced_dims(kind: str, ndim: int, is_complex: bool) -> tuple[int, ...]:
    """Return the dimensions that norms are taken over; of a complex parameter, of its view as pairs of reals."""
    if kind == "column":
        return (0, 2) if is_complex else (0,)
    return tuple(range(1 if kind == "row" else 0, ndim))
