"""Adagrad with the full matrix, which the usual diagonal one approximates; for small problems."""

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from acmo import options
from acmo.rivals.rival import Group, Rival, as_real, constructor_options, gradient, learning_rate, params_with_grad


class FullMatrixAdagrad(Rival):
    r"""Implement Adagrad with all products of the gradients' entries, not only the squares (eq. 3 of the ACMo paper).

    .. math::
        G_t = G_{t-1} + g_t g_t^\top, \qquad \theta_t = \theta_{t-1} - \alpha G_t^{-1/2} g_t

    θ is one vector, of all parameters in all groups; the inverse is the pseudo-inverse, so there is no ε. Parameters
    without a gradient take no part: their rows and columns are left out. d parameters need d² numbers and d³ operations
    per step, done in float64; eigenvalues that the dtype of G cannot distinguish from 0 count as 0.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: the step size α, a number or a 1-element Tensor.
      weight_decay: λ; added to the gradient as λθ.
      size_limit: the largest d that is accepted.
      maximize: ascend instead.

    Example:
      >>> import torch
      >>> from acmo.rivals import FullMatrixAdagrad
      >>> theta = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> opt = FullMatrixAdagrad([theta], lr=1.0)
      >>> theta.square().sum().backward()
      >>> opt.step()  # the first step has length α
      >>> [round(x, 4) for x in theta.tolist()]
      [2.4, 3.2]

    Reference:
      Duchi et al., `Adaptive Subgradient Methods for Online Learning and Stochastic Optimization
      <https://jmlr.org/papers/v12/duchi11a.html>`_, JMLR 2011
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        weight_decay: float = 0.0,
        *,
        size_limit: int = 2048,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, constructor_options(locals()))

    def check(self, group: Group) -> None:
        """Check the limit too."""
        super().check(group)
        options.check_at_least("size_limit", group["size_limit"], 1)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, unless G would grow too large."""
        super().add_param_group(param_group)
        d = sum(as_real(p).numel() for group in self.param_groups for p in group["params"])
        if d > self.param_groups[-1]["size_limit"]:
            limit = self.param_groups.pop()["size_limit"]
            raise ValueError(
                f"FullMatrixAdagrad keeps a matrix of d² numbers, and d = {d} is above size_limit={limit}: "
                "use torch.optim.Adagrad, or raise the limit"
            )

    def update(self) -> None:
        """Take one step of eq. 3."""
        places, start = {}, 0  # of each parameter in θ; groups that are added later come last
        for group in self.param_groups:
            for p in group["params"]:
                places[p] = slice(start, start := start + as_real(p).numel())
        active = [(p, group) for group in self.param_groups for p in params_with_grad(group)]
        if not any(p.numel() for p, _ in active):
            return
        device = active[0][0].device
        columns = torch.cat([torch.arange(places[p].start, places[p].stop, device=device) for p, _ in active])
        parts = [gradient(p, group).flatten().to(device, torch.float64) for p, group in active]
        g = torch.cat(parts)
        blocks = []
        for (p, _), part in zip(active, parts, strict=True):
            rows = self._extend_rows(p, start)
            rows.index_add_(1, columns.to(rows.device), torch.outer(part, g).to(rows))
            blocks.append(rows.to(device, torch.float64)[:, columns])
        precision = max(torch.finfo(p.dtype).eps for p, _ in active)
        step = inverse_root(torch.cat(blocks), precision) @ g
        for (p, group), part in zip(active, torch.split(step, [len(part) for part in parts]), strict=True):
            theta = as_real(p)
            theta.sub_((part.to(p.device) * learning_rate(group)).view(theta.shape).to(theta.dtype))

    def _extend_rows(self, p: Tensor, d: int) -> Tensor:
        """Return the rows of G that belong to a parameter, extended to all d columns."""
        state, n = self.advance_state(p), as_real(p).numel()
        rows: Tensor = state.get("gram_rows", as_real(p).new_zeros(n, 0))
        if rows.shape[1] < d:
            rows = torch.cat((rows, rows.new_zeros(n, d - rows.shape[1])), dim=1)
        state["gram_rows"] = rows
        return rows


def inverse_root(G: Tensor, precision: float) -> Tensor:
    """Return G^{-1/2} of a symmetric positive semi-definite matrix, on its range."""
    values, Q = torch.linalg.eigh(G)
    known = values > len(G) * precision * values[-1]
    roots = torch.where(known, torch.where(known, values, 1.0).rsqrt(), 0.0)
    return torch.mm(Q * roots, Q.T)
