"""Stochastic rounding of bfloat16 in Triton: the bits of the other backends."""

import pytest
import torch
from torch import nn

import acmo
from acmo.rounding import round_randomly as round_on_cpu
from acmo.rounding import rounding_bits, rounding_seed
from tests.support.backends import FOREACH, FUSED

triton = pytest.importorskip("triton", reason="Triton is not installed: pip install --no-deps triton==3.7.1")
tl = triton.language

from acmo.backends.triton.pass_kernels import mix_bits, round_randomly  # noqa: E402

BF16 = torch.bfloat16


@triton.jit
def round_all(out, source, seeds, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    seed = mix_bits(mix_bits(tl.load(seeds).to(tl.uint32)) ^ tl.load(seeds + 1).to(tl.uint32))
    tl.store(out + lanes, round_randomly(tl.load(source + lanes), lanes, seed))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("step", "number"), [(1, 0), (7, 3), (2**24, 1000)])
def test_stochastic_rounding_has_the_bits_of_the_c_kernel(step, number):
    source, out = torch.randn(64), torch.empty(64, dtype=BF16)
    source[3] = torch.nan
    round_all[(1,)](out, source, torch.tensor([step, number]), 64)
    assert out[3].isnan()
    bits = source.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    expected = (bits + rounding_bits(torch.arange(64), rounding_seed(step, number))) >> 16
    found = out.view(torch.int16).to(torch.int64) & 0xFFFF
    others = torch.arange(64) != 3
    assert torch.equal(found[others], expected[others] & 0xFFFF)


def build(backend, shape=(6, 5), count=2, **options):
    """Parameters and gradients that are small integers, and an optimizer on them: float32 has θ − g/1024 exactly."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randint(-9, 9, shape, generator=generator).to(BF16) for _ in range(2 * count)]
    params = [nn.Parameter(x.clone()) for x in values[:count]]
    for p, g in zip(params, values[count:], strict=True):
        p.grad = g
    opt = acmo.ACMo(params, lr=2.0**-10, stochastic_rounding=True, **options, **backend)
    return params, opt


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("scope", "shape", "options"),
    [
        ("global", (6, 5), {}),
        ("group", (6, 5), {"momentum_dtype": torch.float32}),
        ("tensor", (300,), {}),
        ("row", (6, 5), {}),
        ("row", (2, 1100), {}),
        ("row", (6, 8), {"momentum_dtype": torch.int8}),
        ("column", (20, 3), {}),
    ],
)
def test_one_step_has_the_bits_of_the_cpu(scope, shape, options):
    params, opt = build(FUSED, shape, norm_scope=scope, **options)
    exact = [p.detach().float() - p.grad.float() * 2.0**-10 for p in params]
    opt.step()
    for k, (x, p) in enumerate(zip(exact, params, strict=True)):
        index = torch.arange(x.numel()).view(x.shape)
        assert torch.equal(p, round_on_cpu(x, rounding_seed(0, k), index))
        assert not torch.equal(p, x.to(BF16))


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("scope", ["global", "row"])
def test_later_steps_have_the_bits_of_foreach(scope):
    (mine, ours), (others, theirs) = (build(backend, norm_scope=scope, momentum=0.0) for backend in (FUSED, FOREACH))
    for _ in range(3):
        ours.step()
        theirs.step()
        assert all(torch.equal(p, q) for p, q in zip(mine, others, strict=True))


@pytest.mark.usefixtures("interpreter")
def test_only_groups_that_ask_for_it_round_randomly():
    params = [nn.Parameter(torch.ones(300, dtype=BF16)) for _ in range(2)]
    opt = acmo.ACMo([{"params": params[:1], "stochastic_rounding": True}, {"params": params[1:]}], lr=2.0**-10, **FUSED)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    assert len(params[0].unique()) == 2
    assert len(params[1].unique()) == 1


@pytest.mark.usefixtures("interpreter")
def test_channels_last_parameters_are_rounded_by_foreach():
    def run(backend):
        p = nn.Parameter(torch.ones(4, 3, 2, 2, dtype=BF16).to(memory_format=torch.channels_last))
        p.grad = torch.ones_like(p)
        acmo.ACMo([p], lr=2.0**-10, stochastic_rounding=True, **backend).step()
        return p

    assert torch.equal(run({}), run(FOREACH))
    with pytest.raises(RuntimeError, match="rounded stochastically"):
        run(FUSED)
