"""The rivals' formulas in float64 NumPy, written from their papers: what the classes are compared with.

It imports neither torch nor acmo. An oracle takes the tensors θ, for every step the tensors' gradients (None where one
has none) and lr, and yields θ after every step. Options are named as the classes name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

Array = np.ndarray
Gradients = Sequence[Sequence[Array | None]]


class Adam:
    """Adam's two moments of one tensor, their maximum, and how many gradients they have seen."""

    def __init__(self, betas: tuple[float, float]) -> None:
        self.betas, self.t, self.m, self.v, self.v_max = betas, 0, 0.0, 0.0, 0.0

    def see(self, g: Array, g_sq: Array | None = None) -> None:
        b1, b2 = self.betas
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * (g**2 if g_sq is None else g_sq)
        self.v_max = np.maximum(self.v_max, self.v)

    @property
    def correction(self) -> float:
        return np.sqrt(1 - self.betas[1] ** self.t) / (1 - self.betas[0] ** self.t)


def padam(
    thetas: Sequence[Array],
    gradients: Gradients,
    lrs: Sequence[float],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    partial: float = 1 / 8,
    weight_decay: float = 0.0,
    bias_correction: bool = False,
    maximize: bool = False,
) -> Iterator[list[Array]]:
    """Chen et al. 2018, Algorithm 1, with (√v̂ + ε)^(2p) below the line."""
    thetas, moments = [np.array(x) for x in thetas], [Adam(betas) for _ in thetas]
    for gs, lr in zip(gradients, lrs, strict=True):
        for i, g in enumerate(gs):
            if g is not None:
                moments[i].see((-g if maximize else g) + weight_decay * thetas[i])
                alpha = lr * moments[i].correction if bias_correction else lr
                thetas[i] = thetas[i] - alpha * moments[i].m / (np.sqrt(moments[i].v_max) + eps) ** (2 * partial)
        yield list(thetas)


def adabound(
    thetas: Sequence[Array],
    gradients: Gradients,
    lrs: Sequence[float],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    final_lr: float = 0.1,
    gamma: float = 1e-3,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsbound: bool = False,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
) -> Iterator[list[Array]]:
    """Luo et al. 2019, with the bias correction and the scheduled bounds of their code; the first lr is α_0."""
    thetas, moments = [np.array(x) for x in thetas], [Adam(betas) for _ in thetas]
    for gs, lr in zip(gradients, lrs, strict=True):
        for i, g in enumerate(gs):
            if g is None:
                continue
            g = -g if maximize else g
            moments[i].see(g if decoupled_weight_decay else g + weight_decay * thetas[i])
            t, star = moments[i].t, final_lr * lr / lrs[0]
            v = moments[i].v_max if amsbound else moments[i].v
            eta = lr * moments[i].correction / (np.sqrt(v) + eps)
            eta = np.minimum(np.maximum(eta, star * (1 - 1 / (gamma * t + 1))), star * (1 + 1 / (gamma * t)))
            shrink = 1 - lr * weight_decay if decoupled_weight_decay else 1.0
            thetas[i] = shrink * thetas[i] - eta * moments[i].m
        yield list(thetas)


def nd_adam(
    thetas: Sequence[Array],
    gradients: Gradients,
    lrs: Sequence[float],
    *,
    axes: Sequence[int | None],
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    maximize: bool = False,
) -> Iterator[list[Array]]:
    """Zhang et al. 2017, Algorithm 1, vector by vector; `axes`: the axis of each tensor's vectors, None for Adam."""
    rows = [np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]) if axis is not None else x.reshape(1, -1)
            for x, axis in zip(thetas, axes, strict=True)]  # fmt: skip
    rows = [np.array(r) for r in rows]
    moments = [[Adam(betas) for _ in r] for r in rows]
    for gs, lr in zip(gradients, lrs, strict=True):
        for i, (g, axis) in enumerate(zip(gs, axes, strict=True)):
            if g is None:
                continue
            g = -g if maximize else g
            for k, gk in enumerate(
                np.moveaxis(g, axis, -1).reshape(rows[i].shape) if axis is not None else [g.ravel()]
            ):
                w, adam = rows[i][k], moments[i][k]
                if axis is not None:
                    w = w / np.linalg.norm(w)
                    gk = gk - (gk @ w) * w
                adam.see(gk, None if axis is None else gk @ gk)
                m_hat, v_hat = adam.m / (1 - betas[0] ** adam.t), adam.v / (1 - betas[1] ** adam.t)
                w = w - lr * m_hat / (np.sqrt(v_hat) + eps)
                rows[i][k] = w if axis is None else w / np.linalg.norm(w)
        yield [
            r.reshape(x.shape) if a is None else np.moveaxis(r.reshape(np.moveaxis(x, a, -1).shape), -1, a)
            for r, x, a in zip(rows, thetas, axes, strict=True)
        ]


def swats(
    thetas: Sequence[Array],
    gradients: Gradients,
    lrs: Sequence[float],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    tolerance: float = 1e-9,
    maximize: bool = False,
    switched: list[tuple[int, float]] | None = None,
) -> Iterator[list[Array]]:
    """Keskar and Socher 2017, Algorithm 1, θ being one vector; (step, Λ) of the switch is appended to `switched`."""
    shapes, ends = [x.shape for x in thetas], np.cumsum([x.size for x in thetas])
    w = np.concatenate([x.ravel() for x in thetas])
    adam, v, average, sgd_lr, switch_lr = Adam(betas), np.zeros_like(w), 0.0, None, None
    for k, (gs, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        g = np.concatenate([g.ravel() for g in gs])
        g = (-g if maximize else g) + weight_decay * w
        if sgd_lr is not None:
            v = betas[0] * v + g
            w = w - (1 - betas[0]) * sgd_lr * lr / switch_lr * v
        else:
            adam.see(g)
            p = -lr * adam.correction * adam.m / (np.sqrt(adam.v) + eps)
            w = w + p
            if p @ g != 0:
                rate = (p @ p) / -(p @ g)
                average = betas[1] * average + (1 - betas[1]) * rate
                found = average / (1 - betas[1] ** k)
                if k > 1 and found > 0 and abs(found - rate) < tolerance:
                    sgd_lr, switch_lr = found, lr
                    if switched is not None:
                        switched.append((k, found))
        yield [part.reshape(shape) for part, shape in zip(np.split(w, ends[:-1]), shapes, strict=True)]


def sm3(
    thetas: Sequence[Array],
    gradients: Gradients,
    lrs: Sequence[float],
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Iterator[list[Array]]:
    """Anil et al. 2019, SM3-II, entry by entry over explicit cover sets."""
    thetas = [np.array(x, dtype=np.float64) for x in thetas]
    covers = [{(axis, n): 0.0 for axis, length in enumerate(x.shape or (1,)) for n in range(length)} for x in thetas]
    averages = [np.zeros_like(x) for x in thetas]
    for gs, lr in zip(gradients, lrs, strict=True):
        for i, g in enumerate(gs):
            if g is None:
                continue
            g = (-g if maximize else g) + weight_decay * thetas[i]
            new, step = dict.fromkeys(covers[i], 0.0), np.zeros_like(thetas[i])
            for index in np.ndindex(g.shape):
                sets = list(enumerate(index)) or [(0, 0)]
                nu = min(covers[i][r] for r in sets) + g[index] ** 2
                step[index] = g[index] / np.sqrt(nu) if nu > 0 else 0.0
                for r in sets:
                    new[r] = max(new[r], nu)
            covers[i] = new
            averages[i] = momentum * averages[i] + (1 - momentum) * step
            thetas[i] = thetas[i] - lr * averages[i]
        yield list(thetas)


def full_matrix_adagrad(
    thetas: Sequence[Array],
    gradients: Gradients,
    lrs: Sequence[float],
    *,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Iterator[list[Array]]:
    """Duchi et al. 2011: with A = (g_1 … g_t) = U S Vᵀ, G = A Aᵀ and so G^{-1/2} = U S⁻¹ Uᵀ."""
    shapes, ends = [x.shape for x in thetas], np.cumsum([x.size for x in thetas])
    w, seen = np.concatenate([x.ravel() for x in thetas]), []
    for gs, lr in zip(gradients, lrs, strict=True):
        g = np.concatenate([g.ravel() for g in gs])
        seen.append((-g if maximize else g) + weight_decay * w)
        U, S, _ = np.linalg.svd(np.stack(seen, axis=1), full_matrices=False)
        known = np.flatnonzero(S / S[0] > 1e-7)
        U, S = U[:, known], S[known]
        w = w - lr * U @ (U.T @ seen[-1] / S)
        yield [part.reshape(shape) for part, shape in zip(np.split(w, ends[:-1]), shapes, strict=True)]
