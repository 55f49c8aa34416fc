"""Sparse (COO) gradients by row: only the rows that occur are updated, on every backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acmo import RowACMo
from tests.support.backends import Backend, every_backend

ROWS = [[3, 7, 3, 0], [7, 1, 7, 7], [9, 3, 9, 3]]  # not coalesced: some occur twice


def sparse_gradient(rows: list[int], generator: torch.Generator) -> Tensor:
    values = torch.randn(len(rows), 4, generator=generator)
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (10, 4), is_coalesced=False, check_invariants=True)


@every_backend
@pytest.mark.parametrize("options", [{}, {"momentum_dtype": torch.int8}, {"unit_step": False}], ids=str)
def test_rows_that_do_not_occur_keep_moment_and_value(options: dict[str, Any], backend: Backend):
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(10, 4, generator=generator))
    opt = RowACMo([p], lr=0.1, norm_scope="row", weight_decay=0.5, **options, **backend)
    for rows in ROWS:
        before = {key: x.clone() for key, x in opt.state[p].items()} if p in opt.state else {}
        theta = p.detach().clone()
        p.grad = sparse_gradient(rows, generator)
        assert not p.grad.is_coalesced()
        opt.step()
        idle = [r for r in range(10) if r not in rows]
        torch.testing.assert_close(p.detach()[idle], theta[idle] * (1 - 0.1 * 0.5), rtol=2e-7, atol=0)
        assert not (p.detach()[rows] == theta[rows]).any()
        for key in ("momentum_buffer", "momentum_scale"):
            if key in before:
                assert torch.equal(opt.state[p][key][idle], before[key][idle])


@every_backend
@pytest.mark.parametrize("scope", ["row", "column", "auto"])
def test_steps_are_those_of_the_dense_gradient_to_the_bit(scope: str, backend: Backend):
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(10, 4, generator=generator))
    q = nn.Parameter(p.detach().clone())
    one, other = (RowACMo([x], lr=0.1, norm_scope=scope, **backend) for x in (p, q))
    for rows in ROWS:
        p.grad = sparse_gradient(rows, generator)
        q.grad = p.grad.to_dense()
        one.step()
        other.step()
    assert torch.equal(p, q)
    assert p.grad is not None
    assert p.grad.is_sparse  # the user's gradient stays what it was


@every_backend
def test_entries_that_cancel_leave_their_row_alone(backend: Backend):
    p = nn.Parameter(torch.ones(5, 2))
    opt = RowACMo([p], lr=0.1, norm_scope="row", **backend)
    opposite = torch.tensor([[1.0, -2.0], [-1.0, 2.0], [1.0, 1.0]])
    p.grad = torch.sparse_coo_tensor(torch.tensor([[2, 2, 4]]), opposite, (5, 2), check_invariants=True)
    opt.step()
    assert (p.detach() == 1).all(1).tolist() == [True, True, True, True, False]
    assert opt.telemetry()["tensors"][0]["cos_min"] == pytest.approx(1.0)


@every_backend
def test_an_embedding_trains_with_sparse_gradients(backend: Backend):
    torch.manual_seed(0)
    tables = [nn.Embedding(30, 4, sparse=sparse) for sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    opts = [RowACMo(table.parameters(), lr=0.1, norm_scope="row", **backend) for table in tables]
    for _ in range(3):
        tokens = torch.randint(30, (6,))
        for table, opt in zip(tables, opts, strict=True):
            opt.zero_grad()
            table(tokens).square().sum().backward()
            opt.step()
    assert torch.equal(tables[0].weight, tables[1].weight)
