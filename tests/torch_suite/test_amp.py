"""With a GradScaler: scaled gradients train as unscaled ones, and a step with an infinite one does not happen."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from .problems import LeastSquares
from .registry import BACKENDS, Case, optimizers

SCALE = 1024.0


@optimizers(*BACKENDS)
def test_unscaling_by_itself_is_announced_to_a_grad_scaler(case: Case):
    assert case.build(LeastSquares().params)._step_supports_amp_scaling is True


def assert_steps_without_inf_alone(case: Case, scale: float | None, found_inf: tuple[float, ...]) -> None:
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    for found in found_inf:
        moves = not found
        before = problem.clone()
        steps = [float(optimizer.state[p].get("step", 0)) for p in problem.params]
        problem.closure()
        optimizer.grad_scale = None if scale is None else torch.full((1,), scale)
        optimizer.found_inf = torch.tensor(found)
        optimizer.step()
        assert problem.weight.isfinite().all()
        assert torch.equal(problem.weight, before.weight) is not moves
        for p, step in zip(problem.params, steps, strict=True):
            assert float(optimizer.state[p].get("step", step + moves)) == step + moves


with_and_without_scale = pytest.mark.parametrize("scale", [None, 1.0], ids=["without scale", "with scale"])


@with_and_without_scale
@optimizers(*BACKENDS)
def test_unscaling_by_itself_skips_a_step_with_an_inf(case: Case, scale: float | None):
    assert_steps_without_inf_alone(case, scale, found_inf=(0.0, 1.0, 0.0))


@with_and_without_scale
@optimizers(*BACKENDS)
def test_unscaling_by_itself_survives_an_inf_in_the_first_step(case: Case, scale: float | None):
    assert_steps_without_inf_alone(case, scale, found_inf=(1.0, 0.0))


@optimizers(*BACKENDS)
def test_unscaling_by_itself_divides_gradients_by_their_scale(case: Case):
    problem = LeastSquares()
    twin = problem.clone()
    optimizer, plain = case.build(problem.params), case.build(twin.params)
    for _ in range(5):
        problem.closure()
        for p in problem.params:
            p.grad.mul_(SCALE)
        scaled = [p.grad.clone() for p in problem.params]
        optimizer.grad_scale, optimizer.found_inf = torch.full((1,), SCALE), torch.tensor(0.0)
        optimizer.step()
        twin.train(plain, 1)
        assert_close(problem.params, twin.params)
        if case.entry.spares_gradients:
            assert_close([p.grad for p in problem.params], scaled, rtol=0, atol=0)


@optimizers(*BACKENDS)
def test_a_training_with_grad_scaler_equals_one_without(case: Case):
    """Its third step meets an infinite gradient: it is skipped, and the scale halved."""
    problem = LeastSquares()
    twin = problem.clone()
    optimizer, plain = case.build(problem.params), case.build(twin.params)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for step in range(6):
        optimizer.zero_grad()
        loss = (problem.weight.mv(problem.x) + problem.bias).pow(2).sum()
        scaler.scale(loss).backward()
        if step == 2:
            problem.bias.grad[0] = torch.inf
        else:
            twin.train(plain, 1)
        scaler.step(optimizer)
        scaler.update()
        assert_close(problem.params, twin.params)
    assert scaler.get_scale() == SCALE / 2
