"""AdaBound and AMSBound: Adam whose rates are clipped into bounds that close on an SGD rate."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo import options
from acmo.rivals.moments import MAX_EXP_AVG_SQ, MOMENTS, bias_correction, update_moments, update_moments_foreach
from acmo.rivals.rival import Group, Rival, State, as_real, constructor_options, learning_rate


class AdaBound(Rival):
    r"""Implement Adam with dynamic bounds on the learning rate.

    .. math::
        \theta_t = \theta_{t-1} - \frac{\alpha_t}{\alpha_0}
        \operatorname{clip}\left(\frac{\alpha_0}{\sqrt{v_t} + \epsilon} \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t},
        \alpha^* \left(1 - \tfrac{1}{\gamma t + 1}\right), \alpha^* \left(1 + \tfrac{1}{\gamma t}\right)\right) m_t

    with Adam's moments m and v, the final rate α* and the initial lr α_0 of the group: a scheduler that scales lr
    scales the bounds as well. The bounds close on α*, so Adam turns into SGD with momentum.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: Adam's step size α, initially > 0, a number or a 1-element Tensor.
      betas: β1 and β2, in [0, 1).
      final_lr: the rate α* that the bounds close on, at the group's initial lr.
      gamma: how fast they close, in (0, 1).
      eps: ε, added to the denominator, >= 0.
      weight_decay: λ; added to the gradient as λθ, unless decoupled.
      amsbound: divide by the largest v so far, as AMSGrad does.
      decoupled_weight_decay: shrink θ by (1 − αλ) instead, as AdamW does.
      maximize: ascend instead.
      foreach: use the multi-tensor path (None: on GPUs).

    Example:
      >>> import torch
      >>> from acmo.rivals import AdaBound
      >>> theta = torch.nn.Parameter(torch.ones(2))
      >>> opt = AdaBound([theta], lr=1e-3, final_lr=0.1)
      >>> theta.square().sum().backward()
      >>> opt.step()
      >>> bool((theta < 1).all())
      True

    Reference:
      Luo et al., `Adaptive Gradient Methods with Dynamic Bound of Learning Rate
      <https://arxiv.org/abs/1902.09843>`_, ICLR 2019
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        final_lr: float = 0.1,
        gamma: float = 1e-3,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        amsbound: bool = False,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        super().__init__(params, constructor_options(locals()))

    def check(self, group: Group) -> None:
        """Check α* and γ too, and that lr > 0: the step divides by α_0."""
        super().check(group)
        options.check_at_least("lr", group["lr"], strict=True)
        options.check_at_least("final_lr", group["final_lr"])
        options.check_between("gamma", group["gamma"], 0.0, 1.0, open_low=True, open_high=True)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group and keep its initial lr in it, so that it is saved."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("base_lr", float(group["lr"]))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("base_lr", float(group["lr"]))

    def update(self) -> None:
        """Take one step."""
        for group in self.param_groups:
            names = (*MOMENTS, MAX_EXP_AVG_SQ) if group["amsbound"] else MOMENTS
            self.update_group(group, names, single_tensor, multi_tensor)


class Bounds(NamedTuple):
    """The scalars of step t: Adam's bias-corrected step size at α_0, and the bounds of the rates."""

    size: float
    lower: float
    upper: float


def compute_bounds(t: int, group: Group) -> Bounds:
    """Compute the paper's η_l(t) and η_u(t), and the step size."""
    final, gamma = group["final_lr"], group["gamma"]
    size = group["base_lr"] * bias_correction(t, group)
    return Bounds(size, final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t)))


def single_tensor(p: Tensor, state: State, group: Group) -> None:
    """Take one step of one tensor."""
    theta = as_real(p)
    _, m, v = update_moments(p, state, group, group["amsbound"])
    size, lower, upper = compute_bounds(state["step"], group)
    rates = v.sqrt().add_(group["eps"]).reciprocal_().mul_(size).clamp_(lower, upper)
    if group["decoupled_weight_decay"] and group["weight_decay"]:
        theta.mul_(1 - learning_rate(group) * group["weight_decay"])
    theta.sub_(rates.mul_(m).mul_(learning_rate(group) / group["base_lr"]))


def multi_tensor(params: Sequence[Tensor], states: Sequence[State], group: Group) -> None:
    """Take one step of a list of tensors, with one list of temporaries."""
    theta = [as_real(p) for p in params]
    m, v = update_moments_foreach(params, states, group, group["amsbound"])
    sizes, lowers, uppers = zip(*(compute_bounds(s["step"], group) for s in states), strict=True)
    rates = torch._foreach_sqrt(v)
    torch._foreach_add_(rates, group["eps"])
    torch._foreach_reciprocal_(rates)
    torch._foreach_mul_(rates, sizes)
    torch._foreach_clamp_min_(rates, lowers)
    torch._foreach_clamp_max_(rates, uppers)
    torch._foreach_mul_(rates, m)
    torch._foreach_mul_(rates, learning_rate(group) / group["base_lr"])
    if group["decoupled_weight_decay"] and group["weight_decay"]:
        torch._foreach_mul_(theta, 1 - learning_rate(group) * group["weight_decay"])
    torch._foreach_sub_(theta, rates)
