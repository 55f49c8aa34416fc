"""ACMo as its authors released it: two scripts that differ from the paper, expressed by the options of `ACMo`."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo import options
from acmo.optimizer import ACMo


class AuthorsACMo(ACMo):
    r"""Implement the authors' released code: β = 1 and a factor s on the moment.

    .. math::
        m_t = s \left(g_t + \frac{\|g_t\|}{\|m_{t-1}\| + \epsilon} m_{t-1}\right), \qquad
        \theta_t = \theta_{t-1} - \alpha m_t

    This equals `ACMo` with ``momentum=1``, ``delta=eps / factor`` and steps of ``factor * lr``. Their CIFAR script has
    a factor of 0.5 and one norm per tensor, their translation script 0.9 and one norm for all. With weight decay the
    second one takes ‖g‖ before λθ is added: then this class is close to it, not equal.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: the step size α.
      weight_decay: λ; added to the gradient as λθ.
      factor: s, in (0, 1].
      eps: ε, >= 0.
      norm_scope: as in `ACMo`: ``"tensor"`` for the CIFAR script, ``"global"`` for the other one.

    Example:
      >>> import torch
      >>> from acmo.rivals import AuthorsACMo
      >>> theta = torch.nn.Parameter(torch.ones(2))
      >>> opt = AuthorsACMo([theta], lr=0.1)
      >>> theta.square().sum().backward()
      >>> opt.step()
      >>> [round(float(x), 2) for x in theta]
      [0.9, 0.9]

    Reference:
      `github.com/Xunpeng746/ACMo <https://github.com/Xunpeng746/ACMo>`_
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        weight_decay: float = 0.0,
        *,
        factor: float = 0.5,
        eps: float = 1e-8,
        norm_scope: str = "tensor",
    ) -> None:
        options.check_between("factor", factor, 0.0, 1.0, open_low=True)
        options.check_at_least("eps", eps)
        self._factor = factor
        super().__init__(params, lr, 1.0, eps / factor, weight_decay, norm_scope=norm_scope)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; the factor scales its steps, and schedulers leave it alone."""
        self.defaults["lr_scale"] = self._factor
        super().add_param_group(param_group)
