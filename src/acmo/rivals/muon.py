"""Muon for hidden matrices and AdamW for the rest, by torch's own functions, as one optimizer."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from acmo import options
from acmo.rivals.rival import Group, Rival, constructor_options, learning_rate, params_with_grad
from acmo.scopes import is_spectral


class MuonAdamW(Rival):
    r"""Step hidden matrices with `torch.optim.Muon` and everything else with `torch.optim.AdamW`.

    Which is which is decided as in `acmo.SpectralACMo`: Muon takes parameters with at least two dimensions whose sides
    are longer than 8, seen as (rows, everything else), but no embeddings and no heads. `acmo.param_groups` with
    ``scopes=True`` names those from the modules; without it, shapes decide. Convolution kernels are flattened, as in
    the author's own code.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: the learning rate of both. With ``adjust_lr_fn="match_rms_adamw"`` a step of Muon is as long as one of AdamW,
        so one rate is right for both (Liu et al., 2025).
      weight_decay: of both; decoupled.
      momentum: of Muon.
      nesterov: of Muon.
      ns_steps: Muon's iterations of Newton–Schulz.
      adjust_lr_fn: Muon's factor on lr by the shape of a matrix; ``"original"`` is the author's.
      calibrated: whether Muon's moment is ACMo's, m = g + momentum · ‖g‖ m/‖m‖, without ``nesterov``. With
        ``momentum=0.9`` and five times its ``lr``, matrices step as in `acmo.SpectralACMo`.
      adamw_lr_ratio: AdamW's lr as a multiple of ``lr``. With ``"original"`` it is about 0.01.
      betas, eps: of AdamW.

    Example:
      >>> import torch, acmo
      >>> from acmo.rivals import MuonAdamW
      >>> model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 2))
      >>> opt = MuonAdamW(acmo.param_groups(model, weight_decay=0.1, scopes=True))
      >>> model(torch.ones(1, 16)).square().sum().backward()
      >>> opt.step()
      >>> [sorted(opt.state[p]) for p in (model[0].weight, model[1].weight)]
      [['momentum_buffer', 'step'], ['exp_avg', 'exp_avg_sq', 'step']]

    Reference:
      Jordan et al., `Muon: An optimizer for hidden layers in neural networks
      <https://kellerjordan.github.io/posts/muon/>`_, 2024; Liu et al., `Muon is Scalable for LLM Training
      <https://arxiv.org/abs/2502.16982>`_, 2025
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        calibrated: bool = False,
        adamw_lr_ratio: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise RuntimeError(f"torch.optim.Muon needs torch 2.9 or newer, this is {torch.__version__}")
        super().__init__(params, {**constructor_options(locals()), "norm_scope": "auto", "spectral": None})

    def check(self, group: Group) -> None:
        """Check Muon's options too."""
        super().check(group)
        options.check_between("momentum", group["momentum"], 0.0, 1.0, open_high=True)
        options.check_one_of("adjust_lr_fn", group["adjust_lr_fn"], ("original", "match_rms_adamw"))
        options.check_flag("calibrated", group["calibrated"])
        options.check_at_least("adamw_lr_ratio", group["adamw_lr_ratio"])

    def update(self) -> None:
        """Take one step of both."""
        for group in self.param_groups:
            params = [p for p in params_with_grad(group) if p.numel() > 0]
            matrices = [p for p in params if is_spectral(group["norm_scope"], p.shape, group["spectral"])]
            rest = [p for p in params if all(p is not matrix for matrix in matrices)]
            step_muon(matrices, [self.advance_state(p, "momentum_buffer") for p in matrices], group)
            step_adamw(rest, [self._advance_adamw(p) for p in rest], group)

    def _advance_adamw(self, p: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[p]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)  # a tensor, which AdamW itself counts up
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


def step_muon(params: list[Tensor], states: list[dict[str, Any]], group: Group) -> None:
    """Take one step of Muon; a kernel is stepped as a matrix and copied back where that is no view of it."""
    if not params:
        return
    from torch.optim._muon import muon

    matrices = [p.flatten(1) for p in params]
    moments = [state["momentum_buffer"].flatten(1) for state in states]
    grads = [p.grad.flatten(1) for p in params if p.grad is not None]
    momentum, nesterov = group["momentum"], group["nesterov"]
    if group["calibrated"]:  # without momentum of its own, Muon's buffer is what it is given
        grads = [calibrate(g, m, momentum) for g, m in zip(grads, moments, strict=True)]
        momentum, nesterov = 0.0, False
    muon(
        matrices,
        grads,
        moments,
        lr=float(learning_rate(group)),
        weight_decay=group["weight_decay"],
        momentum=momentum,
        nesterov=nesterov,
        ns_coefficients=(3.4445, -4.7750, 2.0315),
        eps=1e-7,
        ns_steps=group["ns_steps"],
        adjust_lr_fn=group["adjust_lr_fn"],
        has_complex=False,
    )
    for p, state, matrix, moment in zip(params, states, matrices, moments, strict=True):
        for kept, stepped in ((p, matrix), (state["momentum_buffer"], moment)):
            if kept.data_ptr() != stepped.data_ptr():
                kept.copy_(stepped.view(kept.shape))


def calibrate(grad: Tensor, moment: Tensor, momentum: float) -> Tensor:
    """Return ACMo's moment, g + β‖g‖ m/‖m‖; g where the moment is 0."""
    length = moment.norm()
    return grad + torch.where(length > 0, momentum * grad.norm() / length, 0.0) * moment


def step_adamw(params: list[Tensor], states: list[dict[str, Any]], group: Group) -> None:
    """Take one step of AdamW, fused where torch can."""
    if not params:
        return
    beta1, beta2 = group["betas"]
    adamw(
        params,
        [p.grad for p in params if p.grad is not None],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [state["step"] for state in states],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=learning_rate(group) * group["adamw_lr_ratio"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
