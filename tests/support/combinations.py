"""Choose few cases of a cross product that still hold every combination of a few values.

Most errors depend on one or two options, not on seven at once. So a test of a cross product of options runs a subset in
which every two values (or every three) of different options occur together; the nightly tier runs the rest.
"""

from collections.abc import Hashable, Sequence
from itertools import combinations


def covering(cases: Sequence[Sequence[Hashable]], strength: int = 2) -> set[int]:
    """Return the indices of cases that hold every combination of ``strength`` values that occurs in a case.

    Each step takes the case with the most combinations that are still missing; the first of these in the given order,
    so that the choice is the same everywhere.

    Args:
      cases: the values of each case.
      strength: how many values of a case make a combination; 2 is pairwise.
    """
    missing = {index: set(combinations(case, min(strength, len(case)))) for index, case in enumerate(cases)}
    left = set().union(*missing.values()) if missing else set()
    chosen: set[int] = set()
    while left:
        best = max(missing, key=lambda index: len(missing[index] & left))
        chosen.add(best)
        left -= missing.pop(best)
    return chosen
