"""Newton–Schulz against the exact polynomial of the singular values, the SVD, and torch.optim.Muon."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from acmo import algorithm, newton_schulz
from acmo.newton_schulz import choose_dtype, iterate, multiply_symmetric, orthogonalise
from tests.support import spectral_oracle
from tests.support.operations import CountOperations

SHAPES = [(9, 9), (40, 9), (9, 40), (33, 17), (17, 33), (12, 400), (400, 12), (64, 64)]


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm()


@pytest.mark.parametrize("steps", [1, 2, 5, 7])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_the_polynomial_of_the_singular_values(shape: tuple[int, int], steps: int):
    x = unit(torch.randn(shape, dtype=torch.float64))
    expected = spectral_oracle.orthogonalise(x.numpy(), steps)
    np.testing.assert_allclose(orthogonalise([x], steps)[0].numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_is_the_polynomial_to_rounding(shape: tuple[int, int]):
    x = unit(torch.randn(shape))
    expected = spectral_oracle.orthogonalise(x.double().numpy())
    np.testing.assert_allclose(orthogonalise([x])[0].numpy(), expected, rtol=0, atol=1e-4)


def test_matrices_are_orthogonalised_as_each_by_itself():
    matrices = [unit(torch.randn(s, dtype=torch.float64)) for s in [(9, 12), (12, 9), (9, 12), (20, 20), (9, 12)]]
    for one, x in zip(orthogonalise(matrices), matrices, strict=True):
        torch.testing.assert_close(one, orthogonalise([x])[0], rtol=0, atol=1e-13)


def test_batches_are_cut_where_they_would_take_memory(monkeypatch: pytest.MonkeyPatch):
    matrices = [unit(torch.randn(10, 12)) for _ in range(5)]
    whole, sizes = orthogonalise(matrices), []
    monkeypatch.setattr(newton_schulz, "CPU_ENTRIES", 240)
    monkeypatch.setattr(newton_schulz, "iterate", lambda *args: sizes.append(len(args[0])) or iterate(*args))
    for one, other in zip(orthogonalise(matrices), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert sizes == [2, 2, 1]


def test_singular_values_above_a_two_hundredth_end_near_one():
    sigma = np.geomspace(1 / 200, 1, 20_001)
    ends = spectral_oracle.polynomial(sigma)
    assert 0.67 < ends.min() < 0.69
    assert 1.15 < ends.max() < 1.16
    assert spectral_oracle.polynomial(np.geomspace(1 / 600, 1, 20_001)).max() < 1.21
    small = np.geomspace(1e-9, 1e-5, 50)  # they grow by 3.4445 per iteration
    np.testing.assert_allclose(spectral_oracle.polynomial(small), 3.4445**5 * small, rtol=1e-3)
    assert spectral_oracle.polynomial(np.array([1 / 1000]))[0] < 0.5


def test_singular_values_of_a_result_are_those_of_the_polynomial():
    u, _, v = torch.linalg.svd(torch.randn(24, 40, dtype=torch.float64), full_matrices=False)
    sigma = torch.logspace(-6, 0, 24, dtype=torch.float64)
    sigma = sigma / sigma.norm()
    found = torch.linalg.svdvals(orthogonalise([(u * sigma) @ v])[0])
    expected = np.sort(spectral_oracle.polynomial(sigma.numpy()))[::-1]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(16, 16), (16, 64), (64, 16)], ids=str)
def test_rank_deficient_matrices_keep_their_rank(shape: tuple[int, int], dtype: torch.dtype):
    x = unit(torch.randn(shape[0], 3, dtype=dtype) @ torch.randn(3, shape[1], dtype=dtype))
    found = torch.linalg.svdvals(orthogonalise([x])[0].double())
    assert float(found[2]) > 0.67
    assert float(found[0]) < 1.22
    assert float(found[3]) < (1e-12 if dtype == torch.float64 else 1e-3)
    assert not orthogonalise([torch.zeros(shape, dtype=dtype)])[0].any()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (64, 64)], ids=str)
def test_the_direction_is_that_of_torchs_muon(shape: tuple[int, int]):
    p = torch.nn.Parameter(torch.zeros(shape))
    p.grad = torch.randn(shape)
    torch.optim.Muon([p], lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step()
    ours = 0.2 * max(shape) ** 0.5 * orthogonalise([unit(p.grad)])[0]
    assert float((p.detach() + ours).norm() / ours.norm()) < 0.04  # Muon's products are in bfloat16
    x = unit(p.grad).bfloat16()
    theirs = 0.2 * max(shape) ** 0.5 * orthogonalise([x])[0].float()
    assert float((p.detach() + theirs).norm() / theirs.norm()) < 0.04


def test_products_are_in_float32_on_cpus_and_bfloat16_on_gpus():
    assert choose_dtype(torch.empty(4096, 4096, device="meta")) == torch.bfloat16  # as on a GPU
    assert choose_dtype(torch.empty(4, 4)) == torch.float32
    assert choose_dtype(torch.empty(4, 4, dtype=torch.float64)) == torch.float64
    assert choose_dtype(torch.empty(4, 4), torch.bfloat16) == torch.bfloat16


def test_matrices_are_divided_by_their_norms_before_rounding():
    matrices = [torch.randn(10, 12) * 10.0**k for k in (-30, 0, 30)]
    norms = torch.stack([x.double().norm() for x in matrices])
    for dtype in (torch.float32, torch.bfloat16):
        expected = orthogonalise([unit(x.double()).float().to(dtype) for x in matrices])
        for one, other in zip(orthogonalise(matrices, 5, norms, dtype), expected, strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(256, 256), (258, 300), (257, 300), (300, 258), (256, 600), (600, 256)], ids=str)
def test_large_float32_matrices_are_the_polynomial_too(shape: tuple[int, int]):
    x = [unit(torch.randn(shape)) for _ in range(2)]
    for found, given in zip(orthogonalise(x), x, strict=True):
        expected = spectral_oracle.orthogonalise(given.double().numpy())
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("side", [255, 256, 257, 258])
def test_symmetric_products_are_exactly_symmetric_by_blocks(side: int):
    x = torch.randn(3, side, 40)
    found = multiply_symmetric(x, x.mT)
    torch.testing.assert_close(found, x @ x.mT, rtol=1e-5, atol=1e-4)
    if side >= newton_schulz.BLOCK_SIDE and side % 2 == 0:
        half = side // 2
        assert torch.equal(found[:, :half, half:], found[:, half:, :half].mT)


@pytest.mark.parametrize("shape", [(600, 10), (10, 600)])
def test_the_reference_multiplies_by_the_smaller_side(shape: tuple[int, int]):
    u = 600**0.5 * unit(torch.randn(shape))
    with CountOperations(least_entries=600 * 600) as of_the_longer_side:
        algorithm.orthogonalise(u, 5, None)
    assert of_the_longer_side.bytes == 0
