"""The loss goes the right way: in every way of execution, with schedulers, with options of the groups' own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .problems import LeastSquares
from .registry import BACKENDS, Case, optimizers

STEPS = 20
SCHEDULED_STEPS = 8  # past every warm-up; each scheduler of the info takes them


def assert_right_direction(case: Case, problem: LeastSquares, before: Tensor) -> None:
    after = problem.closure()
    assert (after > before) if case.kwargs().get("maximize", False) else (after < before)


@optimizers(*BACKENDS)
def test_the_loss_goes_the_right_direction(case: Case):
    problem = LeastSquares()
    before = problem.closure()
    problem.train(case.build(problem.params), STEPS)
    assert_right_direction(case, problem, before)


@optimizers(*BACKENDS)
def test_the_loss_goes_the_right_direction_under_every_scheduler(case: Case):
    for constructors in case.info.scheduler_inputs:
        problem = LeastSquares()
        before = problem.closure()
        optimizer = case.build(problem.params)
        problem.train(optimizer, SCHEDULED_STEPS, [constructor(optimizer) for constructor in constructors])
        assert_right_direction(case, problem, before)


@optimizers(*BACKENDS)
def test_strided_parameters_are_trained_as_contiguous_ones(case: Case):
    """Under the info's first scheduler."""
    strided = LeastSquares(contiguous=False)
    contiguous = strided.clone()
    before = strided.closure()
    for problem in (strided, contiguous):
        optimizer = case.build(problem.params)
        schedulers = [constructor(optimizer) for constructor in case.info.scheduler_inputs[0]]
        problem.train(optimizer, SCHEDULED_STEPS, schedulers)
    assert_right_direction(case, strided, before)
    torch.testing.assert_close(strided.params, contiguous.params)


@optimizers(*BACKENDS, configurations=1)
def test_groups_with_their_own_lr_descend_under_every_scheduler(case: Case):
    for constructors in case.info.scheduler_inputs:
        problem = LeastSquares()
        before = problem.closure()
        optimizer = case.build([{"params": [problem.weight]}, {"params": [problem.bias], "lr": 0.01}])
        problem.train(optimizer, SCHEDULED_STEPS, [constructor(optimizer) for constructor in constructors])
        assert_right_direction(case, problem, before)


@optimizers(*BACKENDS)
def test_a_tensor_lr_equals_the_same_float(case: Case):
    problem = LeastSquares(dtype=torch.float64)
    twin = problem.clone()
    lr = torch.tensor(0.01, dtype=torch.float64)
    problem.train(case.build(problem.params, lr=lr), 5)
    twin.train(case.build(twin.params, lr=0.01), 5)
    torch.testing.assert_close(problem.params, twin.params, rtol=1e-12, atol=1e-12)
    assert lr == 0.01


@optimizers(*BACKENDS)
def test_tensor_lr_filled_with_a_new_value_takes_effect(case: Case):
    problem = LeastSquares()
    lr = torch.tensor(0.01)
    optimizer = case.build(problem.params, lr=lr)
    problem.train(optimizer, 2)
    before = problem.clone()
    lr.fill_(0.0)
    problem.train(optimizer, 2)
    torch.testing.assert_close(problem.params, before.params, rtol=0, atol=0)


@optimizers(*BACKENDS)
def test_a_group_without_lr_stands_still_while_the_other_trains(case: Case):
    problem = LeastSquares()
    before = problem.closure()
    still = nn.Parameter(torch.randn(2))
    start = still.detach().clone()
    lr = case.kwargs().get("lr", 1e-3)
    optimizer = case.build([{"params": problem.params, "lr": lr}, {"params": [still]}], lr=1e-28)
    for _ in range(STEPS):
        problem.closure()
        still.grad = torch.rand_like(still)
        optimizer.step()
    assert_right_direction(case, problem, before)
    assert torch.equal(still, start)


@optimizers(*BACKENDS)
def test_groups_with_and_without_decay_both_descend(case: Case):
    problem = LeastSquares()
    before = problem.closure()
    groups = [{"params": [problem.weight], "weight_decay": 0.1}, {"params": [problem.bias], "weight_decay": 0.0}]
    problem.train(case.build(groups), STEPS)
    assert_right_direction(case, problem, before)


@optimizers(*BACKENDS)
def test_weight_decay_of_a_group_acts_on_that_group_alone(case: Case):
    """With gradients of zero nothing but the decay moves a parameter."""
    plain, decayed = (nn.Parameter(torch.ones(3)) for _ in range(2))
    groups = [{"params": [plain], "weight_decay": 0.0}, {"params": [decayed], "weight_decay": 0.5}]
    optimizer: Optimizer = case.build(groups, maximize=False)
    for _ in range(3):
        plain.grad, decayed.grad = torch.zeros(3), torch.zeros(3)
        optimizer.step()
    assert torch.equal(plain, torch.ones(3))
    assert (decayed < 1.0).all()
    assert (decayed > 0.0).all()
