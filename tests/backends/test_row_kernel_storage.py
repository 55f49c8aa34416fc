"""What a step by row of the C kernel stores: int8 moments, and bfloat16 parameters rounded stochastically."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from acmo import native
from acmo.rounding import rounding_bits, rounding_seed
from tests.support import row_oracle
from tests.support.row_kernel_steps import (
    NUMBERS,
    SCOPES,
    assert_close,
    assert_report,
    bits,
    double,
    normal,
    run,
)
from tests.support.row_oracle import Numbers

pytestmark = pytest.mark.skipif(native.kernel() is None, reason=f"no kernel: {native.why_missing()}")

INT8_SHAPES = [(3, 1), (1, 7), (5, 4), (130, 16), (9, 27)]
LARGE_INT8_SHAPES = {
    "row": [(7, 2049), (3, 70001)],
    "column": [(1100, 64), (2, 5000)],
    "whole": [(1100, 64), (2, 70001)],
}


@pytest.mark.slow
@pytest.mark.combinations
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("p_dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("numbers", [NUMBERS["plain"], NUMBERS["coupled"]], ids=["plain", "coupled"])
def test_int8_moment_is_dequantised_and_quantised(scope: str, p_dtype: torch.dtype, numbers: Numbers) -> None:
    for shape in INT8_SHAPES + LARGE_INT8_SHAPES[scope]:
        p, g = normal(shape, 0, p_dtype), normal(shape, 1, p_dtype)
        q, s = row_oracle.quantise(double(normal(shape, 2)) * np.linspace(0.1, 9, shape[0])[:, None])
        q, scale = torch.from_numpy(q), torch.from_numpy(s)
        m = (q.float() * scale[:, None]).double().numpy()
        before_p = double(p).copy()
        want = row_oracle.step(before_p, m, double(g), scope, numbers, double=p_dtype == torch.float64)
        got = run(p, q, g, scope, numbers, scale=scale)
        assert_report(got, want)
        want_q, want_scale = row_oracle.quantise(want.m)
        np.testing.assert_allclose(scale.numpy(), want_scale, rtol=1e-4)
        # Rounding of m' may turn a tie: at most one unit, and rarely.
        difference = np.abs(q.numpy().astype(int) - want_q)
        assert difference.max() <= 1
        assert (difference > 0).mean() <= 0.01 or difference.sum() <= 2
        step = np.abs(want.theta - numbers.kappa * before_p).max()
        assert_close(p, want.theta, 1e-5, step + np.abs(before_p))


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("shape", [(30, 20), (400, 300), (2, 70001)])
def test_int8_rows_that_take_no_part_keep_their_bytes(scope: str, shape: tuple[int, int]) -> None:
    q, s = row_oracle.quantise(double(normal(shape, 2)))
    q, scale = torch.from_numpy(q), torch.from_numpy(s)
    before_q, before_scale = q.clone(), scale.clone()
    p = normal(shape, 0)
    run(p, q, torch.zeros(shape), scope, scale=scale)
    g = torch.zeros(shape)
    g[0, 0] = math.nan
    run(p, q, g, scope, scale=scale)
    assert torch.equal(q, before_q)
    assert torch.equal(scale, before_scale)


@pytest.mark.parametrize("exponent", [-44, -38, -30, 30])
def test_int8_scale_of_extreme_rows_does_not_wrap(exponent: int) -> None:
    g = normal((4, 50), 1).sign() * 10.0**exponent
    q, scale = torch.zeros(4, 50, dtype=torch.int8), torch.zeros(4)
    run(normal((4, 50), 0), q, g, scale=scale)
    assert torch.equal(q.sign().float(), g.sign()) or (scale == 0).all()  # 1e-44 / 127 is 0 as a float
    assert q.abs().max() <= 127


@pytest.mark.slow
@pytest.mark.combinations
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("shape", [(40, 33), (1100, 64), (2, 70001)])
@pytest.mark.parametrize("m_dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_stochastic_rounding_adds_the_documented_bits(scope: str, shape: tuple[int, int], m_dtype: torch.dtype) -> None:
    p, m, g = normal(shape, 0, torch.bfloat16), normal(shape, 1, m_dtype), normal(shape, 2, torch.bfloat16)
    wide_p, wide_m = p.float(), m.clone()
    run(wide_p, wide_m, g.float(), scope)
    seed, index = int(rounding_seed(12, 3)), 2**32 - 100
    run(p, m, g, scope, seed=seed, first_index=index)
    random = rounding_bits(torch.arange(index, index + p.numel()), seed).view(shape)
    want = (wide_p.view(torch.int32).long() + random).to(torch.int32) >> 16
    assert torch.equal(p.view(torch.int16), want.to(torch.int16))
    assert random[0, 0] == row_oracle.random_bits(index, seed)
    assert bits(m) == bits(wide_m)


def test_stochastic_rounding_is_unbiased_and_leaves_exact_values() -> None:
    n = 2**18
    theta = torch.full((1, n), 1 + 2**-7 * 0.3)
    random = rounding_bits(torch.arange(n), rounding_seed(1, 0))
    up = ((theta.view(torch.int32).long() + random) >> 16) & 1
    assert up.double().mean().item() == pytest.approx(0.3, abs=5 / math.sqrt(n))
    p = normal((4, 100), 0, torch.bfloat16)
    before = p.clone()
    run(p, torch.zeros(4, 100), torch.zeros(4, 100, dtype=torch.bfloat16), seed=5)
    assert torch.equal(p, before)
