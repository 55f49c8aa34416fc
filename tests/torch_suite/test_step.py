"""What a step does at the edges: without gradients, with zeros, with a closure, with parameters that come later."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from .problems import LeastSquares
from .registry import BACKENDS, EVERY_WAY, Case, optimizers


@optimizers(*EVERY_WAY)
def test_a_step_without_any_gradient_changes_nothing(case: Case):
    params = [torch.randn(2, 3) for _ in range(2)]
    before = [p.clone() for p in params]
    optimizer = case.build(params)
    assert optimizer.step(lambda: 1.0) == 1.0
    assert_close(params, before, rtol=0, atol=0)
    assert not any(isinstance(value, Tensor) and value.any() for p in params for value in optimizer.state[p].values())


@optimizers(*EVERY_WAY)
def test_a_step_with_zero_gradients_moves_no_parameter(case: Case):
    leaf = torch.randn(5, 1, requires_grad=True)
    param = leaf.clone() if case.backend == "differentiable" else leaf
    before = param.detach().clone()
    optimizer = case.build([param], weight_decay=0.0)  # a decay moves it, as it should
    for _ in range(2):
        param.grad = torch.zeros_like(param)
        optimizer.step()
        assert torch.equal(param, before)


@optimizers(*BACKENDS)
def test_a_parameter_without_gradient_stays_while_others_move(case: Case):
    problem = LeastSquares()
    lonely = nn.Parameter(torch.randn(3))
    before = lonely.detach().clone()
    optimizer = case.build([*problem.params, lonely])
    problem.train(optimizer, 3)
    assert torch.equal(lonely, before)
    assert not any(isinstance(value, Tensor) and value.any() for value in optimizer.state.get(lonely, {}).values())


@optimizers(*BACKENDS)
def test_a_step_leaves_gradients_as_they_are(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    for _ in range(3):
        problem.closure()
        grads = [p.grad for p in problem.params]
        before = [grad.clone() for grad in grads]
        optimizer.step()
        assert all(p.grad is grad for p, grad in zip(problem.params, grads, strict=True))
        assert_close(grads, before, rtol=0, atol=0)


@optimizers(*BACKENDS)
def test_closure_runs_once_with_autograd_and_returns_its_loss(case: Case):
    problem = LeastSquares()
    twin = problem.clone()
    losses = []

    def closure() -> Tensor:
        losses.append(problem.closure())
        return losses[-1]

    optimizer = case.build(problem.params)
    with torch.no_grad():
        returned = [optimizer.step(closure) for _ in range(3)]
    assert len(losses) == 3
    assert all(a is b for a, b in zip(returned, losses, strict=True))
    twin.train(case.build(twin.params), 3)
    assert_close(problem.params, twin.params, rtol=0, atol=0)


@optimizers(*BACKENDS)
def test_group_added_later_equals_one_without_gradient_so_far(case: Case):
    def run(added: bool) -> tuple[LeastSquares, nn.Parameter]:
        torch.manual_seed(3)
        problem, late = LeastSquares(), nn.Parameter(torch.randn(4, 2))
        group = {"params": [late], "lr": 0.02}
        optimizer = case.build([{"params": problem.params}] + ([] if added else [group]))
        problem.train(optimizer, 3)
        if added:
            optimizer.add_param_group(group)
        for _ in range(3):
            late.grad = torch.randn_like(late)
            problem.train(optimizer, 1)
        return problem, late

    (problem, late), (problem_waited, late_waited) = run(added=True), run(added=False)
    assert_close([*problem.params, late], [*problem_waited.params, late_waited], rtol=0, atol=0)


@optimizers(*BACKENDS)
def test_every_parameter_that_was_stepped_has_state(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 1)
    assert all(len(optimizer.state[p]) > 0 for p in problem.params)
