"""The type of an erratum: its texts, its weight, and a counter-example that runs."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Slacks(NamedTuple):
    """Slacks on the counter-example: the printed statement's is negative, the repaired one's is not."""

    printed: float
    repaired: float


class Severity(str, Enum):
    """How much an erratum weighs, the heaviest first."""

    BREAKS = "breaks the theorem"  # the printed theorem is false by it, or its proof has no way on
    CONSTANT = "changes a constant"  # the proof goes through with other numbers
    OVERSTATES = "overstates"  # a sentence about the method or the experiments that is not so
    SLIP = "slip"  # an index, a factor, a word: nothing else changes


def equation_slacks(left: float, printed: float, repaired: float) -> Slacks:
    """Return the slacks of an equation whose right side was repaired; the repaired one agrees to rounding."""
    return Slacks(-abs(float(left - printed)), 1e-12 - abs(float(left - repaired)))


@dataclass(frozen=True)
class Erratum:
    """One error of the paper.

    Args:
      key: its name in the table and the tests.
      severity: how much it weighs.
      where: its place in the paper, with the lines of the LaTeX source.
      printed: the statement as printed.
      reason: why it is wrong.
      repaired: the statement that holds instead.
      effect: what it changes in the theorem's constants.
      evaluate: runs the counter-example; None where the facts are not of the kind that can be run.
    """

    key: str
    severity: Severity
    where: str
    printed: str
    reason: str
    repaired: str
    effect: str
    evaluate: Callable[[], Slacks] | None


def erratum(
    key: str, severity: Severity, where: str, *, printed: str, reason: str, repaired: str, effect: str = "none"
) -> Callable[[Callable[[], Slacks]], Erratum]:
    """Decorate the function that runs a counter-example: it becomes the `Erratum` with these texts."""

    def make(evaluate: Callable[[], Slacks]) -> Erratum:
        return Erratum(key, severity, where, printed, reason, repaired, effect, evaluate)

    return make
