"""The same problem, given to ACMo and to the oracle: same numbers, same options, gradients drawn once for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import acmo
from tests.support.oracle import Array, Oracle

Grads = list[list[Tensor | None]]

# Several groups, of several ranks; 0-dim, and one that is no multiple of a vector register.
SHAPES: list[list[tuple[int, ...]]] = [[(3, 4), ()], [(67,)], [(2, 5, 7)]]

# Every group has its own β, δ, α, λ.
GROUPS: list[dict[str, Any]] = [
    {"lr": 0.05, "momentum": 0.9, "delta": 1e-8, "weight_decay": 0.01},
    {"lr": 0.2, "momentum": 0.99, "delta": 0.3, "weight_decay": 0.0},
    {"lr": 0.01, "momentum": 0.5, "delta": 0.0, "weight_decay": 0.1},
]


def decayed(groups: Sequence[dict[str, Any]], decay: str) -> list[dict[str, Any]]:
    """The groups with decay "none", "coupled" or "decoupled"."""
    if decay == "none":
        return [group | {"weight_decay": 0.0} for group in groups]
    return [group | {"decoupled_weight_decay": decay == "decoupled"} for group in groups]


def as_array(tensor: Tensor) -> Array:
    """The tensor's exact values, in float64 (or complex128)."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64).numpy().copy()


@dataclass
class Scenario:
    """An optimizer and an oracle that walk the same way.

    Args:
      shapes: of the parameters, by group.
      groups: the groups' own options; the oracle gets them too.
      wide: options of the whole optimizer that the oracle knows: norm_scope, psi, max_grad_norm, nonfinite.
      backend: what ACMo alone gets.
      projections: the groups' projections as ACMo has them; the oracle's, of arrays, stand in `groups`.
    """

    shapes: Sequence[Sequence[tuple[int, ...]]]
    groups: Sequence[dict[str, Any]]
    wide: dict[str, Any]
    backend: dict[str, Any]
    dtype: torch.dtype = torch.float64
    seed: int = 0
    scale: float = 1.0
    missing: float = 0.0  # how often a parameter has no gradient
    projections: Sequence[Any] = ()

    params: list[list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.params = [[self._draw(s).requires_grad_() for s in shapes] for shapes in self.shapes]
        ours = [dict(group) for group in self.groups]
        for group, projection in zip(ours, self.projections, strict=False):
            group["projection"] = projection
        self.opt = acmo.ACMo(
            [{"params": ps, **group} for ps, group in zip(self.params, ours, strict=True)],
            **self.wide,
            **self.backend,
        )
        self.oracle = Oracle(
            [{"params": [as_array(p) for p in ps], **g} for ps, g in zip(self.params, self.groups, strict=True)],
            **self.wide,
        )

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        values = self.rng.standard_normal(shape)
        if self.dtype.is_complex:
            values = values + 1j * self.rng.standard_normal(shape)
        return torch.as_tensor(values).to(self.dtype)

    def draw_grads(self) -> Grads:
        """Gradients of a size that changes from step to step, independent of θ."""
        size = self.scale * float(np.exp(self.rng.normal()))
        return [
            [None if self.rng.random() < self.missing else (self._draw(s) * size).to(self.dtype) for s in shapes]
            for shapes in self.shapes
        ]

    def step(self, grads: Grads | None = None) -> Grads:
        """One step of both, with the same gradients."""
        grads = self.draw_grads() if grads is None else grads
        for p, g in self.pairs(grads):
            p.grad = None if g is None else g.clone()
        self.opt.step()
        self.oracle.step([[None if g is None else as_array(g) for g in row] for row in grads])
        return grads

    def pairs(self, grads: Grads) -> Iterator[tuple[Tensor, Tensor | None]]:
        for ps, row in zip(self.params, grads, strict=True):
            yield from zip(ps, row, strict=True)

    def theta_error(self) -> float:
        """‖θ − θ*‖ / ‖θ*‖ of all parameters together."""
        return self._error([(as_array(self.params[i][j]), x) for (i, j), x in self.oracle.theta.items()])

    def moment_error(self) -> float:
        """‖m − m*‖ / ‖m*‖ of all parameters together."""
        return self._error([(self.moment(i, j), x) for (i, j), x in self.oracle.m.items()])

    def moment(self, i: int, j: int) -> Array:
        """The moment as ACMo has it; zero where it has none yet."""
        p = self.params[i][j]
        m = self.opt.state[p].get("momentum_buffer") if p in self.opt.state else None
        return np.zeros(p.shape) if m is None else as_array(m)

    @staticmethod
    def _error(pairs: list[tuple[Array, Array]]) -> float:
        apart = sum(float(np.sum(np.abs(x - y) ** 2)) for x, y in pairs)
        size = sum(float(np.sum(np.abs(y) ** 2)) for _, y in pairs)
        return float(np.sqrt(apart / size)) if size else float(np.sqrt(apart))
