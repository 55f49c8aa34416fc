"""What one step works on: the lists that the optimizer hands to a backend, and what a backend hands back."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

T = TypeVar("T")
dtype_of, device_of, shape_of = attrgetter("dtype"), attrgetter("device"), attrgetter("shape")
PLAIN = {Tensor, Parameter}
Shards = tuple[Any, ...]  # the process groups over which a tensor is cut, one a mesh dimension; () for a whole one


class Part(NamedTuple):
    """The tensors of one parameter group that take part in a step and are alike in device, dtypes and sharding."""

    group: int
    indices: Sequence[int]  # position of each parameter in its group
    params: list[Tensor]  # local, real views; so are grads and moments
    grads: list[Tensor]
    moments: list[Tensor]
    moment_sqs: list[Tensor]  # ‖m‖² of each moment as it is stored, of shape (1,); so is a beta_hat
    steps: list[Tensor]
    beta_hats: list[Tensor]  # for Ψ = sqrt; else empty
    shards: Shards = ()


class Group(NamedTuple):
    """A parameter group's own numbers in a step, and t and β̂ of those of its parameters that sit this step out."""

    lr: float | Tensor
    momentum: float
    delta: float
    weight_decay: float
    decoupled: bool
    maximize: bool
    idle_steps: list[Tensor]
    idle_beta_hats: list[Tensor]

    @property
    def coupled(self) -> float:
        """λ of line 3."""
        return 0.0 if self.decoupled else self.weight_decay

    @property
    def keep(self) -> float | Tensor:
        """1 − αλ of line 7."""
        return 1 - self.lr * self.weight_decay if self.decoupled else 1.0


def group_of(options: dict[str, Any], idle_steps: list[Tensor], idle_beta_hats: list[Tensor]) -> Group:
    """From a parameter group's options."""
    lr = options["lr"]
    return Group(
        lr.reshape(()) if isinstance(lr, Tensor) and lr.ndim else lr,
        options["momentum"],
        options["delta"],
        options["weight_decay"],
        options["decoupled_weight_decay"],
        options["maximize"],
        idle_steps,
        idle_beta_hats,
    )


class Rules(NamedTuple):
    """What holds for the whole optimizer in a step."""

    norm_scope: str
    psi: str
    max_grad_norm: float | None
    nonfinite: str
    grad_scale: Tensor | None  # a GradScaler's
    found_inf: Tensor | None
    process_group: Any = None  # the ranks that hold the other tensors of θ, if any do
    insist: bool = False  # on the kernel: an error where it cannot serve


class Record(NamedTuple):
    """What a step knew, kept for `telemetry`."""

    rows: Tensor  # [5 or more, n]: raw ‖g‖², line 4's ‖g‖², ‖m_{t−1}‖², ‖m_t‖² and β̂ of each tensor
    clip_scale: Tensor | float
    applied: Tensor | bool  # whether the step was taken; a bool where that is known already
    places: tuple[tuple[int, tuple[int, ...]], ...]  # of each part: its group, and its tensors' positions there
    whole: Tensor | None = None  # with a process group: the rows of what all ranks hold, a column a parameter group
    active: Tensor | None = None  # and a number for the set of parameters that took part on each rank
    late: bool = False  # sharded: ‖m_t‖² of all ranks comes with the next step's message

    def alike(self, other: "Record") -> bool:
        """Whether it is about the same parameters here, and the same groups on all ranks."""
        shapes = [None if record.whole is None else record.whole.shape for record in (self, other)]
        return self.places == other.places and (self.whole is None or other.whole is None or shapes[0] == shapes[1])

    def raw(self) -> Tensor:
        """‖g‖² of each tensor, or of each group over all ranks."""
        return self.rows[0] if self.whole is None else self.whole[0]

    def after(self, last: "Record") -> "Record":
        """The record, or the last one (of the same places) where this step was not taken: a select, no waiting."""
        if isinstance(self.applied, bool):
            return self if self.applied else last
        rows = torch.where(self.applied, self.rows, last.rows[: len(self.rows)])
        clip_scale = torch.where(self.applied, self.clip_scale, last.clip_scale)
        whole, active = self.whole, self.active
        if whole is not None and last.whole is not None and active is not None and last.active is not None:
            whole = torch.where(self.applied, whole, last.whole)
            active = torch.where(self.applied, active, last.active)
        return Record(rows, clip_scale, self.applied | last.applied, self.places, whole, active, self.late)


class NonFiniteGradient(FloatingPointError):
    """A gradient that is not finite, under ``nonfinite="raise"``; ``place`` is (group, position) or None."""

    def __init__(self, place: tuple[int, int] | None) -> None:
        super().__init__("the norm of the gradients is not finite; nothing was changed")
        self.place = place

    def named(self, groups: Sequence[dict[str, Any]]) -> "NonFiniteGradient":
        """The same with the parameter's name, or its number where it has none."""
        if self.place is not None:
            group, i = self.place
            names = groups[group].get("param_names")
            number = sum(len(g["params"]) for g in groups[:group]) + i
            who = f"parameter {names[i]!r}" if names else f"parameter {number} (group {group}, position {i})"
            self.args = (f"the gradient of {who} is not finite; nothing was changed",)
        return self


def record(
    parts: Sequence[Part],
    rows: Tensor,
    clip_scale: Tensor | float,
    applied: Tensor | bool,
    whole: Tensor | None = None,
    active: Tensor | None = None,
) -> Record:
    """Put together what `telemetry` will want to know."""
    places = tuple([(part.group, tuple(part.indices)) for part in parts])
    late = whole is not None or any([part.shards for part in parts])  # noqa: C419 (lists are quicker here)
    return Record(rows, clip_scale, applied, places, whole, active, late)


def scalar_dtype(device: torch.device) -> torch.dtype:
    """float64 for sums and β̂, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def arithmetic_dtype(param: Tensor) -> torch.dtype:
    """Half precision is stored, never computed in."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def alike(params: list[Tensor], moments: list[Tensor], shards: Sequence[Shards] = ()) -> list[Sequence[int]]:
    """Positions of the parameters that agree in device, dtypes and sharding."""
    if not shards and not torch.compiler.is_compiling():
        kinds = len(set(map(dtype_of, params))), len(set(map(dtype_of, moments))), len(set(map(device_of, params)))
        if kinds == (1, 1, 1):
            return [range(len(params))]
    parts: dict[Any, list[int]] = {}
    for j, (p, m) in enumerate(zip(params, moments, strict=True)):
        parts.setdefault((p.device, p.dtype, m.dtype, shards[j] if shards else ()), []).append(j)
    return list(parts.values())


def at(values: list[T], positions: Sequence[int]) -> list[T]:
    """The values at these positions: the list itself where they are all."""
    return values if len(positions) == len(values) else [values[j] for j in positions]


def real(tensors: list[Tensor]) -> list[Tensor]:
    """Complex tensors as pairs of reals; others as they are."""
    if not tensors[0].is_complex():
        return tensors
    return [torch.view_as_real(x.resolve_conj()) for x in tensors]


def dense(grads: list[Tensor]) -> list[Tensor]:
    """Sparse gradients save nothing here: m is dense, and every entry of θ moves at every step."""
    return [g.to_dense() if g.is_sparse else g for g in grads]


def numels(params: Sequence[Tensor], moments: Sequence[Tensor], grads: Sequence[Tensor]) -> list[int]:
    """How many entries to run through; it must be that many everywhere, for the backends check nothing."""
    shapes = list(map(shape_of, params))
    if shapes != list(map(shape_of, moments)) or shapes != list(map(shape_of, grads)):
        for p, m, g in zip(params, moments, grads, strict=True):
            if not p.shape == m.shape == g.shape:
                raise RuntimeError(
                    f"a parameter of shape {tuple(p.shape)} has a gradient of shape {tuple(g.shape)} and a "
                    f"momentum_buffer of shape {tuple(m.shape)}: was its data replaced? Then clear optimizer.state[p]"
                )
    return list(map(Tensor.numel, params))


def scalar(value: Tensor | None) -> Tensor | None:
    """What a GradScaler left, as 0-dim."""
    return None if value is None else value.reshape(())
