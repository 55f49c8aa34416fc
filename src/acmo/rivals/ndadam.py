"""ND-Adam: Adam that steps whole vectors, keeping the gradient's direction and the vectors' length."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo.rivals.moments import MOMENTS, update_moments
from acmo.rivals.rival import (
    Group,
    Rival,
    State,
    as_real,
    constructor_options,
    gradient,
    learning_rate,
    params_with_grad,
)

VECTOR_LR = 50.0  # the authors' 0.05 for vectors over their 0.001 for the rest


class NDAdam(Rival):
    r"""Implement normalized direction-preserving Adam.

    For each vector w, such as the input weights of one hidden unit, with a scalar second moment:

    .. math::
        g_t = \bar g_t - (\bar g_t \cdot w_{t-1}) w_{t-1}, \quad m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t, \quad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) \|g_t\|^2

        \bar w_t = w_{t-1} - \alpha \frac{\hat m_t}{\sqrt{\hat v_t} + \epsilon}, \quad w_t = \bar w_t / \|\bar w_t\|

    where the hats are Adam's bias correction. The first step scales every vector to length 1.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: the step size α, a number or a 1-element Tensor.
      betas: β1 and β2, in [0, 1).
      eps: ε, added to the denominator, >= 0.
      weight_decay: λ, added to the gradient as λθ; without effect on vectors, whose length is fixed.
      vector_axes: the axes that run along a vector: ``(1, 2, 3)`` for a convolution's kernel, ``(1,)`` for a linear
        layer's weight; None for parameters that Adam steps. Set per group: `vector_groups` makes such groups.
      maximize: ascend instead.

    Example:
      >>> import torch
      >>> from acmo.rivals import NDAdam
      >>> weight, bias = torch.nn.Linear(3, 2).parameters()
      >>> opt = NDAdam([{"params": [weight], "vector_axes": (1,), "lr": 0.05}, {"params": [bias]}], lr=1e-3)
      >>> (weight.sum() + bias.sum()).backward()
      >>> opt.step()
      >>> bool((weight.norm(dim=1) - 1).abs().max() < 1e-6)
      True

    Reference:
      Zhang et al., `Normalized Direction-preserving Adam <https://arxiv.org/abs/1709.04546>`_, 2017
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        vector_axes: tuple[int, ...] | None = None,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, constructor_options(locals()))

    def check(self, group: Group) -> None:
        """Check the axes too."""
        super().check(group)
        axes = group["vector_axes"]
        if axes is not None and not (isinstance(axes, (tuple, list)) and all(type(axis) is int for axis in axes)):
            raise TypeError(f"vector_axes must be a tuple of ints or None, got {axes!r}")

    def add_param_group(self, param_group: Group) -> None:
        """Add a group. Its parameters must be real and have the axes of its vectors."""
        super().add_param_group(param_group)
        axes = self.param_groups[-1]["vector_axes"]
        for p in self.param_groups[-1]["params"] if axes else ():
            if p.is_complex() or not all(-p.ndim <= axis < p.ndim for axis in axes):
                self.param_groups.pop()
                raise ValueError(
                    f"vector_axes={axes} needs real parameters with these axes, got {p.dtype} of shape {tuple(p.shape)}"
                )

    def update(self) -> None:
        """Take one step."""
        for group in self.param_groups:
            step = step_vectors if group["vector_axes"] else step_adam
            for p in params_with_grad(group):
                self._start_vectors(p, group)
                step(p, self.advance_state(p, *MOMENTS), group)

    def _start_vectors(self, p: Tensor, group: Group) -> None:
        axes = group["vector_axes"]
        if axes and "exp_avg_sq" not in self.state[p]:
            p.div_(vector_lengths(p, axes))
            self.state[p]["exp_avg_sq"] = torch.zeros_like(vector_lengths(p, axes))


def step_vectors(p: Tensor, state: State, group: Group) -> None:
    """Take one step of every vector in a tensor."""
    (beta1, beta2), axes, t = group["betas"], group["vector_axes"], state["step"]
    m, v = state["exp_avg"], state["exp_avg_sq"]
    g = gradient(p, group)
    g = g - (g * p).sum(axes, keepdim=True) * p
    m.lerp_(g, 1 - beta1)
    v.lerp_(g.square().sum(axes, keepdim=True), 1 - beta2)
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    p.sub_(m_hat.div_(v_hat.sqrt_().add_(group["eps"])).mul_(learning_rate(group)))
    p.div_(vector_lengths(p, axes))


def step_adam(p: Tensor, state: State, group: Group) -> None:
    """Take one step of Adam, for parameters without vectors."""
    (beta1, beta2), t = group["betas"], state["step"]
    _, m, v = update_moments(p, state, group)
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    as_real(p).sub_(m_hat.div_(v_hat.sqrt_().add_(group["eps"])).mul_(learning_rate(group)))


def vector_lengths(w: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return ‖w‖ of each vector, or the smallest positive number where it is 0, so that a zero vector stays 0."""
    norms: Tensor = torch.linalg.vector_norm(w, dim=axes, keepdim=True)
    return norms.clamp_min(torch.finfo(w.dtype).tiny)


def vector_groups(params: ParamsT, lr: float | Tensor = 1e-3) -> list[dict[str, Any]]:
    """Return groups for `NDAdam`: in tensors of two or more axes, all but the first run along a vector.

    Adam steps the other parameters. This fits the weights of linear and convolution layers, whose
    first axis counts the hidden units.

    Args:
      params: parameters, named parameters or parameter groups; groups keep their options.
      lr: the lr of the parameters that Adam steps; vectors get 50 times as much, as in the authors' code.
    """
    groups: list[dict[str, Any]] = []
    given: list[Any] = list(params)
    given_groups: list[dict[str, Any]] = given if given and isinstance(given[0], dict) else [{"params": given}]
    for group in given_groups:
        listed = group["params"]
        lists: dict[int, list[Any]] = {}
        for entry in listed if isinstance(listed, Iterable) and not isinstance(listed, Tensor) else [listed]:
            p = entry[1] if isinstance(entry, tuple) else entry
            lists.setdefault(p.ndim if p.ndim >= 2 else 0, []).append(entry)
        for ndim, entries in lists.items():
            own = group.get("lr", lr) * (VECTOR_LR if ndim else 1.0)
            groups.append({**group, "params": entries, "lr": own, "vector_axes": tuple(range(1, ndim)) or None})
    return groups


def build_nd_adam(params: ParamsT, **options: Any) -> NDAdam:
    """Build ND-Adam with one vector per row of a weight, at 50 times the lr of the other parameters."""
    lr = options.get("lr", inspect.signature(NDAdam).parameters["lr"].default)
    return NDAdam(vector_groups(params, lr), **options)
