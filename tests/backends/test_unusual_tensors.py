"""State and tensors whose memory is not as expected give an error or the right number, never a crash."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from acmo import ACMo, RowACMo
from tests.support.backends import every_backend
from tests.support.steps import stepped


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16])
def test_numbers_of_another_dtype_are_read_for_what_they_are(backend, dtype):
    p, opt = stepped(backend, psi="sqrt")
    opt.step()
    opt.state[p]["step"] = opt.state[p]["step"].to(dtype)
    opt.state[p]["beta_hat"] = torch.tensor(float(opt.state[p]["beta_hat"]), dtype=torch.float32)
    opt.step()
    assert float(opt.state[p]["step"]) == 3
    assert torch.isfinite(p).all()


@every_backend
def test_a_step_that_is_no_number_is_an_error_that_names_it(backend):
    p, opt = stepped(backend)
    opt.state[p]["step"] = torch.empty(0)
    with pytest.raises(ValueError, match=r"step .* shape \(0,\)"):
        opt.step()


def test_tensors_without_memory_go_to_foreach():
    with FakeTensorMode():
        p = nn.Parameter(torch.ones(3))
        p.grad = torch.ones(3)
        ACMo([p], foreach=True).step()
        assert ACMo([p]).step() is None
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], lr=0.1, weight_decay=1.0)
    p.grad = torch._efficientzerotensor((3,))
    opt.step()
    assert torch.allclose(p, torch.full((3,), 0.9))


@pytest.mark.parametrize("make", [ACMo, RowACMo])
@pytest.mark.parametrize("unusual", [torch._efficientzerotensor, lambda n: torch._neg_view(torch.ones(n))])
def test_lazy_gradients_are_noticed_after_plain_ones(make, unusual):
    a, b = (nn.Parameter(torch.ones(3)) for _ in range(2))
    fast, slow = make([a], lr=0.1), make([b], lr=0.1, foreach=False)
    for _ in range(4):  # from here on the layout is known
        a.grad, b.grad = torch.ones(3), torch.ones(3)
        fast.step()
        slow.step()
    a.grad = unusual(3)
    b.grad = a.grad.clone().resolve_neg() + torch.zeros(3)
    fast.step()
    slow.step()
    torch.testing.assert_close(a, b)


def test_kernel_ops_refuse_a_parameter_larger_than_its_state():
    a, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    opt = ACMo([{"params": [a]}, {"params": [b]}])
    a.grad, b.grad = torch.ones(4), torch.ones(4)
    opt.step()
    opt.state[b]["momentum_buffer"] = torch.zeros(8)[::2]
    a.grad = None
    a.data = torch.ones(1 << 16)
    a.grad = torch.ones(1 << 16)
    with pytest.raises(RuntimeError):
        opt.step()


def test_lazy_views_are_refused_as_parameters():
    with pytest.raises(ValueError, match="lazy view"):
        ACMo([nn.Parameter(torch._neg_view(torch.ones(2)))])


@every_backend
def test_steps_under_inference_mode_are_those_outside(backend):
    a, b = (torch.ones(4, requires_grad=True) for _ in range(2))
    one, other = ACMo([a], **backend), ACMo([b], **backend)
    for _ in range(3):
        a.grad, b.grad = torch.arange(4.0), torch.arange(4.0)
        one.step()
        with torch.inference_mode():
            other.step()
    assert torch.equal(a, b)


@every_backend
def test_a_shallow_copy_shares_the_state_and_what_is_known_of_it(backend):
    a, b = (torch.ones(4, requires_grad=True) for _ in range(2))
    one, other = ACMo([a], **backend), ACMo([b], **backend)
    twin = copy.copy(one)
    for t in range(6):
        a.grad, b.grad = torch.arange(4.0) + t, torch.arange(4.0) + t
        (one if t % 2 else twin).step()
        other.step()
    assert torch.equal(a, b)


@every_backend
def test_a_moment_that_changes_its_dtype_by_data_harms_no_memory(backend):
    ps = [nn.Parameter(torch.ones(4096)) for _ in range(2)]
    opt = ACMo(ps, **backend)
    for _ in range(2):
        for p in ps:
            p.grad = torch.ones_like(p)
        opt.step()
        m = opt.state[ps[1]]["momentum_buffer"]
        m.data = m.data.bfloat16()
    assert all(p.isfinite().all() for p in ps)


@every_backend
def test_another_default_device_is_none_of_our_business(backend):
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], lr=0.5, **backend)
    p.grad = torch.ones(3)
    try:
        torch.set_default_device("meta")
        opt.step()
        opt.step()
    finally:
        torch.set_default_device(None)
    assert p.tolist() == pytest.approx([1 - 0.5 - 0.5 * 1.9] * 3)


@every_backend
def test_the_moments_of_replaced_parameters_are_let_go(backend):
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], **backend)
    moments = []
    for _ in range(6):
        p.grad = torch.ones_like(p)
        opt.step()
        old = opt.state.pop(p)
        moments.append(weakref.ref(old["momentum_buffer"]))
        p = nn.Parameter(torch.ones(len(p) + 1))
        opt.param_groups[0]["params"][0] = p
        opt.state[p] = {"momentum_buffer": torch.ones(len(p)), "step": old["step"]}
        del old
    p.grad = torch.ones_like(p)
    opt.step()
    gc.collect()
    assert sum(ref() is not None for ref in moments) <= 1


@every_backend
def test_a_hook_is_called_once_a_step_under_inference_mode(backend):
    _, opt = stepped(backend)
    calls = []
    opt.register_step_post_hook(lambda *_: calls.append(1))
    with torch.inference_mode():
        opt.step()
    assert calls == [1]


@every_backend
def test_a_parameter_of_another_shape_than_its_moment_is_refused(backend):
    p = nn.Parameter(torch.ones(4, 3))
    opt = ACMo([p], **backend)
    p.grad = torch.ones(4, 3)
    opt.step()
    opt.state[p]["momentum_buffer"] = torch.ones(12)
    with pytest.raises(RuntimeError, match=r"\(4, 3\).*\(12,\)"):
        opt.step()
