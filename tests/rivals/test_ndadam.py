"""ND-Adam: unit vectors, one second moment each, Adam for the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from acmo.rivals import NDAdam, vector_groups
from tests.support.rival_twins import assert_alike, twins


def norms(w: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    return w.detach().square().sum(axes).sqrt()


@pytest.mark.parametrize("axes", [(0,), (1,), (1, 2, 3), (-1,)], ids=str)
def test_vectors_keep_length_one_and_one_second_moment_each(axes: tuple[int, ...]):
    w = nn.Parameter(torch.randn(4, 3, 2, 5))
    optimizer = NDAdam([w], lr=0.3, vector_axes=axes)
    for _ in range(5):
        w.grad = 100 * torch.randn_like(w)
        optimizer.step()
        lengths = norms(w, axes)
        assert_close(lengths, torch.ones_like(lengths))
    assert optimizer.state[w]["exp_avg_sq"].numel() == lengths.numel()


def test_step_keeps_the_direction_of_the_gradient():
    """Adam's first step would be ± lr in every entry."""
    w = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64))
    optimizer = NDAdam([w], lr=0.1, vector_axes=(1,))
    w.grad = torch.tensor([[7.0, 3.0, 4.0]], dtype=torch.float64)  # 7 along w is projected off
    optimizer.step()
    expected = torch.tensor([[1.0, -0.06, -0.08]], dtype=torch.float64)
    assert_close(w.detach(), expected / expected.norm(), rtol=1e-8, atol=1e-8)


def test_a_gradient_along_the_vector_moves_nothing():
    w = nn.Parameter(torch.eye(3, dtype=torch.float64))
    optimizer = NDAdam([w], lr=0.5, vector_axes=(1,))
    w.grad = 3 * torch.eye(3, dtype=torch.float64)
    optimizer.step()
    assert torch.equal(w, torch.eye(3, dtype=torch.float64))


def test_the_scale_of_a_vectors_gradient_does_not_matter():
    x = torch.randn(4, 3, dtype=torch.float64)
    one, two = nn.Parameter(x.clone()), nn.Parameter(5 * x)
    optimizers = [NDAdam([p], lr=0.1, eps=0.0, vector_axes=(1,)) for p in (one, two)]
    scale = torch.tensor([[1e-3], [1.0], [10.0], [1e6]], dtype=torch.float64)
    for _ in range(10):
        one.grad = torch.randn_like(one)
        two.grad = scale * one.grad
        for optimizer in optimizers:
            optimizer.step()
        assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_parameters_without_vectors_get_torchs_adam():
    one, two = twins(4, 3)
    torchs = torch.optim.Adam([two], lr=0.01, weight_decay=0.1)
    assert_alike(NDAdam([one], lr=0.01, weight_decay=0.1), torchs, steps=30, rtol=1e-12)


def test_vector_groups_take_what_an_optimizer_takes():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))
    optimizer = NDAdam(vector_groups(model.named_parameters(), lr=0.01))
    seen = {name: group for group in optimizer.param_groups for name in group["param_names"]}
    assert seen["0.weight"]["vector_axes"] == (1, 2, 3)
    assert seen["3.weight"]["vector_axes"] == (1,)
    assert seen["3.weight"]["lr"] == pytest.approx(0.5)
    assert all(seen[name]["vector_axes"] is None and seen[name]["lr"] == 0.01 for name in ("0.bias", "1.weight"))
    groups = vector_groups([{"params": model[3].parameters(), "lr": 0.1, "weight_decay": 0.2}], lr=0.01)
    assert [(g["lr"], g["weight_decay"], len(g["params"])) for g in groups] == [(5.0, 0.2, 1), (0.1, 0.2, 1)]


def test_missing_axes_and_complex_vectors_are_errors():
    with pytest.raises(ValueError, match=r"vector_axes=\(1,\).*shape \(3,\)"):
        NDAdam([nn.Parameter(torch.zeros(3))], vector_axes=(1,))
    with pytest.raises(ValueError, match=r"vector_axes=\(0,\).*complex64"):
        NDAdam([nn.Parameter(torch.zeros(3, dtype=torch.complex64))], vector_axes=(0,))
    with pytest.raises(TypeError, match=r"vector_axes.*1"):
        NDAdam([nn.Parameter(torch.zeros(3))], vector_axes=1)
