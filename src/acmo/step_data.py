"""What crosses between the optimizer and a backend in one step: typed objects with named fields, and no behaviour."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from acmo.psi import Psi

Shards = tuple[
    Any, ...
]  # the process groups over which a tensor is sharded, one per mesh dimension; () for a whole one


class Layout:
    """What a group's tensors are like, apart from where they lie: known of one step, it holds while others match."""

    __slots__ = ("are_plain", "matches", "row_call")

    def __init__(self, matches: Callable[..., bool]) -> None:
        self.matches = matches  # (*tensors) → whether they have the same types, dtypes, devices, shapes and strides
        self.are_plain: dict[int, bool] = {}  # of the part with this first index: `tensor_layout.are_plain`
        self.row_call: Any = None  # `row_step.RowCall` of the last step whose first part had this layout


class Part(NamedTuple):
    """The tensors of one parameter group that take part in a step and agree in device, dtypes and sharding."""

    group: int
    indices: Sequence[int]  # position of each parameter in its group
    owners: list[Tensor]  # the parameters as the user gave them
    params: list[Tensor]  # local, real views of the owners; likewise grads and moments
    grads: list[Tensor]
    moments: list[Tensor]
    steps: list[Tensor]  # t of each parameter, 0-dim float32
    beta_hats: list[Tensor]  # what Ψ compares with, of shape (1,), by row one per row; empty for the identity
    moment_sqs: Tensor | Sequence[float] | None = None  # ‖m‖² of each moment as the last step left it; None: unknown
    shards: Shards = ()  # by row: those of the mesh dimensions that cut rows
    all_shards: Shards = ()  # by row: those of every mesh dimension that shards the parameter
    scope: str = "global"  # "global", "group", "tensor", or by row "row", "column", "whole", "spectral"
    moment_scales: Sequence[Tensor] = ()  # of int8 moments: float32, one per row of dimension 0
    layout: Layout | None = None  # the same object for as long as the group's tensors agree in all but their memory


class GroupOptions(NamedTuple):
    """A parameter group's own numbers in one step."""

    lr: float | Tensor
    momentum: float
    delta: float
    coupled_decay: float  # λ of line 3; 0 where decay is decoupled
    decoupled: bool
    theta_factor: float | Tensor  # 1 − αλ of line 7; 1 where decay is coupled
    maximize: bool
    idle_steps: list[Tensor]  # t and β̂ of the parameters that have state, but no gradient in this step
    idle_beta_hats: list[Tensor]
    first_number: int | None = None  # of its first parameter, for stochastic rounding; None rounds to nearest


class StepOptions(NamedTuple):
    """What holds for the whole optimizer in one step."""

    norm_scope: str
    psi: str | Psi
    unit_step: bool
    ns_steps: int  # iterations of Newton–Schulz, where a part is spectral
    ns_dtype: torch.dtype | None  # of its products; None: as the device has it
    max_grad_norm: float | None
    nonfinite: str
    grad_scale: Tensor | None  # a GradScaler's, 0-dim; likewise found_inf
    found_inf: Tensor | None
    process_group: Any  # the ranks that hold the other tensors of θ, if any do
    sum_over_shards: "SumOverShards | None"  # None: no parameter is sharded


class PartSums(NamedTuple):
    """What pass 1 sums over each tensor, ``[n]`` per field: 3 more with coupled decay, 2 more for unit steps."""

    raw_grad_sq: Tensor  # ‖g‖² of line 1
    moment_sq: Tensor  # ‖m‖²
    decayed_sq: Tensor | None = None  # ‖g + λθ‖²
    grad_theta: Tensor | None = None  # ⟨g, θ⟩
    theta_sq: Tensor | None = None  # ‖θ‖²
    grad_moment: Tensor | None = None  # ⟨g, m⟩, with g of line 3; for unit steps, and so is the number of entries
    entries: Tensor | None = None


class Newest(NamedTuple):
    """The largest step of a parameter group, and unless Ψ is the identity the β̂ that belongs to it."""

    step: Tensor
    beta_hat: Tensor | None


class ShardedSums(NamedTuple):
    """Sums over all ranks that hold a piece, and what those ranks report."""

    sums: list[Tensor]
    nonfinite_ranks: Tensor  # how many ranks have a gradient that is not finite
    overflow_ranks: Tensor  # how many ranks have a GradScaler that found an overflow


# (sums [k, n] of each part, ‖g‖² first; parts; found_inf) → the same over all ranks
SumOverShards = Callable[[Sequence[Tensor], Sequence[Part], Tensor | None], ShardedSums]


class RowNorms(NamedTuple):
    """What a step by row reports, ``[n]`` per field: sums over the rows of each tensor that took part."""

    raw_grad_sq: Tensor  # Σ ‖g‖² of lines 1 and 2
    grad_sq: Tensor  # Σ ‖g‖² of line 4
    moment_sq: Tensor  # Σ ‖m_{t−1}‖²
    new_moment_sq: Tensor  # Σ ‖m_t‖²
    rows: Tensor  # how many there are on this rank
    took_part: Tensor  # how many have a gradient, and a finite one
    skipped: Tensor  # how many have a gradient that is not finite
    cos_min: Tensor  # of the cosine between step and gradient; inf where no row took part
    cos_sum: Tensor
    turned: Tensor  # rows with ⟨g, m_{t−1}⟩ < 0


class KernelLog(NamedTuple):
    """What a kernel keeps of its steps on the device; its norms are then those of the last step that was taken."""

    counts: Tensor  # int32: how many steps were taken and how many skipped, since they were last read
    ever_taken: Tensor  # whether a step of this set of tensors was


class StepRecord(NamedTuple):
    """What a step computed: the next step starts from it, and `telemetry` reports it."""

    norms: Tensor  # [5 or more, n]: the fields of `TensorNorms`, one column per tensor
    clip_scale: Tensor | float
    applied: Tensor | bool  # whether the step was taken; a bool where that is known already
    moment_sqs: Tensor | Sequence[float]  # ‖m_t‖² of each moment on this rank: the next step starts from it
    places: tuple[tuple[int, tuple[int, ...]], ...]  # per part: its group, and its tensors' positions there
    all_ranks: Tensor | None = None  # with a process group: the norms over all ranks, one column per parameter group
    active_sets: Tensor | None = None  # and per rank a number for the set of parameters that took part
    rows: RowNorms | None = None  # by row: of the tensors of `row_places`
    row_places: tuple[tuple[int, int], ...] = ()  # (group, position) of each
    kernel_log: KernelLog | None = None
    late: bool = False  # sharded: ‖m_t‖² over all ranks arrives with the next step's message
    rows_skipped: int | None = None  # by `acmo.backends.row_step`, whose `norms` hold the rows' report: see `read_rows`


class TensorNorms(NamedTuple):
    """The rows of `StepRecord.norms`, of one tensor or of a sum over tensors."""

    raw_grad_sq: float  # ‖g‖² of line 1
    grad_sq: float  # ‖g‖² of line 4
    moment_sq_before: float  # ‖m_{t−1}‖²
    moment_sq_after: float  # ‖m_t‖², as stored on this rank
    beta_hat: float  # as applied


NORM_ROWS = len(TensorNorms._fields)
RAW_GRAD_SQ, GRAD_SQ, MOMENT_SQ_BEFORE, MOMENT_SQ_AFTER, BETA_HAT = range(NORM_ROWS)


class StepFunction(Protocol):
    """A way to execute a step: lines 1 to 8 in place, except for the projection, which `acmo.optimizer` applies."""

    def __call__(
        self, parts: Sequence[Part], groups: Sequence[GroupOptions], options: StepOptions, /
    ) -> StepRecord: ...


class NonFiniteGradient(FloatingPointError):
    """A gradient that is not finite, under ``nonfinite="raise"``; ``place`` is (group, position) or None."""

    def __init__(self, place: tuple[int, int] | None) -> None:
        super().__init__("the norm of the gradients is not finite; nothing was changed")
        self.place = place

    def name_parameter(self, groups: Sequence[dict[str, Any]]) -> "NonFiniteGradient":
        """Put the parameter's name into the message, or its number where it has none."""
        if self.place is not None:
            group, i = self.place
            names = groups[group].get("param_names")
            number = sum(len(g["params"]) for g in groups[:group]) + i
            who = f"parameter {names[i]!r}" if names else f"parameter {number} (group {group}, position {i})"
            self.args = (f"the gradient of {who} is not finite; nothing was changed",)
        return self


def read_rows(record: StepRecord) -> RowNorms | None:
    """Return what a step by row reports, None at other scopes. To make these views is a good part of a small step."""
    return record.rows if record.rows_skipped is None else read_row_table(record.norms)


def read_row_table(table: Tensor) -> RowNorms:
    """Return what acmo_rows wrote, without its row of NaN, which stands for β̂ in `StepRecord.norms`."""
    rows = table.unbind()
    return RowNorms(*rows[:BETA_HAT], *rows[BETA_HAT + 1 :])


def scalar_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of sums and β̂: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def view_as_real(tensors: list[Tensor]) -> list[Tensor]:
    """Return complex tensors as pairs of reals, others as they are."""
    return [torch.view_as_real(x.resolve_conj()) for x in tensors] if tensors[0].is_complex() else tensors


def select(record: StepRecord, last: StepRecord, applied: Tensor) -> StepRecord:
    """Return the record, or the last one where this step was not taken: a select, no waiting."""
    norms = torch.where(applied, record.norms, last.norms[:NORM_ROWS])
    clip_scale = record.clip_scale
    if isinstance(clip_scale, Tensor):
        clip_scale = torch.where(applied, clip_scale, last.clip_scale)
    all_ranks, active_sets = record.all_ranks, record.active_sets
    if all_ranks is not None and last.all_ranks is not None:
        all_ranks = torch.where(applied, all_ranks, last.all_ranks)
    if active_sets is not None and last.active_sets is not None:
        active_sets = torch.where(applied, active_sets, last.active_sets)
    taken = applied | last.applied
    rows = record.rows
    if rows is not None and (last_rows := read_rows(last)) is not None:
        rows = RowNorms(*torch.where(applied, torch.stack(rows), torch.stack(last_rows)).unbind())
    same = (
        rows,
        record.row_places,
        record.kernel_log,
        record.late,
        record.rows_skipped,
    )  # torch 2.6: no _replace
    return StepRecord(norms, clip_scale, taken, (), record.places, all_ranks, active_sets, *same)


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
