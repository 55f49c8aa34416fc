"""SWATS: Adam that switches to SGD with momentum by itself, at a rate that it estimates."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo import options
from acmo.rivals.moments import MOMENTS, bias_correction, update_moments
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

SHARED = ("adam_steps", "rate_average", "switch_step", "sgd_lr")  # θ is one vector: the same in every group


class SWATS(Rival):
    r"""Implement SWATS: switch from Adam to SGD.

    Adam's step p of all parameters, projected on the gradient, gives the rate at which SGD would have taken it:

    .. math::
        \gamma_k = \frac{p_k^\top p_k}{-p_k^\top g_k}, \qquad
        \lambda_k = \beta_2 \lambda_{k-1} + (1 - \beta_2) \gamma_k, \qquad
        \text{switch when } k > 1 \text{ and } \left|\frac{\lambda_k}{1 - \beta_2^k} - \gamma_k\right| < \tau

    After the switch all parameters take :math:`v = \beta_1 v + g,\ \theta = \theta - (1 - \beta_1) \Lambda v` with
    :math:`\Lambda = \lambda_k / (1 - \beta_2^k)`. There is one switch for all. Λ must be positive, which the paper
    assumes. A scheduler continues to scale the rate: it is Λ at the lr that the group had at the switch.

    The decision is made on the host, so every step before the switch waits for the device.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: Adam's step size α, a number or a 1-element Tensor.
      betas: β1 and β2, in [0, 1); β1 is also SGD's momentum.
      eps: ε, added to Adam's denominator, >= 0.
      weight_decay: λ; added to the gradient as λθ.
      tolerance: τ, absolute; the paper's ε of 1e-9.
      maximize: ascend instead.

    Example:
      >>> import torch
      >>> from acmo.rivals import SWATS
      >>> theta = torch.nn.Parameter(torch.ones(1))
      >>> opt = SWATS([theta])
      >>> for _ in range(3):
      ...     opt.zero_grad()
      ...     (2 * theta).sum().backward()
      ...     opt.step()
      >>> opt.switch_step, round(opt.sgd_lr, 6)
      (2, 0.0005)

    Reference:
      Keskar and Socher, `Improving Generalization Performance by Switching from Adam to SGD
      <https://arxiv.org/abs/1712.07628>`_, 2017
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
        *,
        tolerance: float = 1e-9,
        maximize: bool = False,
    ) -> None:
        defaults = {
            **constructor_options(locals()),
            "adam_steps": 0,  # k
            "rate_average": 0.0,  # λ_k
            "switch_step": None,
            "sgd_lr": None,  # Λ
            "switch_lr": None,  # the group's own lr at the switch
        }
        super().__init__(params, defaults)

    def check(self, group: Group) -> None:
        """Check τ too. It and β2 must be the same in all groups: the rate is estimated for θ as one vector."""
        super().check(group)
        options.check_at_least("tolerance", group["tolerance"])
        for other in getattr(self, "param_groups", [])[:1]:
            for key, mine, theirs in (
                ("tolerance", group["tolerance"], other["tolerance"]),
                ("betas[1]", group["betas"][1], other["betas"][1]),
            ):
                if mine != theirs:
                    raise ValueError(f"{key} is one for the whole optimizer, got {mine} in one group, {theirs} before")

    def add_param_group(self, param_group: Group) -> None:
        """Add a group. It joins the phase that the others are in."""
        first = self.param_groups[0] if self.param_groups else None
        super().add_param_group(param_group)
        if first is not None:
            group = self.param_groups[-1]
            group.update({key: first[key] for key in SHARED})
            group["switch_lr"] = None if self.switch_step is None else float(group["lr"])

    @property
    def switch_step(self) -> int | None:
        """Return the last step of Adam; None before the switch."""
        step: int | None = self.param_groups[0]["switch_step"]
        return step

    @property
    def sgd_lr(self) -> float | None:
        """Return Λ, the estimated rate of SGD; None before the switch."""
        found: float | None = self.param_groups[0]["sgd_lr"]
        return found

    def update(self) -> None:
        """Take one step of Algorithm 1: all tensors, then the decision."""
        sgd = self.switch_step is not None
        pairs: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for p in params_with_grad(group):
                if sgd:
                    sgd_step(p, self.advance_state(p, "momentum_buffer"), group)
                else:
                    pairs.append(adam_step(p, self.advance_state(p, *MOMENTS), group))
        if pairs:
            self._average_rate(pairs)

    def _average_rate(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Average γ of this step into λ, and switch if the two agree."""
        first = self.param_groups[0]
        k, average, beta2 = first["adam_steps"] + 1, first["rate_average"], first["betas"][1]
        squares, products = torch.stack([dot_products(p, g).to(pairs[0][0].device) for p, g in pairs]).sum(0).tolist()
        switch = False
        if products != 0:
            gamma = squares / -products
            average = beta2 * average + (1 - beta2) * gamma
            found = average / (1 - beta2**k)
            switch = k > 1 and found > 0 and abs(found - gamma) < first["tolerance"]
        for group in self.param_groups:
            group["adam_steps"], group["rate_average"] = k, average
            if switch:
                group["switch_step"], group["sgd_lr"], group["switch_lr"] = k, found, float(group["lr"])
                for p in group["params"]:  # SGD needs no moments of Adam
                    for name in MOMENTS:
                        self.state.get(p, {}).pop(name, None)


def adam_step(p: Tensor, state: State, group: Group) -> tuple[Tensor, Tensor]:
    """Take one step of Adam; return the step and its gradient."""
    g, m, v = update_moments(p, state, group)
    size = learning_rate(group) * bias_correction(state["step"], group)
    step = (m / v.sqrt().add_(group["eps"])).mul_(-size)
    as_real(p).add_(step)
    return step, g


def sgd_step(p: Tensor, state: State, group: Group) -> None:
    """Take one step of SGD with momentum, at Λ scaled as schedulers have scaled lr since the switch."""
    beta1 = group["betas"][0]
    v = as_real(state["momentum_buffer"])
    v.mul_(beta1).add_(gradient(p, group))
    since = learning_rate(group) / group["switch_lr"] if group["switch_lr"] else 1.0
    as_real(p).sub_((v * (1 - beta1)).mul_(group["sgd_lr"] * since))


def dot_products(step: Tensor, g: Tensor) -> Tensor:
    """Return ``[pᵀp, pᵀg]`` in float64: τ is 1e-9, which float32 cannot resolve."""
    step, g = (x.flatten().double() for x in (step, g))
    return torch.stack((step.dot(step), step.dot(g)))
