"""Gradients at the ends of float32, NaN and random cases by the Triton kernels, in the interpreter."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import acmo
from acmo import ACMo
from acmo.step_data import NonFiniteGradient
from tests.support import fuzz
from tests.support.backends import FUSED, REFERENCE
from tests.support.triton_interpreter import needs_triton

pytestmark = [needs_triton, pytest.mark.usefixtures("interpreter")]
EXTREMES = {
    "tiny-then-normal": ([1e-40, 0.1, 0.1], {"momentum": 0.5, "delta": 0.0}),
    "tiny-huge-normal": ([1e-30, 1e31, 1.0], {}),
    "huge-tiny-normal": ([1e30, 1e-20, 1.0], {"delta": 0.0}),
    "huge": ([1e20] * 3, {}),
    "tiny": ([1e-24] * 3, {"delta": 0.0}),
}


def take_steps(backend: dict, sizes: list[float], **options) -> ACMo:
    p = nn.Parameter(torch.ones(2, 3))
    opt = ACMo([p], lr=1e-3, **options, **backend)
    for size in sizes:
        p.grad = torch.full((2, 3), size)
        opt.step()
    return opt


def state_of(opt: ACMo) -> list[torch.Tensor]:
    (p,) = opt.param_groups[0]["params"]
    return [p.detach(), opt.state[p]["momentum_buffer"]]


@pytest.mark.parametrize("scope", ["global", "tensor", "row", "column"])
@pytest.mark.parametrize("case", EXTREMES)
def test_extreme_gradients_agree_with_the_reference(case, scope):
    sizes, options = EXTREMES[case]
    kernels, reference = (take_steps(b, sizes, norm_scope=scope, **options) for b in (FUSED, REFERENCE))
    assert kernels.skipped_steps == 0
    for found, expected in zip(state_of(kernels), state_of(reference), strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_raise_names_the_parameter_with_nan(clip):
    named = [(name, nn.Parameter(torch.ones(2))) for name in ("first", "second", "third")]
    opt = ACMo(named, nonfinite="raise", max_grad_norm=clip, **FUSED)
    for _, p in named:
        p.grad = torch.ones(2)
    named[2][1].grad[1] = math.nan
    with pytest.raises(FloatingPointError, match="'third'"):
        opt.step()


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": math.inf}, {"psi": "sqrt"}, {"norm_scope": "row"}], ids=str)
def test_propagate_spreads_nan_as_the_reference_does(options):
    kernels, reference = (
        take_steps(b, [1.0, math.nan, 1.0], nonfinite="propagate", **options) for b in (FUSED, REFERENCE)
    )
    for found, expected in zip(state_of(kernels), state_of(reference), strict=True):
        assert torch.equal(found.isfinite(), expected.isfinite())
    kernels.load_state_dict(copy.deepcopy(kernels.state_dict()))


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 10])
def test_kernels_agree_on_twenty_random_cases(start):
    for seed in range(start, start + 10):
        fuzz.check(fuzz.draw_case(seed))


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(10_000, 10_200, 20))
def test_kernels_agree_on_200_random_cases(start):
    for seed in range(start, start + 20):
        fuzz.check(fuzz.draw_case(seed))


@pytest.mark.parametrize("kind", [acmo.RowACMo, acmo.SpectralACMo])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])  # float16 moments saturate
@pytest.mark.parametrize("shape", [(), (2, 3), (12, 16)], ids=str)
def test_an_infinite_gradient_spreads_under_propagate(kind, shape, dtype):
    ends = []
    for backend in (FUSED, REFERENCE):
        p = nn.Parameter(torch.ones(shape, dtype=dtype))
        opt = kind([p], nonfinite="propagate", **backend)
        p.grad = torch.full_like(p, math.inf)
        opt.step()
        ends.append([p.detach(), opt.state[p]["momentum_buffer"]])
    torch.testing.assert_close(*ends, equal_nan=True)
    assert ends[0][0].isnan().all()


def test_a_step_that_ends_with_an_error_is_not_skipped():
    for backend in (FUSED, REFERENCE):
        p = nn.Parameter(torch.ones(1))
        opt = ACMo([p], nonfinite="raise", **backend)
        for value in (1.0, math.inf):
            p.grad = torch.full_like(p, value)
            with pytest.raises(NonFiniteGradient) if value == math.inf else nullcontext():
                opt.step()
        assert opt.skipped_steps == 0
