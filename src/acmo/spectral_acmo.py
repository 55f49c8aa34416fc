"""SpectralACMo: ACMo with orthogonalised steps for matrices. A class of defaults, as AdamW is of Adam."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo.newton_schulz import DEFAULT_STEPS
from acmo.optimizer import ACMo
from acmo.projections import Projection
from acmo.psi import Psi


class SpectralACMo(ACMo):
    r"""Apply ACMo with orthogonalised steps for hidden matrices: one moment per parameter, one learning rate.

    .. math::
        M = G + \beta \|G\| \frac{M}{\|M\| + \delta}, \qquad
        \theta \leftarrow (1 - \alpha \lambda) \theta - \alpha \sqrt{\max(r, c)} \; \mathrm{NS}(M)

    NS brings the singular values of the moment near 1 by Newton–Schulz iterations, as Muon does (Jordan et al., 2024);
    norms are over the whole matrix, r × c. A parameter is orthogonalised if it has at least two dimensions and both
    sides are longer than 8, seen as (rows, everything else): a convolution kernel is (filters, the rest). Vocabulary
    tables, heads and everything else step as in `RowACMo`. Every step has a root mean square of about ``lr`` per entry,
    so one ``lr`` with a schedule that decays is right for all. Use `acmo.param_groups` with ``scopes=True``: shapes
    alone do not show which matrix is a head.

    A group may set ``spectral`` (True: orthogonalise its matrices, whatever they look like; False: none of them) and
    ``lr_scale``, a factor on ``lr`` that schedulers leave alone. The step need not make an acute angle with the
    gradient: the bound of `ACMo` and `RowACMo` does not carry over. Everything else is as in `ACMo`.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: the step size α: how far an entry moves in a step, in the root mean square.
      momentum: β, in [0, 1].
      delta: δ in the denominator, >= 0. With 0 the steps do not depend on the scale of the gradients.
      weight_decay: λ; θ shrinks by (1 − αλ). 0.5 shrinks weights as 0.1 does in Muon with
        ``adjust_lr_fn="match_rms_adamw"``, whose ``lr`` is five times as large for the same step. Without
        `acmo.param_groups`, biases and norm layers decay too; the runs that chose 0.5 spared them.
      decoupled_weight_decay: False adds λθ to the gradient instead.
      norm_scope: what norms are taken over where nothing is orthogonalised, as in `RowACMo`.
      unit_step: as in `ACMo`.
      ns_steps: number of Newton–Schulz iterations, 5 by default.
      ns_dtype: dtype of their products. None: float32 on CPUs, bfloat16 on GPUs, float64 for float64 parameters.
        ``torch.bfloat16`` is the faster one on CPUs that multiply it (AVX-512 BF16, AMX), and Muon's.

    The options that are not listed are as in `ACMo`.

    Example:
      >>> import torch, acmo
      >>> model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 100))
      >>> opt = acmo.SpectralACMo(acmo.param_groups(model, scopes=True), lr=2e-3)
      >>> model(torch.arange(5)).square().sum().backward()
      >>> opt.step()
      >>> [group["spectral"] for group in opt.param_groups]
      [True, False, None]

    Reference:
      Jordan et al., `Muon: An optimizer for hidden layers in neural networks
      <https://kellerjordan.github.io/posts/muon/>`_, 2024: the orthogonalised step
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        momentum: float = 0.9,
        delta: float = 0.0,
        weight_decay: float = 0.5,
        *,
        decoupled_weight_decay: bool = True,
        norm_scope: str = "auto",
        unit_step: bool | str = "spectral",
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
