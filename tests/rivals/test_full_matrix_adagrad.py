"""Full-matrix Adagrad: invariances that the diagonal one lacks, cases with a closed form, and its limit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from acmo.rivals import FullMatrixAdagrad


def run(start: Tensor, gradients: Tensor, **options: float) -> Tensor:
    p = nn.Parameter(start.clone())
    optimizer = FullMatrixAdagrad([p], **options)
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


def test_same_gradient_t_times_gives_steps_alpha_over_root_t():
    g = torch.tensor([3.0, 4.0], dtype=torch.float64)
    moved = -run(torch.zeros_like(g), g.expand(9, 2), lr=0.5)
    assert_close(moved, 0.5 * sum(t**-0.5 for t in range(1, 10)) * g / 5, rtol=1e-10, atol=0)


def test_gradients_along_the_axes_make_it_adagrad():
    start = torch.randn(4, dtype=torch.float64)
    gradients = torch.randn(12, 1, dtype=torch.float64) * torch.eye(4, dtype=torch.float64).repeat(3, 1)
    p = nn.Parameter(start.clone())
    adagrad = torch.optim.Adagrad([p], lr=0.1, eps=1e-30)
    for g in gradients:
        p.grad = g.clone()
        adagrad.step()
    assert_close(run(start, gradients, lr=0.1), p.detach(), rtol=1e-10, atol=1e-12)


def test_a_rotation_of_the_problem_rotates_the_steps():
    start, gradients = torch.randn(5, dtype=torch.float64), torch.randn(20, 5, dtype=torch.float64)
    Q = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    assert_close(run(start @ Q.T, gradients @ Q.T, lr=0.1), run(start, gradients, lr=0.1) @ Q.T, rtol=1e-9, atol=1e-10)


def test_split_into_tensors_and_groups_does_not_matter():
    start, gradients = torch.randn(7, dtype=torch.float64), torch.randn(20, 7, dtype=torch.float64)
    cut = [nn.Parameter(x.clone()) for x in (start[:4].view(2, 2), start[4:5].view(()), start[5:])]
    optimizer = FullMatrixAdagrad([{"params": cut[:2]}, {"params": cut[2:]}], lr=0.1)
    for g in gradients:
        for p, part in zip(cut, (g[:4], g[4:5], g[5:]), strict=True):
            p.grad = part.reshape(p.shape).clone()
        optimizer.step()
    joined = torch.cat([p.detach().flatten() for p in cut])
    assert_close(joined, run(start, gradients, lr=0.1), rtol=1e-10, atol=1e-12)


def test_a_tensor_without_gradients_takes_no_part():
    start, gradients = torch.randn(3, dtype=torch.float64), torch.randn(10, 3, dtype=torch.float64)
    p, idle = nn.Parameter(start.clone()), nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = FullMatrixAdagrad([idle, p], lr=0.1)
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    assert_close(p.detach(), run(start, gradients, lr=0.1), rtol=1e-10, atol=1e-12)


def test_too_many_parameters_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"d = 3000 .*size_limit=2048"):
        FullMatrixAdagrad([nn.Parameter(torch.zeros(60, 50))])
    optimizer = FullMatrixAdagrad([nn.Parameter(torch.zeros(6))], size_limit=10)
    with pytest.raises(ValueError, match=r"d = 11 .*size_limit=10"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(5))]})
    assert len(optimizer.param_groups) == 1
