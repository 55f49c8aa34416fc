"""Steps of the C kernel by row and column on random matrices, compared with the NumPy oracle."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor

from acmo.backends import row_kernel
from acmo.backends.row_kernel import RowNorms, RowNumbers, RowTensor, step_rows
from acmo.native import DTYPE_CODES
from tests.support import row_oracle
from tests.support.row_oracle import Numbers

SCOPES = {"row": row_kernel.ROW, "column": row_kernel.COLUMN, "whole": row_kernel.WHOLE}
DTYPES = list(DTYPE_CODES)
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
# Full and broken lanes, groups of many rows, groups of one long row.
SHAPES = [(1, 1), (3, 1), (1, 7), (5, 4), (130, 16), (9, 27), (40, 33), (3, 1000), (300, 3), (7, 2049), (2, 5000)]
# What takes two passes, or several blocks.
LARGE_SHAPES = {"row": [(2, 70001), (257, 300)], "column": [(1100, 64), (257, 300), (20000, 5)], "whole": [(1100, 64)]}
NUMBERS = {
    "plain": Numbers(),
    "delta": Numbers(delta=0.3, alpha=0.01),
    "coupled": Numbers(s=0.7, coupled_decay=0.05, delta=1e-8),
    "decoupled": Numbers(kappa=0.99),
    "maximize": Numbers(s=-1.0, kappa=0.99),
}


def normal(shape: tuple[int, int], seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def describe(
    p: Tensor, m: Tensor, g: Tensor, scope: str = "row", numbers: Numbers | None = None, **options: object
) -> RowTensor:
    """A RowTensor of a matrix, or of several dimensions flattened to one."""
    rows, cols = p.shape[0], math.prod(p.shape[1:])
    n = {"row": cols, "column": rows, "whole": rows * cols}[scope]
    x = RowNumbers(*astuple(numbers or Numbers()))
    return RowTensor(p, m, g, rows, cols, SCOPES[scope], x, n, **options)


def run(
    p: Tensor, m: Tensor, g: Tensor, scope: str = "row", numbers: Numbers | None = None, **options: object
) -> RowNorms:
    return step_rows([describe(p, m, g, scope, numbers, **options)])


def double(x: Tensor) -> np.ndarray:
    return x.double().numpy()


def bits(x: Tensor) -> bytes:
    return x.view(torch.uint8).numpy().tobytes() if x.numel() else b""


def assert_close(got: Tensor, want: np.ndarray, arithmetic: float, term: np.ndarray | float) -> None:
    """One rounding to the dtype, and those of the arithmetic on terms of that size; equal where not finite."""
    allowed = (
        np.abs(want) * EPS[got.dtype] + arithmetic * (np.abs(want) + term) + 2.0**-24 * (got.dtype == torch.float16)
    )
    have, finite = double(got), np.isfinite(want)
    assert np.array_equal(np.isfinite(have), finite)
    assert (np.abs(have[finite] - want[finite]) <= np.broadcast_to(allowed, want.shape)[finite]).all()


def assert_step(p: Tensor, m: Tensor, g: Tensor, scope: str, numbers: Numbers, **options: bool) -> RowNorms:
    """Step, and compare θ, m and the report with the oracle's."""
    is_double = torch.float64 in (p.dtype, m.dtype)
    oracle_options = {"unit": options.get("unit_step", True), "propagate": options.get("propagate", False)}
    want = row_oracle.step(double(p), double(m), double(g), scope, numbers, double=is_double, **oracle_options)
    before_p, before_g = double(p).copy(), g.clone()
    got = run(p, m, g, scope, numbers, **options)
    arithmetic = 4096 * EPS[torch.float64] if is_double else 64 * EPS[torch.float32]
    # m's error is relative to the terms g and β̂m, which may cancel; that of θ also to the step.
    axis = {"row": 1, "column": 0}.get(scope)
    terms = [np.abs(np.nan_to_num(x, posinf=0, neginf=0)) for x in (want.m, double(g))]
    largest = sum(x.max(axis=axis, keepdims=True, initial=0.0) for x in terms)
    step = np.abs(np.nan_to_num(want.theta, posinf=0, neginf=0) - numbers.kappa * before_p).max(initial=0.0)
    assert_close(m, want.m, arithmetic, largest)
    assert_close(p, want.theta, arithmetic, step + np.abs(before_p))
    assert torch.equal(g.isnan(), before_g.isnan())
    assert torch.equal(g[~g.isnan()], before_g[~g.isnan()])
    assert_report(got, want)
    return got


def assert_report(got: RowNorms, want: row_oracle.Outcome) -> None:
    assert [got.rows.item(), got.took_part.item(), got.skipped.item()] == [want.rows, want.took_part, want.skipped]
    for name in ("raw_grad_sq", "grad_sq", "moment_sq", "new_moment_sq"):
        assert getattr(got, name).item() == pytest.approx(getattr(want, name), rel=1e-4, nan_ok=True), name
    assert got.cos_sum.item() == pytest.approx(sum(want.cosines), rel=1e-4, abs=1e-4, nan_ok=True)
    if want.cosines:
        assert got.cos_min.item() == pytest.approx(np.min(want.cosines), abs=1e-4, nan_ok=True)
    else:
        assert got.cos_min.item() == math.inf
