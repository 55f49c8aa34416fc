"""Unit steps of *plain* momentum: what `RowACMo` and `SpectralACMo` are without the calibration of the moment."""

from math import prod, sqrt

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo import options
from acmo.newton_schulz import DEFAULT_STEPS, choose_dtype, orthogonalise
from acmo.rivals.rival import Group, Rival, constructor_options, gradient, learning_rate, params_with_grad
from acmo.scopes import ROW_SCOPES, count_entries, reduced_dims, resolve_kind


class UnitMomentum(Rival):
    r"""Implement momentum as in SGD, with the unit steps of `RowACMo` or `SpectralACMo`.

    .. math::
        m_t = g_t + \beta m_{t-1}, \qquad \theta_t = (1 - \alpha \lambda) \theta_{t-1} - \alpha u_t

    u is √n · m / ‖m‖ in each row of n entries; with ``unit_step="spectral"`` it is √max(r, c) · NS(m) for hidden
    matrices. What goes by row, by column and what is orthogonalised is decided as in those classes, and a row without a
    gradient takes no part in a step. At β = 0 nothing differs from them.

    Args:
      params: parameters, named parameters or parameter groups, such as those of `acmo.param_groups` with
        ``scopes=True``.
      lr: the step size α: how far an entry moves in a step, in the root mean square.
      momentum: β, in [0, 1).
      weight_decay: λ; θ shrinks by (1 − αλ).
      unit_step: ``"rms"`` or ``"spectral"``.
      norm_scope: ``"row"``, ``"column"`` or ``"auto"``.
      ns_steps: iterations of Newton–Schulz.
      maximize: ascend instead.

    Example:
      >>> import torch
      >>> from acmo.rivals import UnitMomentum
      >>> theta = torch.nn.Parameter(torch.ones(2, 2))
      >>> opt = UnitMomentum([theta], lr=0.1)
      >>> theta.square().sum().backward()
      >>> opt.step()
      >>> [round(float(x), 2) for x in theta.flatten()]
      [0.9, 0.9, 0.9, 0.9]

    Reference:
      for rows Glentis et al., `SCALE <https://arxiv.org/abs/2506.16659>`_, 2025; for matrices Jordan et al.,
      `Muon <https://kellerjordan.github.io/posts/muon/>`_, 2024, whose Nesterov step and AdamW are left out here
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        unit_step: str = "rms",
        norm_scope: str = "auto",
        ns_steps: int = DEFAULT_STEPS,
        maximize: bool = False,
    ) -> None:
        defaults = {**constructor_options(locals()), "spectral": None, "decoupled_weight_decay": True}
        super().__init__(params, defaults)

    def check(self, group: Group) -> None:
        """Check β, the steps and the scope too."""
        super().check(group)
        options.check_between("momentum", group["momentum"], 0.0, 1.0, open_high=True)
        options.check_one_of("unit_step", group["unit_step"], ("rms", "spectral"))
        options.check_one_of("norm_scope", group["norm_scope"], ROW_SCOPES)
        options.check_at_least("ns_steps", group["ns_steps"])

    def update(self) -> None:
        """Take one step."""
        for group in self.param_groups:
            for p in params_with_grad(group):
                if p.numel() > 0:
                    step_tensor(p, self.advance_state(p, "momentum_buffer")["momentum_buffer"], group)


def step_tensor(p: Tensor, m: Tensor, group: Group) -> None:
    """Take one step of one tensor."""
    if p.is_complex():
        raise ValueError(f"UnitMomentum needs real parameters, got {p.dtype}")
    g, kind = gradient(p, group), resolve_kind(group, p)
    dims = reduced_dims(kind, p.ndim, is_complex=False)
    moves = (g != 0).any() if not dims else (g != 0).sum(dims, keepdim=True) > 0
    m.copy_(torch.where(moves, g + group["momentum"] * m, m))
    lr = learning_rate(group)
    if group["weight_decay"]:
        p.mul_(1 - lr * group["weight_decay"])
    direction = orthogonal_direction(m, group["ns_steps"]) if kind == "spectral" else unit_direction(m, kind, dims)
    p.sub_(lr * torch.where(moves, direction, 0.0))


def unit_direction(m: Tensor, kind: str, dims: tuple[int, ...]) -> Tensor:
    """Return √n · m / ‖m‖ in each scope; 0 where m = 0."""
    norms = torch.linalg.vector_norm(m, dim=dims or None, keepdim=bool(dims))
    return m * (sqrt(count_entries(kind, m.shape)) / torch.where(norms == 0, 1.0, norms))


def orthogonal_direction(m: Tensor, steps: int) -> Tensor:
    """Return √max(rows, columns) · NS(m), m seen as a matrix (rows, everything else)."""
    norm = torch.linalg.vector_norm(m)
    unit = (m / torch.where(norm == 0, 1.0, norm)).flatten(1).to(choose_dtype(m))
    length = sqrt(max(m.shape[0], prod(m.shape[1:])))
    return orthogonalise([unit], steps)[0].reshape(m.shape).to(m.dtype) * length
