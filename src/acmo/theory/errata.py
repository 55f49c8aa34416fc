"""The paper's errors as data: what is printed, what should stand there, and a counter-example that runs.

The rows live in ``errata_method`` (section 3), ``errata_theorem`` (section 4) and ``errata_proof`` (the appendix);
the table of docs/theory.md is :func:`markdown`, and a test holds the two together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Shown(NamedTuple):
    """Slacks on the counter-example: the printed statement's is negative, the repaired one's is not."""

    printed: float
    repaired: float


def equation(left: float, printed: float, repaired: float) -> Shown:
    """The slacks where an equation's right side was mended: to rounding, the repaired one agrees."""
    return Shown(-abs(float(left - printed)), 1e-12 - abs(float(left - repaired)))


@dataclass(frozen=True)
class Erratum:
    """One row."""

    key: str
    where: str
    printed: str
    wrong: str
    repaired: str
    effect: str
    show: Callable[[], Shown]


def row(
    key: str, where: str, *, printed: str, wrong: str, repaired: str, effect: str = "none"
) -> Callable[[Callable[[], Shown]], Erratum]:
    """Make an erratum of its counter-example."""

    def make(show: Callable[[], Shown]) -> Erratum:
        return Erratum(key, where, printed, wrong, repaired, effect, show)

    return make


def errata() -> list[Erratum]:
    """Every row, in the paper's order."""
    from acmo.theory import errata_method, errata_proof, errata_theorem  # they import this module

    modules = (errata_method, errata_theorem, errata_proof)
    return [x for module in modules for x in vars(module).values() if isinstance(x, Erratum)]


def markdown() -> str:
    """The errata table of docs/theory.md."""
    head = "| key | where | printed | why it is wrong | repaired | effect on C_0, C_1 |\n|---|---|---|---|---|---|\n"
    rows = ((f"`{x.key}`", x.where, x.printed, x.wrong, x.repaired, x.effect) for x in errata())
    return head + "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n" for row in rows)
