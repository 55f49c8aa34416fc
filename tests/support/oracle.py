"""Algorithm 1, as docs/how.md states it, in float64 NumPy: what every backend is compared with.

It imports neither torch nor acmo, and prefers being obvious to being fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Index = tuple[int, int]  # (group, parameter within the group)

GROUP_DEFAULTS: dict[str, Any] = {
    "lr": 0.3,
    "momentum": 0.9,
    "delta": 1e-8,
    "weight_decay": 0.0,
    "decoupled_weight_decay": False,
    "maximize": False,
    "projection": None,
}


def norm(arrays: Iterable[Array]) -> float:
    """The Euclidean norm of all entries together; scaled, so that no square can over- or underflow."""
    arrays = [np.abs(a).ravel() for a in arrays]
    largest = max((a.max() for a in arrays if a.size), default=0.0)
    if largest == 0 or not np.isfinite(largest):
        return float(largest)
    return float(largest * math.sqrt(sum(float(np.sum(np.square(a / largest))) for a in arrays)))


class Oracle:
    """Algorithm 1 on groups of arrays.

    Args:
      groups: one dict a group, `params` being its arrays, the rest its options, named as `acmo.ACMo` names them.
      norm_scope, psi, max_grad_norm, nonfinite: as in `acmo.ACMo`.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        *,
        norm_scope: str = "global",
        psi: str = "identity",
        max_grad_norm: float | None = None,
        nonfinite: str = "skip",
    ) -> None:
        self.norm_scope, self.psi, self.max_grad_norm, self.nonfinite = norm_scope, psi, max_grad_norm, nonfinite
        self.groups: list[dict[str, Any]] = []
        self.theta: dict[Index, Array] = {}
        self.m: dict[Index, Array] = {}
        self.step_of: dict[Index, int] = {}
        self.kept: dict[Index, float] = {}  # β̂_{t-1} of Ψ; ∞ bounds nothing
        self.skipped_steps = 0
        # What the last applied step saw, for the telemetry: raw gradient, line 4's g, m_{t-1}, m_t, β̂ by parameter.
        self.trace: dict[Index, dict[str, Any]] = {}
        self.clip_scale = 1.0
        for group in groups:
            self.add_group(group)

    def add_group(self, group: dict[str, Any]) -> None:
        unknown = set(group) - set(GROUP_DEFAULTS) - {"params"}
        assert not unknown, unknown
        self.groups.append(GROUP_DEFAULTS | group)
        for j, theta in enumerate(group["params"]):
            index = (len(self.groups) - 1, j)
            self.theta[index] = np.array(theta, dtype=complex if np.iscomplexobj(theta) else float)
            self.m[index] = np.zeros_like(self.theta[index])
            self.step_of[index] = 0
            self.kept[index] = math.inf

    def scopes(self) -> list[list[Index]]:
        """The sets of parameters over which line 4 takes its norms."""
        everything = list(self.theta)
        if self.norm_scope == "global":
            return [everything]
        if self.norm_scope == "group":
            return [[k for k in everything if k[0] == i] for i in range(len(self.groups))]
        assert self.norm_scope == "tensor"
        return [[k] for k in everything]

    def step(self, grads: Sequence[Sequence[Array | None]]) -> None:
        """Lines 1 to 8. `grads[i][j]` is the gradient of group i's parameter j; None: it takes no part."""
        with np.errstate(invalid="ignore", over="ignore"):  # "propagate" computes with NaN, and means it
            self._step(grads)

    def _step(self, grads: Sequence[Sequence[Array | None]]) -> None:
        raw = {(i, j): np.asarray(g) for i, row in enumerate(grads) for j, g in enumerate(row) if g is not None}
        if not raw or self._only_initialises(raw):
            return
        raw_norm = norm(raw.values())
        if not np.isfinite(raw_norm):
            if self.nonfinite == "raise":
                raise FloatingPointError(next(k for k, g in raw.items() if not np.isfinite(g).all()))
            if self.nonfinite == "skip":
                self.skipped_steps += 1
                return

        self.clip_scale = 1.0
        if self.max_grad_norm is not None:
            self.clip_scale = min(1.0, self.max_grad_norm / (raw_norm + 1e-6))
        self.trace = {}
        for scope in self.scopes():
            active = [k for k in scope if k in raw]
            if active:
                self._step_scope(scope, active, raw)

    def _step_scope(self, scope: list[Index], active: list[Index], raw: dict[Index, Array]) -> None:
        g: dict[Index, Array] = {}
        for k in active:
            group = self.groups[k[0]]
            g[k] = -raw[k] if group["maximize"] else raw[k]  # line 1
            g[k] = self.clip_scale * g[k]  # line 2
            if group["weight_decay"] and not group["decoupled_weight_decay"]:
                g[k] = g[k] + group["weight_decay"] * self.theta[k]  # line 3

        g_norm = norm(g.values())
        m_norm = norm(self.m[k] for k in active)
        t = 1 + max(self.step_of[k] for k in scope)
        previous = {k: self._previous(k) for k in active}  # all read before any is written

        for k in active:
            group = self.groups[k[0]]
            alpha, beta, delta, lam = (group[name] for name in ("lr", "momentum", "delta", "weight_decay"))
            if m_norm == 0:  # line 4: applied as 0, but kept as the paper computes it
                beta_hat = 0.0
                keep = beta * g_norm / delta if delta else math.inf
            else:
                beta_hat = beta * g_norm / (m_norm + delta)
                if self.psi == "sqrt" and t >= 2:  # line 5
                    beta_hat = min(beta_hat, math.sqrt(t / (t - 1)) * previous[k])
                keep = beta_hat
            self.kept[k] = previous[k] if g_norm == 0 else keep
            self.step_of[k] = t

            m_old = self.m[k]
            m = g[k] + beta_hat * m_old  # line 6
            theta = self.theta[k]
            if group["decoupled_weight_decay"]:
                theta = (1 - alpha * lam) * theta  # line 7
            theta = theta - alpha * m  # line 8
            project: Callable[[Array], Array] | None = group["projection"]
            self.theta[k] = theta if project is None else project(theta)
            self.m[k] = m
            self.trace[k] = {"raw": raw[k], "g": g[k], "m_old": m_old, "m": m, "beta_hat": beta_hat}

    def _previous(self, index: Index) -> float:
        """β̂_prev: of the group's most recently stepped parameter; of the tensor itself where that is the scope."""
        if self.norm_scope == "tensor":
            return self.kept[index]
        siblings = [k for k in self.theta if k[0] == index[0]]
        return self.kept[max(siblings, key=lambda k: self.step_of[k])]

    def _only_initialises(self, raw: dict[Index, Array]) -> bool:
        """torch.distributed.checkpoint makes the state of a fresh optimizer by such a step: it must change nothing."""
        return (
            all(group["lr"] == 0 for group in self.groups)
            and all(not g.any() for g in raw.values())
            and all(self.step_of[k] == 0 for k in raw)
        )
