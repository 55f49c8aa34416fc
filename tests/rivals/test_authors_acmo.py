"""The authors' code as a contender: the same steps as their two scripts, whatever a scheduler does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from acmo.rivals import REGISTRY, AuthorsACMo


def run_script(params: list[Tensor], steps: list[list[Tensor]], rates: list[float], s: float, whole: bool) -> None:
    """Their update, written as their code does it."""
    moments = [torch.zeros_like(p) for p in params]
    for grads, lr in zip(steps, rates, strict=True):
        norms = [(g.norm(), m.norm()) for g, m in zip(grads, moments, strict=True)]
        if whole:
            total = tuple(torch.stack(column).norm() for column in zip(*norms, strict=True))
            norms = [(total[0], total[1])] * len(params)
        for p, m, g, (of_g, of_m) in zip(params, moments, grads, norms, strict=True):
            m.mul_(of_g / (of_m + 1e-8)).add_(g).mul_(s)
            p.sub_(lr * m)


@pytest.mark.parametrize(("name", "s", "whole"), [("acmo-authors", 0.5, False), ("acmo-authors-nmt", 0.9, True)])
def test_the_contender_steps_as_the_script_does(name: str, s: float, whole: bool):
    torch.manual_seed(0)
    shapes = [(4, 3), (7,)]
    theirs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    ours = [nn.Parameter(p.clone()) for p in theirs]
    steps = [[torch.randn(shape, dtype=torch.float64) for shape in shapes] for _ in range(20)]
    rates = [0.1 * 0.5 ** (t // 5) for t in range(20)]
    run_script(theirs, steps, rates, s, whole)
    optimizer = REGISTRY[name].build(ours, lr=0.1)
    for grads, lr in zip(steps, rates, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        for p, g in zip(ours, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.detach(), other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factor", [0.0, 1.5])
def test_a_factor_outside_of_its_range_is_an_error(factor: float):
    with pytest.raises(ValueError, match=f"factor.*{factor}"):
        AuthorsACMo([nn.Parameter(torch.ones(2))], factor=factor)
