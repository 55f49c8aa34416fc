"""The angles between g, m_{t−1} and m_t, which follow from the norms that a step computes anyway."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from acmo.scopes import ROW_SCOPES, resolve_kind
from acmo.state_tensors import moment_dtype
from acmo.step_data import (
    MOMENT_SQ_AFTER,
    MOMENT_SQ_BEFORE,
    NORM_ROWS,
    RAW_GRAD_SQ,
    RowNorms,
    StepRecord,
    TensorNorms,
    read_rows,
    scalar_dtype,
)

KEPT_RECORDS = 4  # of other sets of parameters


class StepLog:
    """What is kept of the steps. An object of its own: torch.compile drops what a step sets on its optimizer."""

    def __init__(self) -> None:
        self.record: StepRecord | None = None
        self.completed: StepRecord | None = None  # sharded: the last record whose ‖m_t‖² is known
        self.skipped: Tensor | int | None = None  # since the count in the param groups was last brought up to date
        self.applied = 0  # steps taken, as far as that is known at once
        self.applied_on_device: Tensor | int | None = None  # and those that only the device knows of
        self.counts: Tensor | None = None  # a kernel's own, of steps taken and skipped, not yet added to those above
        self.earlier: deque[StepRecord] = deque(maxlen=KEPT_RECORDS)

    def open(self, groups: Sequence[dict[str, Any]]) -> None:
        """Enter an empty record of the form that steps will have: then torch.compile needs one graph for all steps."""
        places: list[tuple[int, tuple[int, ...]]] = []
        for k, group in enumerate(groups):
            kinds: dict[Any, list[int]] = {}
            for i, p in enumerate(group["params"]):
                if p.grad is not None:
                    scope = resolve_kind(group, p)
                    kinds.setdefault((p.device, p.dtype, moment_dtype(p, group), scope), []).append(i)
            places += [(k, tuple(indices)) for indices in kinds.values()]
        if not places:
            return
        first = groups[places[0][0]]["params"][places[0][1][0]]
        device, dtype = first.device, scalar_dtype(first.device)
        n = sum(len(indices) for _, indices in places)
        norms, ones = torch.zeros(NORM_ROWS, n, dtype=dtype, device=device), torch.ones(1, dtype=dtype, device=device)
        false = torch.zeros((), dtype=torch.bool, device=device)
        rows, row_places = None, [(k, i) for k, indices in places for i in indices]
        if any(g["norm_scope"] in ROW_SCOPES or g["unit_step"] == "spectral" for g in groups):
            rows = RowNorms(*torch.zeros(len(RowNorms._fields), n, dtype=dtype, device=device).unbind())
        self.record = StepRecord(norms, ones, false, (), tuple(places), rows=rows, row_places=tuple(row_places))
        self.skipped = torch.zeros((), dtype=torch.int32, device=device)
        self.applied_on_device = torch.zeros((), dtype=torch.int32, device=device)

    def enter(self, record: StepRecord) -> None:
        """Enter a step, without waiting for it."""
        if record.kernel_log is not None:  # the kernel has counted the step and selected the norms: nothing to launch
            if self.record is not None and not has_same_places(self.record, record):
                self.earlier.appendleft(self.record)
            self.counts, self.completed = record.kernel_log.counts, None
            self.record = record._replace(applied=record.kernel_log.ever_taken)
            return
        applied = record.applied
        if record.rows_skipped:  # rows are skipped by themselves, though the step is taken
            self.skipped = 1 if self.skipped is None else self.skipped + 1
        elif record.rows is not None and applied is not False:
            any_skipped = record.rows.skipped.sum() > 0
            any_skipped = any_skipped if applied is True else any_skipped & applied
            self.skipped = any_skipped.int() if self.skipped is None else self.skipped + any_skipped
        if applied is True:
            self.applied += 1
        # A step that only makes state (gradients and lr 0) is not taken, but nothing was skipped either.
        elif isinstance(applied, Tensor):
            raw = sum_raw(record)
            self.skipped = (0 if self.skipped is None else self.skipped) + (~applied & (raw != 0)).int()
            taken = applied.int()
            self.applied_on_device = taken if self.applied_on_device is None else self.applied_on_device + taken
        else:
            self.skipped = (0 if self.skipped is None else self.skipped) + int(float(sum_raw(record)) != 0)
            return
        if self.record is not None and has_same_places(self.record, record):
            self.completed = complete(self.record, record) if record.late else None
            self.record = select(record, self.record, applied) if isinstance(applied, Tensor) else record
        else:
            self.completed = None
            if self.record is not None:
                self.earlier.appendleft(self.record)
            self.record = record

    def collect_counts(self) -> None:
        """Add what a kernel has counted, without waiting for it."""
        if self.counts is None:
            return
        taken, skipped = self.counts.clone().unbind()
        self.counts.zero_()
        self.skipped = (0 if self.skipped is None else self.skipped) + skipped
        self.applied_on_device = taken if self.applied_on_device is None else self.applied_on_device + taken

    def count_steps(self) -> int:
        """Return how many steps were taken since the state was made or loaded."""
        self.collect_counts()
        return self.applied + int(self.applied_on_device or 0)

    def find_last(self) -> StepRecord | None:
        """Return the record of the last step that was taken."""
        records = [*self.earlier] if self.record is None else [self.record, *self.earlier]
        return next((record for record in records if bool(record.applied)), None)


def sum_raw(record: StepRecord) -> Tensor:
    """Return ‖g‖² of line 1 over all parameters."""
    return (record.norms if record.all_ranks is None else record.all_ranks)[RAW_GRAD_SQ].sum()


def has_same_places(one: StepRecord, other: StepRecord) -> bool:
    """Return whether two records are about the same parameters here, and the same groups on all ranks."""
    if one.places != other.places or one.norms.device != other.norms.device:
        return False
    return one.all_ranks is None or other.all_ranks is None or one.all_ranks.shape == other.all_ranks.shape


def select(record: StepRecord, last: StepRecord, applied: Tensor) -> StepRecord:
    """Return the record, or the last one where this step was not taken: a select, no waiting."""
    norms = torch.where(applied, record.norms, last.norms[:NORM_ROWS])
    clip_scale = torch.where(applied, record.clip_scale, last.clip_scale)
    all_ranks, active_sets = record.all_ranks, record.active_sets
    if all_ranks is not None and last.all_ranks is not None:
        all_ranks = torch.where(applied, all_ranks, last.all_ranks)
    if active_sets is not None and last.active_sets is not None:
        active_sets = torch.where(applied, active_sets, last.active_sets)
    taken = applied | last.applied
    return record._replace(
        norms=norms, clip_scale=clip_scale, applied=taken, moment_sqs=(), all_ranks=all_ranks, active_sets=active_sets
    )


def complete(last: StepRecord, record: StepRecord) -> StepRecord:
    """Return the last record with what this step's message brought: ‖m_{t−1}‖² over all ranks."""

    def with_moments(old: Tensor, new: Tensor) -> Tensor:
        rows = list(old[:NORM_ROWS].unbind())
        rows[MOMENT_SQ_AFTER] = new[MOMENT_SQ_BEFORE]
        return torch.stack(rows)

    all_ranks = None
    if last.all_ranks is not None and record.all_ranks is not None:
        assert last.active_sets is not None
        assert record.active_sets is not None
        same = torch.eq(last.active_sets, record.active_sets).all()  # else this message is about other parameters
        all_ranks = torch.where(same, with_moments(last.all_ranks, record.all_ranks), torch.nan)
    return last._replace(norms=with_moments(last.norms, record.norms), all_ranks=all_ranks)


LATE_KEYS = ("moment_norm", "cos_grad_moment", "cos_update_grad", "cos_update_moment")


def telemetry(log: StepLog, norm_scope: str, skipped_steps: int) -> dict[str, Any]:
    """Return norms and angles of the last step that was taken, as floats; ``{}`` before the first.

    Where a record is late, what depends on ‖m_t‖ is that of the step before, NaN where there was none.
    """
    record = log.find_last()
    if record is None:
        return {}
    whole, scopes = report(record, norm_scope)
    if record.late:
        known = log.completed is not None and bool(log.completed.applied)
        old_whole, old_scopes = (
            report(log.completed, norm_scope) if known and log.completed else ({}, [{}] * len(scopes))
        )
        for now, then in zip([whole, *scopes], [old_whole, *old_scopes], strict=True):
            now.update({key: then.get(key, math.nan) for key in LATE_KEYS})
    rows = read_rows(record)
    if rows is not None:
        whole = whole_of_rows(rows)
        whole["tensors"] = report_rows(rows, record.row_places)
    whole |= {"clip_scale": float(record.clip_scale), "skipped_steps": skipped_steps}
    return {**whole, "scopes": scopes} if norm_scope in ("group", "tensor") else whole


def report(record: StepRecord, norm_scope: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return norms and angles of the whole vector, and of each scope."""
    places = [(group, i) for group, indices in record.places for i in indices]
    tensors = read_columns(record.norms)
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


def whole_of_rows(rows: RowNorms) -> dict[str, Any]:
    """Return the norms over all rows that took part; the angles are those of `report_rows`."""
    return {
        "grad_norm": math.sqrt(float(rows.raw_grad_sq.sum())),
        "moment_norm": math.sqrt(float(rows.new_moment_sq.sum())),
        "cos_update_grad": divide(float(rows.cos_sum.sum()), float(rows.took_part.sum())),
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
                "cos_min": max(-1.0, min(1.0, own["cos_min"])) if own["took_part"] else math.nan,
                "cos_mean": divide(own["cos_sum"], own["took_part"]),
                "turned_share": divide(own["turned"], own["took_part"]),
            }
        )
    return report


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
    return value if math.isnan(value) else max(-1.0, min(1.0, value))


def divide(a: float, b: float) -> float:
    """Return a / b, NaN for b = 0."""
    return a / b if b else math.nan
