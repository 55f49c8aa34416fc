"""How the learning rate changes: a factor on the optimizer's own, as a pure function of the step.

Nothing is remembered from step to step, so there is nothing that a resumed run could have lost.
"""

import math
import re
from dataclasses import dataclass
from functools import cache

from acmo.lab.errors import LabError
from acmo.lab.objects import nearest

_FORMS = {
    "constant": "constant",
    "steps": "steps:50:0.1",
    "cosine": "cosine",
    "linear": "linear",
    "warmup": "warmup:5+cosine",
}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(it)?")


@dataclass(frozen=True)
class Schedule:
    """Describe a learning-rate schedule, written as text.

    - ``constant``
    - ``steps:50:0.1``: times 0.1 every 50 epochs, as in the paper
    - ``cosine``, ``linear``: down to 0 at the end of the training
    - ``warmup:5+cosine``: up from 0 for 5 epochs, then any of the others

    Spans are in epochs, or in iterations with ``it``: ``warmup:500it+constant``.

    Example:
      >>> Schedule("steps:50:0.1").factor(step=120, steps=200, steps_per_epoch=1)
      0.01
    """

    text: str = "constant"

    def __post_init__(self) -> None:
        self._parts()

    def factor(self, step: int, steps: int, steps_per_epoch: float) -> float:
        """Return the factor of the learning rate in the step after ``step`` steps, of ``steps`` in all."""
        warmup, name, arguments = self._parts()
        first = _iterations(warmup, steps_per_epoch)
        if step < first:
            return (step + 1) / (first + 1)
        step, steps = step - math.ceil(first), max(1, steps - math.ceil(first))
        if name == "steps":
            return float(f"{float(arguments[1]) ** (step // _iterations(arguments[0], steps_per_epoch)):.12g}")
        if name == "cosine":
            return (1 + math.cos(math.pi * min(1.0, step / steps))) / 2
        if name == "linear":
            return max(0.0, 1 - step / steps)
        return 1.0

    @cache  # noqa: B019  asked at every step; there are few schedules
    def _parts(self) -> tuple[str, str, list[str]]:
        """Return the warm-up's span, the name of the rest, and its arguments; an error if the form is not known."""
        head, plus, rest = self.text.partition("+")
        warmup = "0"
        if head.startswith("warmup"):
            word, _, warmup = head.partition(":")
            if word != "warmup" or not _SPAN.fullmatch(warmup) or not plus:
                raise self._error(head)
        else:
            rest = self.text
        name, *arguments = rest.split(":")
        if name == "steps":
            arguments = [*arguments, "0.1"][:2] if len(arguments) == 1 else arguments
            if len(arguments) != 2 or not _SPAN.fullmatch(arguments[0]) or not _positive(arguments):
                raise self._error(rest)
        elif name not in ("constant", "cosine", "linear") or arguments:
            raise self._error(rest)
        return warmup, name, arguments

    def _error(self, part: str) -> LabError:
        hint = nearest(part.partition(":")[0], _FORMS)
        return LabError(f"the schedule {self.text!r} is not one of {', '.join(_FORMS.values())}{hint}")


def _positive(arguments: list[str]) -> bool:
    try:
        return float(arguments[0].removesuffix("it")) > 0 and 0 < float(arguments[1]) < math.inf
    except ValueError:
        return False


@cache  # asked at every step
def _iterations(span: str, steps_per_epoch: float) -> float:
    found = _SPAN.fullmatch(span)
    assert found is not None
    return float(found[1]) * (1 if found[2] else steps_per_epoch)
