"""Stochastic rounding of bfloat16 in Triton: the bits of the C kernel."""

import pytest
import torch

from acmo.rounding import rounding_bits, rounding_seed

triton = pytest.importorskip("triton", reason="Triton is not installed: pip install --no-deps triton==3.7.1")
tl = triton.language

from acmo.backends.triton.pass_kernels import mix_bits, round_randomly  # noqa: E402


@triton.jit
def round_all(out, source, seeds, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    seed = mix_bits(mix_bits(tl.load(seeds).to(tl.uint32)) ^ tl.load(seeds + 1).to(tl.uint32))
    tl.store(out + lanes, round_randomly(tl.load(source + lanes), lanes, seed))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("step", "number"), [(1, 0), (7, 3), (2**24, 1000)])
def test_stochastic_rounding_has_the_bits_of_the_c_kernel(step, number):
    source, out = torch.randn(64), torch.empty(64, dtype=torch.bfloat16)
    source[3] = torch.nan
    round_all[(1,)](out, source, torch.tensor([step, number]), 64)
    assert out[3].isnan()
    bits = source.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    expected = (bits + rounding_bits(torch.arange(64), rounding_seed(step, number))) >> 16
    found = out.view(torch.int16).to(torch.int64) & 0xFFFF
    others = torch.arange(64) != 3
    assert torch.equal(found[others], expected[others] & 0xFFFF)
