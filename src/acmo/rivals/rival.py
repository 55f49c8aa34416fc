"""The base class of the rivals: checked options, state, the closure, and gradients as the algorithms need them."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from acmo import options

TensorList = list[Tensor] | tuple[Tensor, ...]
Group = dict[str, Any]  # options of a parameter group
State = dict[str, Any]  # of one parameter


class Rival(Optimizer):
    """Base class: a subclass defines which options it checks (`check`) and what a step does (`update`)."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self.check(defaults)
        super().__init__(params, defaults)

    def check(self, group: Group) -> None:
        """Raise unless the options of a group are valid; the error names the option and its value."""
        options.check_at_least("lr", group["lr"])
        options.check_at_least("weight_decay", group["weight_decay"])
        if "eps" in group:
            options.check_at_least("eps", group["eps"])
        if "betas" in group:
            if len(group["betas"]) != 2:
                raise ValueError(f"betas must be a pair, got {group['betas']}")
            for i, beta in enumerate(group["betas"]):
                options.check_between(f"betas[{i}]", beta, 0.0, 1.0, open_high=True)

    def update(self) -> None:
        """Take one step. Autograd is off, and no gradient is sparse."""
        raise NotImplementedError

    def add_param_group(self, param_group: Group) -> None:
        """Add a group. Options that it does not set come from the constructor."""
        self.check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step and return what ``closure`` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:  # all groups first: a step that raises must change nothing
            for p in group["params"]:
                if p.grad is not None and p.grad.is_sparse:
                    raise RuntimeError(f"{type(self).__name__} does not support sparse gradients: make them dense")
        with torch.no_grad():
            self.update()
        return loss

    def advance_state(self, p: Tensor, *moments: str) -> State:
        """Count one more step of a parameter and return its state; moments that are missing start at 0."""
        state: State = self.state[p]
        state["step"] = state.get("step", 0) + 1  # a Python number: reading it needs no device sync
        for name in moments:
            if name not in state:
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state

    def update_group(
        self,
        group: Group,
        moments: Sequence[str],
        single: Callable[[Tensor, State, Group], None],
        multi: Callable[[Sequence[Tensor], Sequence[State], Group], None],
    ) -> None:
        """Take one step of a group, with ``single`` per tensor or ``multi`` per list of tensors."""
        params = params_with_grad(group)
        for p in params:
            self.advance_state(p, *moments)
        if wants_foreach(group, params):
            for same in split_by_device_and_dtype(params):
                multi(same, [self.state[p] for p in same], group)
        else:
            for p in params:
                single(p, self.state[p], group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as torch does, but copy it first: later steps do not change the given one."""
        super().load_state_dict({**state_dict, "state": copy.deepcopy(state_dict["state"])})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # options that an older state lacks come from the constructor
            for key, value in self.defaults.items():
                if key != "differentiable":  # torch has just set it
                    group.setdefault(key, value)


def constructor_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the options among the ``locals()`` of a constructor, so that it need not list its arguments twice."""
    return {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}


def params_with_grad(group: Group) -> list[Tensor]:
    """Return the parameters of a group that have a gradient."""
    return [p for p in group["params"] if p.grad is not None]


def learning_rate(group: Group) -> float | Tensor:
    """Return the lr of a group; a Tensor is made 0-dim."""
    lr: float | Tensor = group["lr"]
    return lr.reshape(()) if isinstance(lr, Tensor) else lr


def gradient(p: Tensor, group: Group) -> Tensor:
    """Return the gradient, negated for maximize, plus λθ for coupled decay. ``p.grad`` is not changed."""
    assert p.grad is not None
    g = as_real(p.grad)
    if group["maximize"]:
        g = -g
    return g.add(as_real(p), alpha=coupled_decay(group)) if coupled_decay(group) else g


def gradients(params: Sequence[Tensor], group: Group) -> TensorList:
    """Return `gradient` of every parameter, with at most one new list of tensors."""
    g: TensorList = [as_real(p.grad) for p in params if p.grad is not None]
    thetas = [as_real(p) for p in params]
    if group["maximize"]:
        g = torch._foreach_neg(g)
        if coupled_decay(group):
            torch._foreach_add_(g, thetas, alpha=coupled_decay(group))
    elif coupled_decay(group):
        g = torch._foreach_add(g, thetas, alpha=coupled_decay(group))
    return g


def coupled_decay(group: Group) -> float:
    """Return λ where λθ is added to the gradient, and 0 where decay is decoupled."""
    return 0.0 if group.get("decoupled_weight_decay") else group["weight_decay"]


def as_real(x: Tensor) -> Tensor:
    """View a complex tensor as pairs of reals; return a real one unchanged."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def wants_foreach(group: Group, params: Sequence[Tensor]) -> bool:
    """Return the group's choice; None means yes on GPUs, as in torch. On CPUs the foreach functions are loops."""
    if group["foreach"] is not None:
        return bool(group["foreach"])
    return all(p.device.type in ("cuda", "xpu") and type(p) in (Tensor, torch.nn.Parameter) for p in params)


def split_by_device_and_dtype(params: Sequence[Tensor]) -> list[list[Tensor]]:
    """Split the parameters into lists of one device and dtype each."""
    lists: dict[Any, list[Tensor]] = {}
    for p in params:
        lists.setdefault((p.device, p.dtype), []).append(p)
    return list(lists.values())
