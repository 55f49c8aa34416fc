"""The C kernel's steps by row and column, against a NumPy oracle: values, bits, reports, int8, stochastic rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, astuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from acmo import native
from acmo.backends import row_kernel
from acmo.backends.row_kernel import RowNorms, RowNumbers, RowTensor, step_rows
from acmo.native import DTYPE_CODES, Kernel
from acmo.rounding import rounding_bits, rounding_seed
from tests.support import row_oracle
from tests.support.row_oracle import Numbers

pytestmark = pytest.mark.skipif(native.kernel() is None, reason=f"no kernel: {native.why_missing()}")

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


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    loaded = native.required()
    isa, threads = loaded.isa, torch.get_num_threads()
    yield loaded
    assert loaded.set_isa(isa)
    torch.set_num_threads(threads)


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
    return RowTensor(p, m, g, rows, cols, SCOPES[scope], x, math.sqrt(n), **options)


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
    step_rows([describe(p, m, g)._replace(root_n=math.sqrt(10))])
    assert_close(p, want.theta, 1e-5, 1.0)


def many_tensors(p_dtype: torch.dtype, m_dtype: torch.dtype, numbers: Numbers, seed: int | None) -> list[RowTensor]:
    made = []
    shapes = [*SHAPES, (2, 70001), (1100, 64), (70000, 2), (257, 300), *[(3, 5)] * 10, (0, 4)]
    for i, shape in enumerate(shapes):
        for scope in SCOPES:
            p, g = normal(shape, 3 * i, p_dtype), normal(shape, 3 * i + 1, p_dtype)
            m, scale = normal(shape, 3 * i + 2), None
            if i % 3 == 0 and shape[0] > 1:
                m[0], g[0] = m[1], -m[1].to(p_dtype)  # with β = 1, direct sums
            if m_dtype == torch.int8:
                q, s = row_oracle.quantise(double(m))
                m, scale = torch.from_numpy(q), torch.from_numpy(s)
            made.append(describe(p, m.to(m_dtype), g, scope, numbers, scale=scale, seed=seed, first_index=i))
    return made


@pytest.mark.slow
@pytest.mark.combinations
@pytest.mark.parametrize("p_dtype", DTYPES)
@pytest.mark.parametrize("m_dtype", [*DTYPES, torch.int8])
@pytest.mark.parametrize("numbers", [Numbers(beta=1.0), NUMBERS["coupled"]], ids=["plain", "coupled"])
def test_neither_threads_nor_instruction_set_change_a_bit(
    kernel: Kernel, p_dtype: torch.dtype, m_dtype: torch.dtype, numbers: Numbers
) -> None:
    results = []
    originals = many_tensors(p_dtype, m_dtype, numbers, 7 if p_dtype == torch.bfloat16 else None)
    for isa in dict.fromkeys(("x86-64", "x86-64-v3", "x86-64-v4", kernel.isa)):
        if not kernel.set_isa(isa):
            continue
        for threads in (1, 2):
            torch.set_num_threads(threads)
            tensors = [
                t._replace(
                    param=t.param.clone(), moment=t.moment.clone(), scale=None if t.scale is None else t.scale.clone()
                )
                for t in originals
            ]
            report = step_rows(tensors)
            state = [(bits(t.param), bits(t.moment), t.scale is not None and bits(t.scale)) for t in tensors]
            results.append((state, [bits(x) for x in report]))
    assert len(results) >= 2
    assert all(result == results[0] for result in results)


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


SMALL = st.tuples(st.integers(1, 40), st.integers(1, 70))


@settings(max_examples=60, deadline=None)
@given(SMALL, st.integers(0, 2**31), st.floats(0, 1), st.sampled_from(list(SCOPES)), st.floats(-20, 20))
def test_cosine_is_at_least_that_of_the_lemma(
    shape: tuple[int, int], seed: int, beta: float, scope: str, log_scale: float
) -> None:
    p, m, g = normal(shape, seed), normal(shape, seed + 1, scale=10**log_scale), normal(shape, seed + 2)
    got = run(p, m, g, scope, Numbers(beta=beta))
    assert got.cos_min.item() >= math.sqrt(1 - beta**2) - 1e-6
    assert got.cos_min.item() <= got.cos_sum.item() / got.took_part.item() + 1e-9 <= 1 + 1e-6


@settings(max_examples=60, deadline=None)
@given(SMALL, st.integers(0, 2**31), st.integers(-80, 80), st.integers(-80, 80), st.sampled_from(list(SCOPES)))
def test_unit_step_is_free_of_scale(shape: tuple[int, int], seed: int, g_log: int, m_log: int, scope: str) -> None:
    p, m, g = (normal(shape, seed + k) for k in range(3))
    q, scaled_m, scaled_g = p.clone(), m * 2.0**m_log, g * 2.0**g_log
    run(p, m, g, scope)
    run(q, scaled_m, scaled_g, scope)
    assert bits(p) == bits(q)
    assert bits(m * 2.0**g_log) == bits(scaled_m)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.lists(SMALL, min_size=1, max_size=60), st.integers(0, 2**31), st.sampled_from(list(SCOPES)), st.integers(2, 5)
)
def test_threads_never_change_a_bit(shapes: list[tuple[int, int]], seed: int, scope: str, threads: int) -> None:
    before, results = torch.get_num_threads(), []
    shapes = [*shapes, (3000, 11)]
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            tensors = [describe(*(normal(shape, seed + k) for k in range(3)), scope) for shape in shapes]
            report = step_rows(tensors)
            results.append([bits(x) for t in tensors for x in t[:3]] + [bits(x) for x in report])
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_numbers_have_the_fields_of_the_kernel() -> None:
    assert tuple(asdict(Numbers())) == RowNumbers._fields
