"""What the rivals share: options that are checked in every group, a closure, gradients as the algorithms see them."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from acmo import checks

TensorList = list[Tensor] | tuple[Tensor, ...]
Group = dict[str, Any]
State = dict[str, Any]


class Rival(Optimizer):
    """An optimizer whose subclass says what it checks (`check`) and what a step does (`update`)."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self.check(defaults)
        super().__init__(params, defaults)

    def check(self, group: dict[str, Any]) -> None:
        """Raise, naming argument and value, unless a group's options are valid."""
        checks.at_least("lr", group["lr"])
        checks.at_least("weight_decay", group["weight_decay"])
        if "eps" in group:
            checks.at_least("eps", group["eps"])
        if "betas" in group:
            if len(group["betas"]) != 2:
                raise ValueError(f"betas must be a pair, got {group['betas']}")
            for i, beta in enumerate(group["betas"]):
                checks.between(f"betas[{i}]", beta, 0.0, 1.0, open_high=True)

    def update(self) -> None:
        """Take one step with the gradients that are there; autograd is off, no gradient is sparse."""
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set comes from the constructor."""
        self.check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; returns what ``closure`` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:  # all of them first: a step that is refused must change nothing
            for p in group["params"]:
                if p.grad is not None and p.grad.is_sparse:
                    raise RuntimeError(f"{type(self).__name__} does not support sparse gradients: make them dense")
        with torch.no_grad():
            self.update()
        return loss

    def begin(self, p: Tensor, *moments: str) -> dict[str, Any]:
        """The state of a parameter that takes part in this step: its count, one up, and moments that start at 0."""
        state: dict[str, Any] = self.state[p]
        state["step"] = state.get("step", 0) + 1  # a number, so that no device has to be asked for it
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
        """One step of a group, tensor by tensor or list by list."""
        params = stepped(group)
        for p in params:
            self.begin(p, *moments)
        if wants_foreach(group, params):
            for same in alike(params):
                multi(same, [self.state[p] for p in same], group)
        else:
            for p in params:
                single(p, self.state[p], group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but the state is copied: the one that was given does not change as this optimizer goes on."""
        super().load_state_dict({**state_dict, "state": copy.deepcopy(state_dict["state"])})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # what an older state lacks comes from the constructor
            for key, value in self.defaults.items():
                if key != "differentiable":  # which torch has put there just now
                    group.setdefault(key, value)


def options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The defaults of a constructor that calls this with its ``locals()``: each argument is written once."""
    return {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}


def stepped(group: dict[str, Any]) -> list[Tensor]:
    """The parameters of a group that have a gradient."""
    return [p for p in group["params"] if p.grad is not None]


def rate(group: dict[str, Any]) -> float | Tensor:
    """The group's lr, 0-dim where it is a Tensor."""
    lr: float | Tensor = group["lr"]
    return lr.reshape(()) if isinstance(lr, Tensor) else lr


def gradient(p: Tensor, group: dict[str, Any]) -> Tensor:
    """The gradient as the algorithms see it: −g when maximize, plus λθ where decay is coupled; p.grad stays."""
    assert p.grad is not None
    g = real(p.grad)
    if group["maximize"]:
        g = -g
    return g.add(real(p), alpha=coupled(group)) if coupled(group) else g


def gradients(params: Sequence[Tensor], group: dict[str, Any]) -> TensorList:
    """`gradient` of a list, in at most one new list."""
    g: TensorList = [real(p.grad) for p in params if p.grad is not None]
    thetas = [real(p) for p in params]
    if group["maximize"]:
        g = torch._foreach_neg(g)
        if coupled(group):
            torch._foreach_add_(g, thetas, alpha=coupled(group))
    elif coupled(group):
        g = torch._foreach_add(g, thetas, alpha=coupled(group))
    return g


def coupled(group: dict[str, Any]) -> float:
    """The λ that is added to the gradient."""
    return 0.0 if group.get("decoupled_weight_decay") else group["weight_decay"]


def real(x: Tensor) -> Tensor:
    """A complex tensor as pairs of reals; others as they are."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def wants_foreach(group: dict[str, Any], params: Sequence[Tensor]) -> bool:
    """As asked for; undecided, where it pays: on GPUs, as torch has it. On CPUs the foreach functions are loops."""
    if group["foreach"] is not None:
        return bool(group["foreach"])
    return all(p.device.type in ("cuda", "xpu") and type(p) in (Tensor, torch.nn.Parameter) for p in params)


def alike(params: Sequence[Tensor]) -> list[list[Tensor]]:
    """The parameters in lists of one device and dtype each."""
    lists: dict[Any, list[Tensor]] = {}
    for p in params:
        lists.setdefault((p.device, p.dtype), []).append(p)
    return list(lists.values())
