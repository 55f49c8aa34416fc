"""The cache of parts and ‖m‖²: what it notices, and what it lets go."""

import copy
import weakref

import pytest
import torch
from torch import nn

from acmo import ACMo
from tests.support.backends import FOREACH, FUSED, Backend, every_backend


def step(p: torch.Tensor, opt: ACMo, t: int) -> None:
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(t))
    opt.step()


def twins(backend: Backend) -> tuple[list[nn.Parameter], list[ACMo]]:
    params = [nn.Parameter(torch.ones(4, 3)) for _ in range(2)]
    return params, [ACMo([p], lr=0.1, **backend) for p in params]


@every_backend
def test_moment_edited_in_place_gives_the_step_of_a_loaded_one(backend: Backend):
    (p, q), (opt, fresh) = twins(backend)
    for t in range(3):
        step(p, opt, t)
    opt.state[p]["momentum_buffer"].mul_(100.0)
    fresh.load_state_dict(copy.deepcopy(opt.state_dict()))
    q.data.copy_(p.data)
    step(p, opt, 3)
    step(q, fresh, 3)
    assert torch.equal(p, q)


@pytest.mark.filterwarnings("ignore:Profiler record function")
@pytest.mark.parametrize("backend", [FOREACH, FUSED], ids=["foreach", "fused"])
def test_moment_edited_between_compiled_steps_is_noticed(backend: Backend):
    torch._dynamo.reset()
    (p, q), (compiled, eager) = twins(backend)
    run = torch.compile(compiled.step, backend="aot_eager")
    for t in range(5):
        for x, opt, take in ((p, compiled, run), (q, eager, eager.step)):
            x.grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(t))
            if t == 3:
                opt.state[x]["momentum_buffer"].mul_(100.0)
            take()
    torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


@every_backend
def test_step_of_another_optimizer_on_the_same_state_is_noticed(backend: Backend):
    (p, q), (opt, alone) = twins(backend)
    step(p, opt, 0)
    step(q, alone, 0)
    partner = ACMo([p], lr=0.1, **backend)
    partner.state = opt.state
    for t in range(1, 7):
        step(p, opt if t % 2 else partner, t)
        step(q, alone, t)
    assert torch.equal(p, q)


@every_backend
def test_gradients_are_not_kept_alive_after_a_step(backend: Backend):
    (p, _), (opt, _) = twins(backend)
    for t in range(3):
        step(p, opt, t)
        grad = weakref.ref(p.grad)
        opt.zero_grad()
        assert grad() is None


@every_backend
def test_parameter_with_new_data_is_stepped_there(backend: Backend):
    (p, q), (opt, other) = twins(backend)
    for t in range(4):
        if t == 2:
            p.data = p.data.clone()
        step(p, opt, t)
        step(q, other, t)
    assert torch.equal(p, q)


@every_backend
def test_gradient_of_another_shape_is_an_error_with_both_shapes(backend: Backend):
    (p, _), (opt, _) = twins(backend)
    step(p, opt, 0)
    p.data = torch.ones(5, 3)
    p.grad = torch.ones(5, 3)
    with pytest.raises(RuntimeError, match=r"\(5, 3\).*\(4, 3\)"):
        opt.step()


def change_strides(p: nn.Parameter) -> None:
    p.grad = torch.arange(12.0).reshape(3, 4).t()


def replace_by_float64(p: nn.Parameter) -> None:
    p.data, p.grad = p.data.double(), None
    p.grad = torch.full((4, 3), 0.25, dtype=torch.float64)


def make_gradient_sparse(p: nn.Parameter) -> None:
    p.grad = torch.eye(4, 3).to_sparse()


@pytest.mark.parametrize("change", [change_strides, make_gradient_sparse, replace_by_float64])
@pytest.mark.parametrize("remembers_layouts", [True, False])
def test_changed_tensors_are_noticed_after_many_steps(change, remembers_layouts: bool, monkeypatch):
    if not remembers_layouts:  # as on a torch without it
        monkeypatch.setattr("acmo.step_memory.make_guards", None)
    (p, q), (opt, fresh) = twins({})
    for t in range(4):
        step(p, opt, t)
    fresh.load_state_dict(copy.deepcopy(opt.state_dict()))
    q.data.copy_(p.data)
    for x, own in ((p, opt), (q, fresh)):
        change(x)
        own.step()
    assert p.dtype == q.dtype
    assert torch.equal(p, q)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="only torch 2.13 compares layouts in one call")
def test_layouts_are_remembered_between_steps():
    (p, _), (opt, _) = twins({})
    for t in range(3):
        step(p, opt, t)
    layouts = [opt._gather()[0][0].layout for _ in range(2)]
    assert layouts[0] is not None
    assert layouts[0] is layouts[1]
