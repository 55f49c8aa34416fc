"""State and tensors that a kernel with bare addresses must not trust: an error or the right number, never a crash."""

import pytest
import torch
from backends import every_backend
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from acmo import ACMo


def stepped(backend, **options):
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], lr=0.1, **backend, **options)
    p.grad = torch.ones(3)
    opt.step()
    return p, opt


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


@every_backend
def test_a_training_goes_on_from_sgd_where_a_parameter_has_no_gradient(backend):
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    sgd = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    for p in params:
        p.grad = torch.ones(2)
    sgd.step()
    opt = ACMo(params, **backend, psi="sqrt")
    opt.load_state_dict(sgd.state_dict())
    params[1].grad = None
    opt.step()
    assert float(opt.state[params[0]]["step"]) == 1


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


def test_the_kernels_ops_refuse_a_parameter_that_has_outgrown_its_state():
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
def test_raise_also_speaks_of_a_decayed_gradient(backend):
    p = nn.Parameter(torch.tensor([1.0, torch.nan]))
    opt = ACMo([("bad", p)], weight_decay=0.1, nonfinite="raise", **backend)
    p.grad = torch.ones(2)
    with pytest.raises(FloatingPointError, match="bad"):
        opt.step()


@every_backend
def test_making_state_is_no_skipped_step(backend):
    model = nn.Linear(2, 1)
    opt = ACMo(model.parameters(), **backend)
    get_optimizer_state_dict(model, opt)
    assert opt.skipped_steps == 0


@every_backend
def test_a_projection_that_writes_in_place_cannot_touch_a_step_that_was_skipped(backend):
    p = nn.Parameter(torch.tensor([-1.0, 2.0]))
    opt = ACMo([p], projection=lambda x: x.clamp_(min=0), **backend)
    assert torch.equal(p, torch.tensor([-1.0, 2.0]))
    p.grad = torch.tensor([torch.nan, 1.0])
    opt.step()
    assert torch.equal(p, torch.tensor([-1.0, 2.0]))
