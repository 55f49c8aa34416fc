"""The type of an erratum: its texts, and a counter-example that runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Slacks(NamedTuple):
    """Slacks on the counter-example: the printed statement's is negative, the repaired one's is not."""

    printed: float
    repaired: float


def equation_slacks(left: float, printed: float, repaired: float) -> Slacks:
    """Return the slacks of an equation whose right side was repaired; the repaired one agrees to rounding."""
    return Slacks(-abs(float(left - printed)), 1e-12 - abs(float(left - repaired)))


@dataclass(frozen=True)
class Erratum:
    """One error of the paper.

    Args:
      key: its name in the table and the tests.
      where: its place in the paper.
      printed: the statement as printed.
      reason: why it is wrong.
      repaired: the statement that holds instead.
      effect: what it changes in the theorem's constants.
      evaluate: runs the counter-example.
    """

    key: str
    where: str
    printed: str
    reason: str
    repaired: str
    effect: str
    evaluate: Callable[[], Slacks]


def erratum(
    key: str, where: str, *, printed: str, reason: str, repaired: str, effect: str = "none"
) -> Callable[[Callable[[], Slacks]], Erratum]:
    """Decorate the function that runs a counter-example: it becomes the `Erratum` with these texts."""

    def make(evaluate: Callable[[], Slacks]) -> Erratum:
        return Erratum(key, where, printed, reason, repaired, effect, evaluate)

    return make
