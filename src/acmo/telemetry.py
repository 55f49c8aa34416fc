"""The free angles: what a step's norms tell about g, m_{t−1} and m_t, at no further cost."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from acmo.parts import Record, scalar_dtype


class Ledger:
    """What is kept of the steps taken. An object of its own: torch.compile drops what a step sets on its optimizer."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.before: Record | None = None  # sharded: the last record whose ‖m_t‖² is known
        self.skipped: Tensor | int | None = None  # since the count in the param groups was last brought up to date
        self.counted = 0  # steps taken, as far as that is known at once
        self.taken: Tensor | int | None = None  # and those that only the device knows of
        self.earlier: deque[Record] = deque(maxlen=4)  # of other sets of parameters
        self._places: list[tuple[int, tuple[int, ...]]] = []

    def open(self, group: int, places: Sequence[Sequence[int]], device: torch.device, *, last: bool) -> None:
        """Before the first step, group by group: an empty record of the form that steps will have.

        Then the first step finds what all others find, and torch.compile makes one graph for all.
        """
        self._places = (
            [(group, tuple(part)) for part in places]
            if group == 0
            else [*self._places, *((group, tuple(part)) for part in places)]
        )
        if last and self._places:
            dtype, n = scalar_dtype(device), sum(len(part) for _, part in self._places)
            rows = torch.zeros(5, n, dtype=dtype, device=device)
            false = torch.zeros((), dtype=torch.bool, device=device)
            self.record = Record(rows, torch.ones(1, dtype=dtype, device=device), false, tuple(self._places))
            self.skipped = torch.zeros((), dtype=torch.int32, device=device)
            self.taken = torch.zeros((), dtype=torch.int32, device=device)

    def enter(self, record: Record) -> None:
        """Note a step, without waiting for it."""
        # A step that only makes state (gradients and lr 0) is not taken either, but nothing was skipped.
        if not isinstance(record.applied, bool):
            skipped = (~record.applied & (record.raw().sum() != 0)).int()
            self.skipped = (0 if self.skipped is None else self.skipped) + skipped
            self.taken = (0 if self.taken is None else self.taken) + record.applied.int()
        elif not record.applied and float(record.raw().sum()) != 0:
            self.skipped = (0 if self.skipped is None else self.skipped) + 1
        if record.applied is False:  # known already: nothing to remember
            return
        if record.applied is True:
            self.counted += 1
        if self.record is not None and self.record.alike(record):
            self.before = completed(self.record, record) if record.late else None
            self.record = record.after(self.record)
        else:
            self.before = None
            if self.record is not None:
                self.earlier.appendleft(self.record)
            self.record = record

    def count(self) -> int:
        """How many steps were taken since the state was made or loaded."""
        return self.counted + int(self.taken or 0)

    def last(self) -> Record | None:
        """The record of the last step that was taken."""
        records = [*self.earlier] if self.record is None else [self.record, *self.earlier]
        return next((record for record in records if bool(record.applied)), None)


def completed(last: Record, record: Record) -> Record:
    """The last record with what this step's message brought of it: ‖m_{t−1}‖² is that of all ranks."""

    def complete(old: Tensor, new: Tensor) -> Tensor:
        return torch.cat((old[:3], new[2:3], old[4:5]))

    whole = None
    if last.whole is not None and record.whole is not None and last.active is not None and record.active is not None:
        same = torch.eq(last.active, record.active).all()  # else this message is about other parameters
        whole = torch.where(same, complete(last.whole, record.whole), torch.nan)
    return last._replace(rows=complete(last.rows, record.rows), whole=whole)


LATE = ("moment_norm", "cos_grad_moment", "cos_update_grad", "cos_update_moment")


def telemetry(record: Record, norm_scope: str, skipped_steps: int, before: Record | None = None) -> dict[str, Any]:
    """Floats of the last applied step; waits for the device if it must.

    Of a record that is late, what depends on ‖m_t‖ is that of the step ``before``, NaN where there was none.
    """
    result = figures(record, norm_scope)
    if record.late:
        older = None if before is None or not bool(before.applied) else figures(before, norm_scope)
        for now, then in zip(entries(result), entries(older) if older else [{}] * len(entries(result)), strict=True):
            now.update({key: then.get(key, math.nan) for key in LATE})
    scopes = result.pop("scopes", None)
    result |= {"clip_scale": float(record.clip_scale), "skipped_steps": skipped_steps}
    return result if scopes is None else {**result, "scopes": scopes}


def entries(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [result, *result.get("scopes", ())]


def figures(record: Record, norm_scope: str) -> dict[str, Any]:
    """Norms and angles of the whole vector, and of each scope."""
    places = [(group, i) for group, indices in record.places for i in indices]
    columns = list(zip(*record.rows[:5].tolist(), (group for group, _ in places), strict=True))
    everything = columns
    if record.whole is not None:
        everything = list(zip(*record.whole.tolist(), range(record.whole.shape[1]), strict=True))
    result: dict[str, Any] = numbers(everything)
    if norm_scope == "group":
        keys = sorted({c[-1] for c in everything})
        result["scopes"] = [{"group": k, **numbers([c for c in everything if c[-1] == k])} for k in keys]
    elif norm_scope == "tensor":
        order = sorted(range(len(places)), key=places.__getitem__)
        result["scopes"] = [{"group": places[j][0], "index": places[j][1], **numbers([columns[j]])} for j in order]
    return result


def numbers(columns: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """Norms and angles of the vector that these tensors make up.

    From ‖m_t‖² = ‖g‖² + 2β̂⟨g, m⟩ + β̂²‖m‖² follows ⟨g, m⟩, tensor by tensor, since each has one β̂; the rest is sums.
    """
    raw, g, m, new = (sum(c[row] for c in columns) for row in range(4))
    g_m, new_g, new_m = 0.0, 0.0, 0.0
    for _, gg, mm, nn, b, _ in columns:
        inner = (nn - gg - b * b * mm) / (2 * b) if b else math.nan if mm and gg else 0.0
        g_m += inner
        new_g += gg + b * inner if b else gg
        new_m += inner + b * mm
    beta_hats = {c[4] for c in columns}
    return {
        "grad_norm": math.sqrt(raw),
        "moment_norm": math.sqrt(new),
        "beta_hat": beta_hats.pop()
        if len(beta_hats) == 1
        else math.sqrt(ratio(sum(c[4] ** 2 * c[2] for c in columns), m)),
        "cos_grad_moment": cosine(g_m, g, m),
        "cos_update_grad": cosine(new_g, new, g),
        "cos_update_moment": cosine(new_m, new, m),
    }


def cosine(inner: float, a_sq: float, b_sq: float) -> float:
    """⟨a, b⟩ / (‖a‖ ‖b‖), NaN where a vector is 0; rounding must not take it out of [−1, 1]."""
    value = ratio(inner, math.sqrt(a_sq) * math.sqrt(b_sq))
    return value if math.isnan(value) else max(-1.0, min(1.0, value))


def ratio(a: float, b: float) -> float:
    return a / b if b else math.nan
