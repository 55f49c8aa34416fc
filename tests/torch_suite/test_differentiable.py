"""With `differentiable=True` autograd goes through a step, from the new parameter and state to the old."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import gradcheck

from .registry import Case, optimizers


@optimizers("differentiable")
def test_step_is_differentiable_in_param_gradient_and_state(case: Case):
    def step(param: Tensor, grad: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        param = param.clone()
        param.grad = grad
        optimizer = case.build([param])
        names = dict(zip(moments, (s.clone() for s in state), strict=True))
        optimizer.state[param] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in rest.items()} | names
        optimizer.step()
        return param, *(optimizer.state[param][name] for name in names)

    # Two plain steps make a state as it is met in the middle of a training.
    start = torch.randn(4, dtype=torch.float64, requires_grad=True)
    plain = case.build([start], "reference")
    for _ in range(2):
        start.grad = torch.randn_like(start)
        plain.step()
    state = plain.state[start]
    moments = [name for name, value in state.items() if isinstance(value, Tensor) and value.shape == start.shape]
    rest = {name: value for name, value in state.items() if name not in moments}
    inputs = [start.detach(), torch.randn_like(start), *(state[name].detach() for name in moments)]
    assert gradcheck(step, [t.clone().requires_grad_() for t in inputs])
