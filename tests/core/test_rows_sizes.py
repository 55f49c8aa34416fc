"""Many rows and long rows: the limits of grids, of caches and of float32 sums."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from acmo import RowACMo
from tests.support.backends import BACKENDS, Backend, every_backend


def expected_after_two(theta: Tensor, grads: list[Tensor], dim: int | None) -> Tensor:
    """Two unit steps at lr 0.1 and β = 0.9 in float64: the first is along g, the second along g + 0.9 ‖g‖ m/‖m‖."""
    theta, (first, second) = theta.double(), [g.double() for g in grads]

    def unit(x: Tensor) -> Tensor:
        return x / (x.norm() if dim is None else x.norm(dim=dim, keepdim=True))

    entries = theta.numel() if dim is None else theta.shape[dim]
    length = second.norm() if dim is None else second.norm(dim=dim, keepdim=True)
    last = second + 0.9 * length * unit(first)
    return theta - 0.1 * entries**0.5 * (unit(first) + unit(last))


def step_twice(p: nn.Parameter, grads: list[Tensor], backend: Backend, scope: str) -> None:
    opt = RowACMo([p], lr=0.1, norm_scope=scope, **backend)
    for g in grads:
        p.grad = g
        opt.step()


@every_backend
@pytest.mark.parametrize(("shape", "scope", "dim"), [((70_001, 3), "row", 1), ((3, 70_001), "column", 0)])
def test_more_rows_than_2_to_the_16(shape: tuple[int, int], scope: str, dim: int, backend: Backend):
    generator = torch.Generator().manual_seed(0)
    start, *grads = (torch.randn(shape, generator=generator) for _ in range(3))
    p = nn.Parameter(start.clone())
    step_twice(p, grads, backend, scope)
    torch.testing.assert_close(p.detach().double(), expected_after_two(start, grads, dim), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1, 20_000_000), (20_000_000,), (20_000_000, 1)], ids=str)
def test_row_of_20_million_entries(shape: tuple[int, ...], backend: Backend):
    generator = torch.Generator().manual_seed(0)
    start = torch.zeros(shape)
    grads = [torch.rand(shape, generator=generator) for _ in range(2)]  # of one sign: float32 sums are off by 1e-3
    p = nn.Parameter(start.clone())
    step_twice(p, grads, backend, "row")
    torch.testing.assert_close(p.detach().double(), expected_after_two(start, grads, None), rtol=2e-6, atol=1e-7)
