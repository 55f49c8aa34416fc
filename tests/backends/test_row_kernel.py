"""The C kernel's steps by row and column against a NumPy oracle: values, reports, exceptions."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acmo import native
from acmo.backends.row_kernel import RowNumbers, step_rows
from tests.support import row_oracle
from tests.support.row_kernel_steps import (
    DTYPES,
    LARGE_SHAPES,
    NUMBERS,
    SCOPES,
    SHAPES,
    assert_close,
    assert_step,
    describe,
    double,
    normal,
    run,
)
from tests.support.row_oracle import Numbers

pytestmark = pytest.mark.skipif(native.kernel() is None, reason=f"no kernel: {native.why_missing()}")


@pytest.mark.slow
@pytest.mark.combinations
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("unit_step", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_is_the_oracle_for_all_shapes(scope: str, numbers: Numbers, unit_step: bool, dtype: torch.dtype) -> None:
    for shape in SHAPES + (LARGE_SHAPES[scope] if numbers in (NUMBERS["plain"], NUMBERS["coupled"]) else []):
        p, m, g = (normal(shape, seed, dtype) for seed in range(3))
        if shape[0] > 2 and shape[1] > 2:
            m[1] = 0
            g[2] = 0
            g[:, 1] = 0
        assert_step(p, m, g, scope, numbers, unit_step=unit_step)


@pytest.mark.slow
@pytest.mark.combinations
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("p_dtype", DTYPES)
@pytest.mark.parametrize("m_dtype", DTYPES)
def test_step_is_the_oracle_for_all_dtypes(scope: str, p_dtype: torch.dtype, m_dtype: torch.dtype) -> None:
    for numbers in (NUMBERS["coupled"], NUMBERS["decoupled"]):
        for shape in [(5, 4), (40, 33), (7, 2049 if scope == "row" else 50), *LARGE_SHAPES[scope][:1]]:
            p, g = normal(shape, 0, p_dtype), normal(shape, 1, p_dtype)
            assert_step(p, normal(shape, 2, m_dtype), g, scope, numbers)


@pytest.mark.slow
def test_more_rows_than_two_to_the_sixteen_step() -> None:
    assert_step(*(normal((70000, 3), seed) for seed in range(3)), "row", Numbers(delta=1e-8))


@pytest.mark.parametrize("scope", SCOPES)
def test_four_steps_stay_with_the_oracle(scope: str) -> None:
    numbers = Numbers(beta=0.95, kappa=0.999)
    p, m = normal((50, 40), 0), torch.zeros(50, 40)
    for seed in range(1, 5):
        assert_step(p, m, normal((50, 40), seed), scope, numbers)


@pytest.mark.parametrize("scope", ["row", "column"])
@pytest.mark.parametrize("shape", [(40, 30), (400, 300), (3, 2200)])
@pytest.mark.parametrize("propagate", [False, True])
def test_nonfinite_row_is_skipped_alone_or_propagates(scope: str, shape: tuple[int, int], propagate: bool) -> None:
    p, m, g = (normal(shape, seed) for seed in range(3))
    g[1, 1], g[2, 0] = math.nan, math.inf
    before = p.clone(), m.clone()
    got = assert_step(p, m, g, scope, NUMBERS["decoupled"], propagate=propagate)
    assert got.skipped.item() == (0 if propagate else 2)
    if not propagate:
        rows = (slice(1, 3), slice(None)) if scope == "row" else (slice(None), slice(0, 2))
        assert torch.equal(p[rows], before[0][rows])
        assert torch.equal(m[rows], before[1][rows])


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("shape", [(30, 20), (400, 300), (1, 70001)])
def test_zero_gradient_takes_no_part_but_decays(scope: str, shape: tuple[int, int]) -> None:
    p, m = normal(shape, 0), normal(shape, 1)
    before_p, before_m = p.clone(), m.clone()
    got = run(p, m, torch.zeros(shape), scope, Numbers(coupled_decay=0.5, kappa=0.5))
    assert torch.equal(p, before_p * 0.5)
    assert torch.equal(m, before_m)
    assert got.took_part.item() == 0
    assert got.cos_min.item() == math.inf


@pytest.mark.parametrize("scope", ["row", "column"])
@pytest.mark.parametrize("exponent", [-30, 30])
def test_extreme_rows_step_as_far_as_any_other(scope: str, exponent: int) -> None:
    p, m, g = (normal((60, 50), seed) for seed in range(3))
    axis = (slice(3, 9), slice(None)) if scope == "row" else (slice(None), slice(3, 9))
    g[axis] *= 10.0**exponent
    assert_step(p.clone(), m.clone(), g.clone(), scope, Numbers())  # m of 1 beside g of 1e±30
    m[axis] *= 10.0**-exponent
    assert_step(p.clone(), m.clone(), g.clone(), scope, Numbers())  # m of 1e∓30
    m[axis] *= 10.0**exponent
    m[axis] *= 10.0**exponent
    assert_step(p, m, g, scope, Numbers())


@pytest.mark.slow
@pytest.mark.combinations
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [0.99, 1.0])
@pytest.mark.parametrize("shape", [(20, 30), (400, 300), (30, 2200)])
def test_opposite_moment_cancels_only_at_beta_one(
    scope: str, dtype: torch.dtype, beta: float, shape: tuple[int, int]
) -> None:
    p, g = normal(shape, 0, dtype), normal(shape, 1, dtype)
    m = -3 * g
    before = p.clone()
    got = assert_step(p, m, g, scope, Numbers(beta=beta)) if beta < 1 else run(p, m, g, scope, Numbers(beta=beta))
    assert got.turned.item() == got.rows.item() == got.took_part.item()
    if beta == 1:
        assert torch.equal(p, before)
        assert not m.any()
        assert got.cos_min.item() == 0
    else:
        assert got.cos_min.item() == pytest.approx(1, abs=1e-4)  # a hundredth of g is left, with g's direction


def test_empty_tensors_report_nothing() -> None:
    tensors = [
        describe(torch.zeros(s), torch.zeros(s), torch.zeros(s), scope) for s in [(0, 5), (5, 0)] for scope in SCOPES
    ]
    got = step_rows(tensors)
    assert got.rows.tolist() == [0] * 6
    assert got.cos_min.tolist() == [math.inf] * 6
    assert step_rows([]).rows.tolist() == []


def test_complex_root_counts_numbers_not_parts() -> None:
    p, m, g = (normal((6, 20), seed) for seed in range(3))
    want = row_oracle.step(double(p), double(m), double(g), "row", Numbers(), entries_per_number=2)
    step_rows([describe(p, m, g)._replace(entries=10)])
    assert_close(p, want.theta, 1e-5, 1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 70)),
    st.integers(0, 2**31),
    st.floats(0, 1),
    st.sampled_from(list(SCOPES)),
    st.floats(-20, 20),
)
def test_cosine_is_at_least_that_of_the_lemma(
    shape: tuple[int, int], seed: int, beta: float, scope: str, log_scale: float
) -> None:
    p, m, g = normal(shape, seed), normal(shape, seed + 1, scale=10**log_scale), normal(shape, seed + 2)
    got = run(p, m, g, scope, Numbers(beta=beta))
    assert got.cos_min.item() >= math.sqrt(1 - beta**2) - 1e-6
    assert got.cos_min.item() <= got.cos_sum.item() / got.took_part.item() + 1e-9 <= 1 + 1e-6


def test_numbers_have_the_fields_of_the_kernel() -> None:
    assert tuple(asdict(Numbers())) == RowNumbers._fields
