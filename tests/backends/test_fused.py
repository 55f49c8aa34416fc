"""The fused backend takes what people have: any layout, mixed dtypes, threads; and says what it cannot take."""

import pytest
import torch
from torch import nn

from acmo import ACMo, native

pytestmark = pytest.mark.skipif(native.kernel() is None, reason=f"no C kernel: {native.why_missing()}")

LAYOUTS = {
    "contiguous": lambda: torch.randn(6, 4, 5, 5),
    "channels_last": lambda: torch.randn(6, 4, 5, 5).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(20, 30).t(),
    "a view into a larger tensor": lambda: torch.randn(50, 30)[10:40],
    "0-dim": lambda: torch.randn(()),
    "empty": lambda: torch.randn(0, 3),
}


def gradients_of(p):
    """Gradients that hold the same numbers in other layouts."""
    g = torch.randn(p.shape, dtype=p.dtype)
    yield g
    yield g.flatten().flip(0).view(p.shape).flip(tuple(range(p.ndim))).contiguous() if p.ndim else g
    if p.ndim == 4:
        yield g.to(memory_format=torch.channels_last)
    if p.ndim == 2:
        yield g.t().contiguous().t()
        yield torch.randn(1, p.shape[1], dtype=p.dtype).expand(p.shape)


def steps_of(params, gradients, **flags):
    opt = ACMo([nn.Parameter(p.clone(memory_format=torch.preserve_format)) for p in params], lr=0.1, **flags)
    for gs in gradients:
        for p, g in zip(opt.param_groups[0]["params"], gs, strict=True):
            p.grad = g
        opt.step()
    return [p.detach() for p in opt.param_groups[0]["params"]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_memory_layout_equals_the_reference(layout):
    torch.manual_seed(0)
    p = LAYOUTS[layout]()
    other = torch.randn(17)
    gradients = [[g, torch.randn(17)] for g in gradients_of(p)]
    got = steps_of([p, other], gradients, fused=True)
    truth = steps_of([p, other], gradients, foreach=False, fused=False)
    torch.testing.assert_close(got, truth)


def test_mixed_dtypes_share_one_norm():
    torch.manual_seed(0)
    params = [torch.randn(9).to(dtype) for dtype in native.DTYPE_CODES]
    gradients = [[torch.randn(9).to(p.dtype) for p in params] for _ in range(5)]
    got, truth = steps_of(params, gradients, fused=True), steps_of(params, gradients, foreach=False, fused=False)
    for x, y in zip(got, truth, strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y)


def test_one_and_two_threads_give_the_same_bits():
    torch.manual_seed(0)
    params = [torch.randn(n) for n in (100_003, 3, 40_000)]
    gradients = [[torch.randn_like(p) for p in params] for _ in range(4)]
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(steps_of(params, gradients, fused=True, weight_decay=0.1, max_grad_norm=1.0))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def with_a_gap():
    """A parameter that is not dense in memory, beside one that is."""
    return [torch.randn(8, 6)[:, :3], torch.randn(5)]


def make(params, **flags):
    opt = ACMo([nn.Parameter(p) for p in params], lr=0.1, **flags)
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    return opt


def test_gaps_in_a_parameters_memory_are_left_alone():
    torch.manual_seed(0)
    params = with_a_gap()
    got, truth = make(params, fused=True), make([p.clone() for p in params], foreach=False)
    whole = params[0]._base.clone()
    for _ in range(3):
        got.step()
        truth.step()
    for p, q in zip(got.param_groups[0]["params"], truth.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p, q)
    assert not got.param_groups[0]["params"][0].is_contiguous()
    assert torch.equal(params[0]._base[:, 3:], whole[:, 3:])


def spoil(opt):
    """A moment that no kernel can run through."""
    opt.step()
    p = opt.param_groups[0]["params"][0]
    opt.state[p]["momentum_buffer"] = torch.ones(1).expand(p.shape).clone().repeat(2)[::2]


def test_tensors_the_kernel_cannot_handle_use_foreach():
    opt, truth = make([torch.ones(4)]), make([torch.ones(4)], foreach=False)
    for o in (opt, truth):
        spoil(o)
        o.step()
    torch.testing.assert_close(opt.param_groups[0]["params"], truth.param_groups[0]["params"])


def test_and_is_an_error_that_says_why_where_fused_was_asked_for():
    opt = make([torch.ones(4)], fused=True)
    spoil(opt)
    with pytest.raises(RuntimeError, match=r"fused=True.*dense.*fused=None"):
        opt.step()


def test_step_between_forward_and_backward_is_an_autograd_error():
    w = nn.Parameter(torch.ones(3))
    opt = ACMo([w], lr=0.1, fused=True)
    loss = (w * w).sum()
    w.grad = torch.ones(3)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_without_the_kernel_the_same_call_runs_on_foreach(monkeypatch):
    monkeypatch.setattr(native, "_loaded", "Turned off for a test.")
    opt = make([torch.randn(5)])
    opt.step()
    assert opt.telemetry()["grad_norm"] == pytest.approx(5**0.5)
    with pytest.raises(RuntimeError, match="Turned off for a test"):
        make([torch.randn(5)], fused=True)


def test_parameter_larger_than_its_state_is_an_error():
    opt = make([torch.randn(5)], fused=True)
    opt.step()
    p = opt.param_groups[0]["params"][0]
    p.grad = None
    p.data = torch.randn(5000)
    p.grad = torch.ones(5000)
    with pytest.raises(RuntimeError, match=r"shape \(5000,\).*momentum_buffer of shape \(5,\)"):
        opt.step()
