"""The C kernel through its loader: the formulas, the bits, the element types, and processes that fork."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from acmo import native
from acmo.native import DTYPE_CODES, Kernel

DTYPES = list(DTYPE_CODES)
CHUNK = 8192
ODD_SIZES = [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 13]
# s, lambda, beta_hat, keep, alpha: everything at work, and the common case that has a loop of its own.
COEFFICIENTS = [[0.7, 0.01, 0.83, 0.995, 0.05], [1.0, 0.0, 0.83, 1.0, 0.05]]
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}

pytestmark = pytest.mark.skipif(native.kernel() is None, reason=f"no kernel: {native.why_missing()}")


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    loaded = native.kernel()
    assert loaded is not None
    isa = loaded.isa
    yield loaded
    assert loaded.set_isa(isa)


def tensors(dtype: torch.dtype, sizes: list[int], seed: int, offset: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    """Normal deviates; with an offset, views that begin so many elements behind an aligned address."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for size in sizes:
        values = torch.randn(size + offset, generator=generator, dtype=torch.float64) * scale
        made.append(values.to(dtype)[offset:])
    return made


def pointers(many: list[torch.Tensor]) -> list[int]:
    return [one.data_ptr() for one in many]


def squares(kernel: Kernel, x: list[torch.Tensor], threads: int = 1) -> list[float]:
    return list(kernel.squares([t.numel() for t in x], [DTYPE_CODES[t.dtype] for t in x], pointers(x), threads))


def update(
    kernel: Kernel,
    p: list[torch.Tensor],
    m: list[torch.Tensor],
    g: list[torch.Tensor],
    coefficients: list[float],
    threads: int = 1,
) -> list[float]:
    numel = [t.numel() for t in p]
    p_dtype, m_dtype = [DTYPE_CODES[t.dtype] for t in p], [DTYPE_CODES[t.dtype] for t in m]
    coef = [c for c in coefficients for _ in p]
    return list(kernel.update(numel, p_dtype, m_dtype, pointers(p), pointers(m), pointers(g), coef, threads))


def in_range(m: torch.Tensor) -> torch.Tensor:
    """A moment in float16 saturates."""
    return m.clamp(-65504, 65504) if m.dtype == torch.float16 else m


def bits(x: torch.Tensor) -> bytes:
    return x.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_sums_are_those_of_float64(kernel: Kernel, dtype: torch.dtype, offset: int) -> None:
    x, y = tensors(dtype, ODD_SIZES, 0, offset), tensors(dtype, ODD_SIZES, 1, offset + 1)
    xx, xy, yy = kernel.sums(ODD_SIZES, [DTYPE_CODES[dtype]] * len(x), pointers(x), pointers(y), 1)
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        a64, b64 = a.double().numpy(), b.double().numpy()
        assert xx[i] == pytest.approx(math.fsum(a64 * a64), rel=1e-14)
        assert yy[i] == pytest.approx(math.fsum(b64 * b64), rel=1e-14)
        assert xy[i] == pytest.approx(math.fsum(a64 * b64), rel=1e-12, abs=1e-12)
    assert list(xx) == squares(kernel, x)


def test_a_null_y_has_no_products(kernel: Kernel) -> None:
    x = tensors(torch.float32, [100, 100], 0)
    xx, xy, yy = kernel.sums([100, 100], [0, 0], pointers(x), [0, x[0].data_ptr()], 1)
    assert (xy[0], yy[0]) == (0.0, 0.0)
    assert yy[1] == xx[0] > 0


@pytest.mark.combinations
@pytest.mark.parametrize("m_dtype", DTYPES)
@pytest.mark.parametrize("p_dtype", DTYPES)
@pytest.mark.parametrize("coefficients", COEFFICIENTS)
def test_update_is_the_formula(
    kernel: Kernel, p_dtype: torch.dtype, m_dtype: torch.dtype, coefficients: list[float]
) -> None:
    s, decay, beta_hat, keep, alpha = coefficients
    for offset in (0, 1, 3):
        p, g = tensors(p_dtype, ODD_SIZES, 0, offset), tensors(p_dtype, ODD_SIZES, 1, offset + 1)
        m = tensors(m_dtype, ODD_SIZES, 2, offset + 2)
        before = [[x.double().clone().numpy() for x in three] for three in zip(p, m, g, strict=True)]
        gradients = [t.clone() for t in g]
        mm = update(kernel, p, m, g, coefficients)
        arithmetic = 16 * EPS[torch.float64 if torch.float64 in (p_dtype, m_dtype) else torch.float32]
        for i, (theta, old_m, grad) in enumerate(before):
            fresh = s * grad + decay * theta + beta_hat * old_m
            after = keep * theta - alpha * fresh
            for got, want, dtype in ((m[i], fresh, m_dtype), (p[i], after, p_dtype)):
                # One rounding to the dtype (2^-25 for a half's subnormals), and the arithmetic's on terms of about 1.
                allowed = np.abs(want) * EPS[dtype] / 2 + 4 * arithmetic + 2.0**-25 * (dtype == torch.float16)
                if dtype != torch.float64 and arithmetic < EPS[torch.float32]:
                    allowed += np.abs(want) * EPS[torch.float32]  # from double by way of float
                assert (np.abs(got.double().numpy() - want) <= allowed).all()
            stored = m[i].double().numpy()
            assert mm[i] == pytest.approx(math.fsum(stored * stored), rel=1e-14)
            assert torch.equal(g[i], gradients[i])


@pytest.mark.parametrize("p_dtype", DTYPES)
@pytest.mark.parametrize("m_dtype", DTYPES)
def test_neither_threads_nor_instruction_set_change_a_bit(
    kernel: Kernel, p_dtype: torch.dtype, m_dtype: torch.dtype
) -> None:
    sizes = [*ODD_SIZES, 20 * CHUNK + 5, *[3] * 40]
    for coefficients in COEFFICIENTS:
        results = []
        for isa in ("x86-64", "x86-64-v3", "x86-64-v4", kernel.isa):
            if not kernel.set_isa(isa):
                continue
            for threads in (1, 2, 5):
                p, m, g = tensors(p_dtype, sizes, 0), tensors(m_dtype, sizes, 1), tensors(p_dtype, sizes, 2)
                numel, code = sizes, [DTYPE_CODES[p_dtype]] * len(sizes)
                sums = [list(s) for s in kernel.sums(numel, code, pointers(g), pointers(p), threads)]
                mm = update(kernel, p, m, g, coefficients, threads)
                results.append((sums, mm, [bits(t) for t in p], [bits(t) for t in m]))
                # The optimizer makes this sum anew after a checkpoint has been loaded.
                assert mm == squares(kernel, m, threads)
        assert len(results) >= 3
        assert all(result == results[0] for result in results)


@pytest.mark.parametrize("beta_hat", [math.inf, math.nan])
def test_nonfinite_coefficient_leaves_sum_and_m_consistent(kernel: Kernel, beta_hat: float) -> None:
    p, m, g = (tensors(torch.float32, [21], seed) for seed in range(3))
    mm = update(kernel, p, m, g, [1.0, 0.0, beta_hat, 1.0, 0.1])
    assert np.array_equal(mm, squares(kernel, m), equal_nan=True)
    assert not math.isfinite(mm[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_step_is_exact(kernel: Kernel, dtype: torch.dtype) -> None:
    p, g = tensors(dtype, [1000], 0), tensors(dtype, [1000], 1)
    m, theta = [torch.zeros_like(t) for t in p], p[0].clone()
    update(kernel, p, m, g, [1.0, 0.0, 0.0, 1.0, 0.0])
    assert torch.equal(m[0], g[0])
    assert torch.equal(p[0], theta)


def test_without_decay_an_infinite_parameter_does_not_reach_m(kernel: Kernel) -> None:
    p, m, g = [torch.full((20,), math.inf)], [torch.zeros(20)], [torch.ones(20)]
    update(kernel, p, m, g, [0.5, 0.0, 1.0, 1.0, 0.1])
    assert torch.equal(m[0], torch.full((20,), 0.5))


@pytest.mark.parametrize("isa", ["x86-64", "x86-64-v3", "x86-64-v4", "default"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_65536_patterns_decode_as_in_torch(kernel: Kernel, isa: str, dtype: torch.dtype) -> None:
    if isa != "default" and not kernel.set_isa(isa):
        pytest.skip(f"this CPU has no {isa}")
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    # Into a float64 m the gradient goes as it is, so m shows what the kernel read; p is rounded back by it.
    p, m = patterns.clone(), torch.zeros(2**16, dtype=torch.float64)
    update(kernel, [p], [m], [patterns], [1.0, 0.0, 0.0, 1.0, 0.0])
    finite = patterns.isfinite()
    assert torch.equal(m[~patterns.isnan()], patterns.double()[~patterns.isnan()])
    assert torch.equal(m.isnan(), patterns.isnan())
    assert torch.equal(p[finite], patterns[finite])
    # Through one dtype, loop by loop: what was NaN stays NaN, the rest keeps its value.
    same_m = torch.zeros(2**16, dtype=dtype)
    p = torch.zeros(2**16, dtype=dtype)
    update(kernel, [p], [same_m], [patterns], [1.0, 0.0, 0.0, 1.0, -1.0])
    for got, wanted in ((same_m, in_range(patterns)), (p, patterns)):
        assert torch.equal(got.isnan(), patterns.isnan())
        assert torch.equal(got[~patterns.isnan()], wanted[~patterns.isnan()])


@pytest.mark.combinations
@pytest.mark.parametrize("isa", ["x86-64", "x86-64-v3", "x86-64-v4", "default"])
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_that_of_torch(kernel: Kernel, isa: str, source: torch.dtype, dtype: torch.dtype) -> None:
    if isa != "default" and not kernel.set_isa(isa):
        pytest.skip(f"this CPU has no {isa}")
    # Every 1009th float32 pattern (subnormals, infinities, NaNs among them), ties, neighbours of the largest values.
    some = torch.arange(-(2**31), 2**31, 1009, dtype=torch.int64).to(torch.int32).view(torch.float32)
    all_16_bits = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    ties = torch.cat([(all_16_bits << 16) + low for low in (0x7FFF, 0x8000, 0x8001)]).view(torch.float32)
    halves = all_16_bits.to(torch.int16).view(torch.float16).float().view(torch.int32)
    half_ties = torch.cat([halves + low for low in (0, 0xFFF, 0x1000, 0x1001)]).view(torch.float32)
    edges = torch.tensor(
        [65504.0, 65519.996, 65520.0, 3.3895e38, 3.4e38, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0001, 5.96e-8]
    )
    values = torch.cat([some, ties, half_ties, edges, -edges]).to(source)
    m, p = torch.zeros(len(values), dtype=dtype), torch.zeros(len(values), dtype=source)
    update(kernel, [p], [m], [values], [1.0, 0.0, 0.0, 1.0, 0.0])
    want = in_range(values.to(dtype))
    number = ~want.isnan()
    assert torch.equal(m.isnan(), want.isnan())
    assert bits(m[number].abs()) == bits(want[number].abs())  # −0 comes out as +0, from g + 0 m
    assert torch.equal(m[number], want[number])


def test_flushing_subnormals_does_not_harm_halves(kernel: Kernel) -> None:
    subnormals = torch.arange(1, 1024, dtype=torch.int16).view(torch.float16)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        for isa in ("x86-64", kernel.isa):
            if kernel.set_isa(isa):
                m, p = torch.zeros_like(subnormals), torch.zeros_like(subnormals)
                update(kernel, [p], [m], [subnormals], [1.0, 0.0, 0.0, 1.0, 0.0])
                assert bits(m) == bits(subnormals)
    finally:
        torch.set_flush_denormal(False)


def test_sums_neither_overflow_nor_lose_small_values(kernel: Kernel) -> None:
    large, small = torch.full((1000,), 1e30), torch.full((1000,), 1e-30)
    assert squares(kernel, [large]) == pytest.approx([1000 * large[0].double().item() ** 2], rel=1e-14)
    assert squares(kernel, [small]) == pytest.approx([1000 * small[0].double().item() ** 2], rel=1e-14)


def test_torch_and_the_kernel_share_one_openmp_runtime(kernel: Kernel) -> None:
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs Linux's /proc/self/maps")
    code = (
        "import torch; from acmo import native; k = native.kernel(); x = torch.ones(10**6); "
        "assert k.squares([10**6], [0], [x.data_ptr()], 2)[0] == 1e6; x.exp_(); "
        "names = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.split('/')[-1]}; "
        "print(len([n for n in names if 'libgomp' in n or 'libomp' in n or 'libiomp' in n]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def _step_in_child(queue: multiprocessing.Queue[list[float]], x: torch.Tensor) -> None:
    kernel = native.kernel()
    assert kernel is not None
    queue.put(squares(kernel, [x], threads=2))


def test_a_forked_child_does_not_hang(kernel: Kernel) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork")
    x = torch.ones(
        50 * CHUNK
    )  # made here: torch's own loops do hang in a child, which is why DataLoader runs them serially
    assert squares(kernel, [x], threads=2) == [x.numel()]  # now the parent has a pool of threads
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[list[float]] = context.Queue()
    child = context.Process(target=_step_in_child, args=(queue, x), daemon=True)
    child.start()
    try:
        assert queue.get(timeout=60) == [x.numel()]
    finally:
        child.kill()
    assert squares(kernel, [x], threads=2) == [x.numel()]


def test_child_that_loads_the_kernel_after_fork_does_not_hang() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    code = (
        "import os, torch; torch.set_num_threads(2); x = torch.zeros(10**6).exp_()\n"  # torch's pool is first
        "pid = os.fork()\n"
        "from acmo import native\n"
        "s = native.kernel().squares([10**6], [0], [x.data_ptr()], 2)[0]\n"
        "os._exit(s != 1e6) if pid == 0 else os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"ACMO_NATIVE": "0"}, "ACMO_NATIVE=0"),
        ({"ACMO_NATIVE_LIBRARY": "/nonexistent/lib.so"}, "/nonexistent/lib.so cannot be loaded"),
    ],
)
def test_a_missing_kernel_says_why(variables: dict[str, str], reason: str) -> None:
    code = "from acmo import native; assert native.kernel() is None; print(native.why_missing())"
    environment = os.environ | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert reason in done.stdout
