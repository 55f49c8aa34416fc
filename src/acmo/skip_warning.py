"""The warning about the first step that is skipped, and how to find the cause."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from acmo.step_data import RAW_GRAD_SQ, NonFiniteGradient, StepRecord, read_rows

ADVICE = (
    "To find the cause, use nonfinite='raise', which names the parameter, and torch.autograd.set_detect_anomaly(True), "
    "which names the operation. Later skipped steps are only counted, in skipped_steps."
)


class SkippedStep(UserWarning):
    """A gradient was not finite, so a step, or by row a part of it, was skipped."""


def warn_of_skip(groups: Sequence[dict[str, Any]], record: StepRecord | None = None, stacklevel: int = 2) -> None:
    """Warn that a step was skipped.

    Args:
      groups: the optimizer's param groups.
      record: what the step computed, for the name of the parameter; None where only the count is known.
      stacklevel: as `warnings.warn` has it.
    """
    by_row = record is not None and read_rows(record) is not None
    place = None if record is None else find_nonfinite(record)
    reason = "a gradient is not finite"
    if place is not None:
        reason = str(NonFiniteGradient(place).name_parameter(groups)).partition(";")[0]
    what = "rows were skipped" if by_row else "a step was skipped"
    warnings.warn(f"{what}: {reason}. {ADVICE}", SkippedStep, stacklevel + 1)


def find_nonfinite(record: StepRecord) -> tuple[int, int] | None:
    """Return (group, position) of the first parameter whose gradient is not finite; None if it is another rank's."""
    rows = read_rows(record)
    if rows is not None:
        places, bad = list(record.row_places), (rows.skipped > 0).tolist()
    else:
        places = [(group, i) for group, indices in record.places for i in indices]
        bad = (~torch.isfinite(record.norms[RAW_GRAD_SQ])).tolist()
    return min((place for place, is_bad in zip(places, bad, strict=False) if is_bad), default=None)
