"""PAdam: between AMSGrad and SGD-momentum by the power of the second moment."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo import options
from acmo.rivals.moments import MAX_EXP_AVG_SQ, MOMENTS, bias_correction, update_moments, update_moments_foreach
from acmo.rivals.rival import Group, Rival, State, as_real, constructor_options, learning_rate


class PAdam(Rival):
    r"""Implement partially adaptive momentum estimation.

    .. math::
        m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t, \quad v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2, \quad
        \hat v_t = \max(\hat v_{t-1}, v_t), \quad
        \theta_t = \theta_{t-1} - \alpha \frac{m_t}{(\sqrt{\hat v_t} + \epsilon)^{2p}}

    At p = 1/2 this is AMSGrad without bias correction; as p goes to 0 it becomes SGD with momentum.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: the step size α, a number or a 1-element Tensor.
      betas: β1 and β2, in [0, 1).
      eps: ε, added to the denominator, >= 0.
      partial: the power p, in (0, 1/2].
      weight_decay: λ; added to the gradient as λθ.
      bias_correction: scale α by √(1 − β2^t) / (1 − β1^t), as the authors' code does and their Algorithm 1 does not.
      maximize: ascend instead.
      foreach: use the multi-tensor path (None: on GPUs).

    Example:
      >>> import torch
      >>> from acmo.rivals import PAdam
      >>> theta = torch.nn.Parameter(torch.ones(2))
      >>> opt = PAdam([theta], lr=0.1, partial=1 / 8)
      >>> theta.square().sum().backward()
      >>> opt.step()
      >>> bool((theta < 1).all())
      True

    Reference:
      Chen et al., `Closing the Generalization Gap of Adaptive Gradient Methods in Training Deep Neural Networks
      <https://arxiv.org/abs/1806.06763>`_, 2018
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        partial: float = 1 / 8,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        super().__init__(params, constructor_options(locals()))

    def check(self, group: Group) -> None:
        """Check p too."""
        super().check(group)
        options.check_between("partial", group["partial"], 0.0, 0.5, open_low=True)

    def update(self) -> None:
        """Take one step of Algorithm 1."""
        for group in self.param_groups:
            self.update_group(group, (*MOMENTS, MAX_EXP_AVG_SQ), single_tensor, multi_tensor)


def single_tensor(p: Tensor, state: State, group: Group) -> None:
    """Take one step of one tensor."""
    _, m, v_hat = update_moments(p, state, group, largest=True)
    denominator = v_hat.sqrt().add_(group["eps"]).pow_(2 * group["partial"])
    as_real(p).sub_((m / denominator).mul_(correction(state["step"], group)).mul_(learning_rate(group)))


def multi_tensor(params: Sequence[Tensor], states: Sequence[State], group: Group) -> None:
    """Take one step of a list of tensors, with one list of temporaries."""
    m, v_hat = update_moments_foreach(params, states, group, largest=True)
    update = torch._foreach_sqrt(v_hat)
    torch._foreach_add_(update, group["eps"])
    torch._foreach_pow_(update, -2 * group["partial"])
    torch._foreach_mul_(update, m)
    torch._foreach_mul_(update, [-correction(s["step"], group) for s in states])
    torch._foreach_mul_(update, learning_rate(group))
    torch._foreach_add_([as_real(p) for p in params], update)


def correction(t: int, group: Group) -> float:
    """Return the factor of bias correction at step t; 1 if it is off."""
    return bias_correction(t, group) if group["bias_correction"] else 1.0
