"""Stochastic rounding of bfloat16 parameters: unbiased, the same bits on every backend, and resumed to the bit."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acmo import ACMo, RowACMo, native, step_in_backward
from tests.support import row_oracle
from tests.support.backends import FOREACH, REFERENCE, Backend, every_backend

BF16 = torch.bfloat16


def number(index: int, seed: int) -> int:
    """The hash of 32 bits that a seed is made of, with Python's integers."""
    h = (index ^ seed) & 0xFFFFFFFF
    h ^= h >> 16
    h = h * 0x7FEB352D & 0xFFFFFFFF
    h ^= h >> 15
    return h * 0x846CA68B & 0xFFFFFFFF


def round_like_the_docs(x: Tensor, step: int, parameter: int) -> Tensor:
    """Entry by entry: 16 bits of a hash of step, parameter and index are added to the float's, and the half dropped."""
    seed = number(number(step, 0) ^ parameter, 0)
    words = []
    for index, bits in enumerate(x.flatten().view(torch.int32).tolist()):
        words.append(((bits & 0xFFFFFFFF) + row_oracle.random_bits(index, seed)) >> 16 & 0xFFFF)
    signed = [word - 0x10000 if word >= 0x8000 else word for word in words]
    return torch.tensor(signed, dtype=torch.int16).view(BF16).view(x.shape)


def exact_step(backend: Backend, **options: Any) -> tuple[list[Tensor], list[nn.Parameter]]:
    """One step θ − g/1024 that float32 has exactly, of two parameters; what it is before it is rounded."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randint(-9, 9, (6, 5), generator=generator) for _ in range(4)]
    params = [nn.Parameter(x.to(BF16)) for x in values[:2]]
    for p, g in zip(params, values[2:], strict=True):
        p.grad = g.to(BF16)
    ACMo(params, lr=2.0**-10, stochastic_rounding=True, **options, **backend).step()
    return [x - g * 2.0**-10 for x, g in zip(values[:2], values[2:], strict=True)], params


@every_backend
@pytest.mark.parametrize("scope", ["global", "group", "tensor", "row", "column"])
def test_one_step_has_the_documented_bits_on_every_backend(scope: str, backend: Backend):
    if backend.get("fused") and scope not in ("row", "column"):
        with pytest.raises(RuntimeError, match=r"stochastically only by row.*fused=None"):
            exact_step(backend, norm_scope=scope)
        return
    expected, params = exact_step(backend, norm_scope=scope)
    for k, (x, p) in enumerate(zip(expected, params, strict=True)):
        assert torch.equal(p, round_like_the_docs(x, 0, k))
        assert not torch.equal(p, x.to(BF16))


def test_without_a_named_backend_every_scope_rounds_alike():
    for scope in ("global", "row"):
        expected, params = exact_step({}, norm_scope=scope)
        assert all(
            torch.equal(p, round_like_the_docs(x, 0, k)) for k, (x, p) in enumerate(zip(expected, params, strict=True))
        )


def make(backend: Backend, dtype: torch.dtype = BF16, **options: Any) -> tuple[list[nn.Parameter], RowACMo]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(6, 5), (40, 3), (4, 3, 2, 2), (7,), ()]
    params = [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]
    return params, RowACMo(
        params, **{"lr": 1e-3, "weight_decay": 0.1, "stochastic_rounding": True, **options}, **backend
    )


def advance(params: list[nn.Parameter], opt: Any, first: int, last: int) -> None:
    generator = torch.Generator().manual_seed(2)
    for t in range(last):
        grads = [torch.randn(p.shape, generator=generator).to(p.dtype) for p in params]
        if t >= first:
            for p, g in zip(params, grads, strict=True):
                p.grad = g
            opt.step()


@every_backend
@pytest.mark.parametrize("options", [{}, {"momentum_dtype": torch.int8}, {"norm_scope": "column"}], ids=str)
def test_resumed_run_equals_the_unbroken_one_to_the_bit(options: dict[str, Any], backend: Backend):
    params, opt = make(backend, **options)
    advance(params, opt, 0, 3)
    state, values = copy.deepcopy(opt.state_dict()), [p.detach().clone() for p in params]
    advance(params, opt, 3, 6)
    resumed, other = make(backend, **options)
    with torch.no_grad():
        for p, value in zip(resumed, values, strict=True):
            p.copy_(value)
    other.load_state_dict(state)
    assert other.param_groups[0]["stochastic_rounding"] is True
    advance(resumed, other, 3, 6)
    assert all(torch.equal(p, q) for p, q in zip(params, resumed, strict=True))


@every_backend
def test_small_steps_arrive_in_the_mean_where_nearest_loses_them(backend: Backend):
    ends = []
    for rounding in (True, False):
        p = nn.Parameter(torch.ones(64, 512, dtype=BF16))
        opt = RowACMo([p], lr=2.0**-13, norm_scope="row", stochastic_rounding=rounding, **backend)
        for _ in range(20):
            p.grad = torch.ones_like(p)
            opt.step()
        ends.append(float(p.detach().double().mean()))
    # 20 steps of 1/32 of the distance to the next number below 1, taken with probability 1/32
    assert ends[0] == pytest.approx(1 - 20 * 2.0**-13, abs=5 * 2.0**-8 * math.sqrt(20 / 32 / p.numel()))
    assert ends[1] == 1.0


@every_backend
def test_other_dtypes_and_rows_without_gradient_are_not_touched(backend: Backend):
    for dtype in (torch.float32, torch.float16, torch.float64):
        (first, one), (second, two) = (make(backend, dtype, stochastic_rounding=on) for on in (True, False))
        advance(first, one, 0, 2)
        advance(second, two, 0, 2)
        assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    params, opt = make(backend, weight_decay=0.0)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.zeros_like(p)
    opt.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))


def test_a_nan_stays_a_nan_on_every_backend():
    for backend in (REFERENCE, FOREACH, {}):
        p = nn.Parameter(torch.ones(2, 3, dtype=BF16))
        opt = RowACMo([p], norm_scope="row", nonfinite="propagate", stochastic_rounding=True, **backend)
        p.grad = torch.tensor([[math.nan, 1, 1], [1, 1, 1]], dtype=BF16)
        opt.step()
        assert p[0].isnan().all()
        assert p[1].isfinite().all()


def test_steps_inside_backward_round_as_those_after_it():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).to(BF16)
    twin = copy.deepcopy(net)
    inside = step_in_backward(net, RowACMo, stochastic_rounding=True)
    after = RowACMo(twin.parameters(), stochastic_rounding=True)
    for _ in range(3):
        x = torch.randn(8, 4, dtype=BF16)
        net(x).square().mean().backward()
        inside.step()
        after.zero_grad()
        twin(x).square().mean().backward()
        after.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))


def test_compiled_steps_round_as_eager_ones():
    torch._dynamo.reset()
    (first, one), (second, two) = make(FOREACH), make(FOREACH)
    step = torch.compile(one.step, backend="aot_eager")
    for t in range(3):
        for p, q in zip(first, second, strict=True):
            p.grad = torch.full_like(p, 0.5 + t)
            q.grad = p.grad.clone()
        step()
        two.step()
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))


def test_stochastic_rounding_cannot_be_differentiated():
    with pytest.raises(ValueError, match="stochastic_rounding=True has no derivative"):
        RowACMo([nn.Parameter(torch.ones(2, dtype=BF16))], stochastic_rounding=True, differentiable=True)


@pytest.mark.skipif(native.kernel() is None, reason="the C kernel was not built")
def test_rounding_does_not_depend_on_the_memory_layout():
    ends = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(4, 3, 2, 2).to(BF16).to(memory_format=layout))
        opt = RowACMo([p], stochastic_rounding=True, fused=True)
        p.grad = torch.randn(4, 3, 2, 2).to(BF16)
        opt.step()
        ends.append(p.detach().contiguous())
    assert torch.equal(*ends)
