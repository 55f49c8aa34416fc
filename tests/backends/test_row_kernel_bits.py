"""A step by row of the C kernel gives the same bits on any threads, instruction set and scale."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acmo import native
from acmo.backends.row_kernel import RowTensor, step_rows
from acmo.native import Kernel
from tests.support import row_oracle
from tests.support.row_kernel_steps import (
    DTYPES,
    NUMBERS,
    SCOPES,
    SHAPES,
    bits,
    describe,
    double,
    normal,
    run,
)
from tests.support.row_oracle import Numbers

pytestmark = pytest.mark.skipif(native.kernel() is None, reason=f"no kernel: {native.why_missing()}")

SMALL = st.tuples(st.integers(1, 40), st.integers(1, 70))
WIDTHS = [(1, 3), (7, 1), (1100, 64), (300, 130), (41, 513), (9, 2049), (33, 5000), (12, 10_000), (3, 70001)]
ALWAYS, NEVER = 0, 2**62  # for Kernel.set_merge_width


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    loaded = native.required()
    isa, width, threads = loaded.isa, loaded.merge_width, torch.get_num_threads()
    yield loaded
    assert loaded.set_isa(isa)
    loaded.set_merge_width(width)
    torch.set_num_threads(threads)


def many_tensors(p_dtype: torch.dtype, m_dtype: torch.dtype, numbers: Numbers, seed: int | None) -> list[RowTensor]:
    made = []
    shapes = [*SHAPES, (2, 70001), (1100, 64), (70000, 2), (257, 300), *[(3, 5)] * 10, (0, 4)]
    for i, shape in enumerate(shapes):
        for scope in SCOPES:
            p, g = normal(shape, 3 * i, p_dtype), normal(shape, 3 * i + 1, p_dtype)
            m = normal(shape, 3 * i + 2)
            if i % 3 == 0 and shape[0] > 1:
                m[0], g[0] = m[1], -m[1].to(p_dtype)  # with β = 1, direct sums
            m, scale = store_moment(m, m_dtype)
            made.append(describe(p, m, g, scope, numbers, scale=scale, seed=seed, first_index=i))
    return made


def store_moment(m: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    if dtype != torch.int8:
        return m.to(dtype), None
    q, scale = row_oracle.quantise(double(m))
    return torch.from_numpy(q), torch.from_numpy(scale)


def describe_stored(
    p: torch.Tensor, m: torch.Tensor, g: torch.Tensor, numbers: Numbers, moment: torch.dtype
) -> RowTensor:
    stored, scale = store_moment(m, moment)
    return describe(p.clone(), stored, g, "row", numbers, scale=scale)


def step_copies(originals: list[RowTensor]) -> tuple[list[object], list[object]]:
    """Step copies of tensors; return the bits of what they hold then, and of the report."""
    tensors = [
        t._replace(param=t.param.clone(), moment=t.moment.clone(), scale=None if t.scale is None else t.scale.clone())
        for t in originals
    ]
    report = step_rows(tensors)
    state = [(bits(t.param), bits(t.moment), t.scale is not None and bits(t.scale)) for t in tensors]
    return list(state), [bits(x) for x in report]


@pytest.mark.parametrize("moment", [torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize("shape", WIDTHS)
def test_merged_sweeps_change_no_bit(kernel: Kernel, shape: tuple[int, int], moment: torch.dtype) -> None:
    dtype = torch.float64 if moment == torch.float64 else torch.float32
    p, m, g = (normal(shape, k, dtype) for k in range(3))
    special = (p.clone(), m.clone(), g.clone())
    for row, value in ((0, 0.0), (shape[0] // 2, torch.nan), (shape[0] - 1, 1e-33)):
        special[2][row] *= value  # no part, skipped, extreme
    cases = [(p, m, g, Numbers()), (*special, Numbers()), (p, -g, g, Numbers(beta=1.0))]
    originals = [describe_stored(*case, moment) for case in cases]
    results = []
    for width in (NEVER, ALWAYS):
        kernel.set_merge_width(width)
        assert kernel.merge_width == width
        results.append(step_copies(originals))
    assert results[0] == results[1]


@pytest.mark.parametrize("width", [NEVER, ALWAYS])
@pytest.mark.parametrize("shape", WIDTHS)
def test_int8_step_is_the_float32_step_between_conversions(kernel: Kernel, shape: tuple[int, int], width: int) -> None:
    p, m, g = (normal(shape, k) for k in range(3))
    g[shape[0] // 2] *= 1e-33  # an extreme row: all of its group is converted
    stored = describe_stored(p, m, g, Numbers(), torch.int8)
    assert stored.scale is not None
    converted = describe(p.clone(), stored.moment * stored.scale[:, None], g, "row")
    kernel.set_merge_width(width)
    step_rows([stored])
    step_rows([converted])
    scale = (converted.moment.abs().amax(1).double() / 127).float()
    assert bits(stored.param) == bits(converted.param)
    assert bits(stored.scale) == bits(scale)
    assert bits(stored.moment) == bits((converted.moment * (1 / scale)[:, None]).round().to(torch.int8))


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
        for threads, width in ((1, NEVER), (2, NEVER), (2, ALWAYS)):
            torch.set_num_threads(threads)
            kernel.set_merge_width(width)
            results.append(step_copies(originals))
    assert len(results) >= 2
    assert all(result == results[0] for result in results)


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
