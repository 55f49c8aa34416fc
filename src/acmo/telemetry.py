"""The angles between g, m_{t−1} and m_t, which follow from the norms that a step computes anyway."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from acmo.step_data import (
    NORM_ROWS,
    RowNorms,
    StepRecord,
    TensorNorms,
    read_rows,
)
from acmo.step_memory import StepLog

LATE_KEYS = ("moment_norm", "cos_grad_moment", "cos_update_grad", "cos_update_moment")


def telemetry(log: StepLog, norm_scope: str, skipped_steps: int) -> dict[str, Any]:
    """Return norms and angles of the last step that was taken, as floats; ``{}`` before the first.

    Where a record is late, what depends on ‖m_t‖ is that of the step before, NaN where there was none.
    """
    record = log.find_last()
    if record is None:
        return {}
    total, scopes = report(record, norm_scope)
    if record.late:
        known = log.completed is not None and bool(log.completed.applied)
        old_total, old_scopes = (
            report(log.completed, norm_scope) if known and log.completed else ({}, [{}] * len(scopes))
        )
        for now, then in zip([total, *scopes], [old_total, *old_scopes], strict=True):
            now.update({key: then.get(key, math.nan) for key in LATE_KEYS})
    rows = read_rows(record)
    if rows is not None:
        total = report_all_rows(rows)
        total["tensors"] = report_rows(rows, record.row_places)
    total |= {"clip_scale": float(record.clip_scale), "skipped_steps": skipped_steps}
    return {**total, "scopes": scopes} if norm_scope in ("group", "tensor") else total


def report(record: StepRecord, norm_scope: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return norms and angles of the whole vector, and of each scope."""
    places = [(group, i) for group, indices in record.places for i in indices]
    tensors = read_columns(record.norms)
    if read_rows(record) is not None:
        tensors = [column._replace(beta_hat=math.nan) for column in tensors]
    columns, groups = tensors, [group for group, _ in places]
    if record.all_ranks is not None:
        columns = read_columns(record.all_ranks)
        groups = list(range(len(columns)))
    scopes: list[dict[str, Any]] = []
    if norm_scope == "group":
        for k in sorted(set(groups)):
            scopes.append({"group": k, **compute_angles([c for c, g in zip(columns, groups, strict=True) if g == k])})
    elif norm_scope == "tensor":
        for (group, i), column in sorted(zip(places, tensors, strict=True), key=lambda pair: pair[0]):
            scopes.append({"group": group, "index": i, **compute_angles([column])})
    return compute_angles(columns), scopes


def report_all_rows(rows: RowNorms) -> dict[str, Any]:
    """Return the norms over all rows that took part; the angles are those of `report_rows`."""
    return {
        "grad_norm": math.sqrt(float(rows.raw_grad_sq.sum())),
        "moment_norm": math.sqrt(float(rows.new_moment_sq.sum())),
        "cos_update_grad": limit_cosine(divide(float(rows.cos_sum.sum()), float(rows.took_part.sum()))),
    }


def report_rows(rows: RowNorms, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return per parameter the least and the mean cosine between step and gradient, and the share of turned rows."""
    report = []
    columns = zip(*(field.tolist() for field in rows), strict=True)
    for (group, i), column in sorted(zip(places, columns, strict=True), key=lambda pair: pair[0]):
        own = dict(zip(RowNorms._fields, column, strict=True))
        report.append(
            {
                "group": group,
                "index": i,
                "cos_min": limit_cosine(own["cos_min"]) if own["took_part"] else math.nan,
                "cos_mean": limit_cosine(divide(own["cos_sum"], own["took_part"])),
                "turned_share": divide(own["turned"], own["took_part"]),
            }
        )
    return report


def limit_cosine(x: float) -> float:
    """Return a cosine within [−1, 1], which rounding may leave; NaN stays."""
    return x if math.isnan(x) else max(-1.0, min(1.0, x))


def measure_rows(
    raw: Tensor, g: Tensor, before: Tensor, m: Tensor, u: Tensor, dims: tuple[int, ...], moves: Tensor, finite: Tensor
) -> Tensor:
    """Return the fields of `RowNorms` for one tensor, from the vectors of its step."""
    raw, g, before, m, u = (x.detach().double() for x in (raw, g, before, m, u))

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum(dims, keepdim=True)

    lengths = inner(g, g).sqrt() * inner(u, u).sqrt()
    cos = torch.where(lengths == 0, 0.0, inner(g, u) / torch.where(lengths == 0, 1.0, lengths))
    squares = [torch.where(moves, inner(x, x), 0.0).sum() for x in (raw, g, before, m)]
    lowest = torch.where(moves, cos, torch.inf)
    cos_min = lowest.min() if lowest.numel() else torch.full_like(squares[0], torch.inf)
    counts = [torch.full_like(cos_min, moves.numel()), moves.sum(), (~finite).sum()]
    turned = (moves & (inner(g, before) < 0)).sum()
    return torch.stack([*squares, *counts, cos_min, torch.where(moves, cos, 0.0).sum(), turned])


def read_columns(norms: Tensor) -> list[TensorNorms]:
    """Return one `TensorNorms` per column."""
    return [TensorNorms(*column) for column in zip(*norms[:NORM_ROWS].tolist(), strict=True)]


def compute_angles(columns: Sequence[TensorNorms]) -> dict[str, float]:
    """Return norms and angles of the vector that these tensors make up.

    From ‖m_t‖² = ‖g‖² + 2β̂⟨g, m⟩ + β̂²‖m‖² follows ⟨g, m⟩, tensor by tensor, since each has one β̂; the rest is sums.
    """
    raw, grad = sum(x.raw_grad_sq for x in columns), sum(x.grad_sq for x in columns)
    before, after = sum(x.moment_sq_before for x in columns), sum(x.moment_sq_after for x in columns)
    grad_moment, update_grad, update_moment = 0.0, 0.0, 0.0
    for x in columns:
        b, inner = x.beta_hat, 0.0
        if b:
            inner = (x.moment_sq_after - x.grad_sq - b * b * x.moment_sq_before) / (2 * b)
        elif x.moment_sq_before and x.grad_sq:
            inner = math.nan
        grad_moment += inner
        update_grad += x.grad_sq + b * inner if b else x.grad_sq
        update_moment += inner + b * x.moment_sq_before
    beta_hats = {x.beta_hat for x in columns}
    kept_sq = sum(x.beta_hat**2 * x.moment_sq_before for x in columns)
    return {
        "grad_norm": math.sqrt(raw),
        "moment_norm": math.sqrt(after),
        "beta_hat": beta_hats.pop() if len(beta_hats) == 1 else math.sqrt(divide(kept_sq, before)),
        "cos_grad_moment": cosine(grad_moment, grad, before),
        "cos_update_grad": cosine(update_grad, after, grad),
        "cos_update_moment": cosine(update_moment, after, before),
    }


def cosine(inner: float, a_sq: float, b_sq: float) -> float:
    """Return ⟨a, b⟩ / (‖a‖ ‖b‖), NaN where a vector is 0; rounding must not take it out of [−1, 1]."""
    value = divide(inner, math.sqrt(a_sq) * math.sqrt(b_sq))
    return limit_cosine(value)


def divide(a: float, b: float) -> float:
    """Return a / b, NaN for b = 0."""
    return a / b if b else math.nan
