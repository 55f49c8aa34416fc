"""RowACMo: ACMo for every row, with unit steps. A class of defaults, as AdamW is of Adam."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo.newton_schulz import DEFAULT_STEPS
from acmo.optimizer import ACMo
from acmo.projections import Projection
from acmo.psi import Psi


class RowACMo(ACMo):
    r"""Apply ACMo to every row of a matrix, with unit steps: one moment, and the angle rule in each row.

    .. math::
        m_r = g_r + \beta \|g_r\| \frac{m_r}{\|m_r\| + \delta}, \qquad
        \theta_r \leftarrow (1 - \alpha \lambda) \theta_r - \alpha \sqrt{n} \frac{m_r}{\|m_r\|}

    A row is a slice along dimension 0: an output neuron, a convolution filter. Vocabulary tables go by column
    (``norm_scope="auto"``; `acmo.param_groups` with ``scopes=True`` names them from the modules). Every step has a root
    mean square of ``lr`` per entry, whatever the length of the gradient, so ``lr`` needs a schedule that decays. Weight
    decay is decoupled. Everything else is as in `ACMo`, whose options it takes.

    Example:
      >>> import torch, acmo
      >>> model = torch.nn.Linear(4, 3)
      >>> opt = acmo.RowACMo(model.parameters(), lr=1e-3)
      >>> model(torch.ones(1, 4)).square().sum().backward()
      >>> opt.step()
      >>> [round(t["cos_min"], 2) for t in opt.telemetry()["tensors"]]
      [1.0, 1.0]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        delta: float = 0.0,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = True,
        norm_scope: str = "auto",
        unit_step: bool | str = "rms",
        ns_steps: int = DEFAULT_STEPS,
        ns_dtype: torch.dtype | None = None,
        psi: str | Psi = "identity",
        max_grad_norm: float | None = None,
        projection: Projection | None = None,
        process_group: Any = None,
        momentum_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        nonfinite: str = "skip",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum,
            delta,
            weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            norm_scope=norm_scope,
            unit_step=unit_step,
            ns_steps=ns_steps,
            ns_dtype=ns_dtype,
            psi=psi,
            max_grad_norm=max_grad_norm,
            projection=projection,
            process_group=process_group,
            momentum_dtype=momentum_dtype,
            stochastic_rounding=stochastic_rounding,
            nonfinite=nonfinite,
            maximize=maximize,
            foreach=foreach,
            fused=fused,
            differentiable=differentiable,
        )
