"""SM3: Adagrad whose second moment is one vector per axis, not one number per parameter."""

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo import options
from acmo.rivals.rival import Group, Rival, State, constructor_options, gradient, learning_rate, params_with_grad


class SM3(Rival):
    r"""Implement SM3 (square root of minima of sums of maxima of squares), variant II; covers are slices of each axis.

    .. math::
        \nu_t(i) = \min_{r \ni i} \mu_{t-1}(r) + g_t(i)^2, \qquad
        \mu_t(r) = \max_{i \in r} \nu_t(i), \qquad
        \theta_t(i) = \theta_{t-1}(i) - \alpha \frac{g_t(i)}{\sqrt{\nu_t(i)}}

    with 0/0 = 0. A tensor of shape (n, m) needs n + m numbers. For vectors this is Adagrad.

    Args:
      params: parameters, named parameters or parameter groups; real.
      lr: the step size α, a number or a 1-element Tensor.
      momentum: in [0, 1); the step is an average m = momentum · m + (1 − momentum) · g/√ν, as in the authors' code.
        With 0, no m is stored.
      weight_decay: λ; added to the gradient as λθ.
      maximize: ascend instead.

    Example:
      >>> import torch
      >>> from acmo.rivals import SM3
      >>> theta = torch.nn.Parameter(torch.ones(30, 20))
      >>> opt = SM3([theta], lr=0.1, momentum=0.0)
      >>> theta.square().sum().backward()
      >>> opt.step()
      >>> sum(x.numel() for x in opt.state[theta].values() if isinstance(x, torch.Tensor))
      50

    Reference:
      Anil et al., `Memory-Efficient Adaptive Optimization <https://arxiv.org/abs/1901.11150>`_, NeurIPS 2019
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, constructor_options(locals()))

    def check(self, group: Group) -> None:
        """Check the momentum too."""
        super().check(group)
        options.check_between("momentum", group["momentum"], 0.0, 1.0, open_high=True)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group. Its parameters must be real."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.is_complex():  # pairs of reals would add an axis, and so a cover
                self.param_groups.pop()
                raise ValueError(f"SM3 needs real parameters, got one of {p.dtype}")

    def update(self) -> None:
        """Take one step of SM3-II."""
        for group in self.param_groups:
            for p in params_with_grad(group):
                state = self.advance_state(p, *(("momentum_buffer",) if group["momentum"] else ()))
                if "accumulator_0" not in state:
                    state.update(zero_accumulators(p))
                if p.numel():
                    single_tensor(p, state, group)


def single_tensor(p: Tensor, state: State, group: Group) -> None:
    """Take one step of one tensor."""
    g = gradient(p, group)
    mu = [state[f"accumulator_{axis}"] for axis in range(max(p.ndim, 1))]
    nu = mu[0]
    for other in mu[1:]:
        nu = torch.minimum(nu, other)
    nu = torch.addcmul(nu, g, g)
    for axis, m in enumerate(mu):
        others = [other for other in range(p.ndim) if other != axis]
        m.copy_(nu.amax(others, keepdim=True) if others else nu)
    step = torch.where(nu > 0, g * nu.rsqrt(), 0.0)
    if group["momentum"]:
        step = state["momentum_buffer"].lerp_(step, 1 - group["momentum"])
    p.sub_(step * learning_rate(group))


def zero_accumulators(p: Tensor) -> dict[str, Tensor]:
    """Return μ = 0 for every axis, with size 1 along the others so that it broadcasts; one number for a scalar."""
    shapes = [[n if axis == other else 1 for other in range(p.ndim)] for axis, n in enumerate(p.shape)] or [[]]
    return {f"accumulator_{axis}": p.new_zeros(shape) for axis, shape in enumerate(shapes)}
