"""Limits of steps inside backward: what is refused, groups that change, gradients that are skipped or sparse."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from acmo import ACMo, RowACMo, step_in_backward
from tests.support.backends import Backend, every_backend
from tests.support.backward_nets import assert_same_bits, loss_of, make, train


def test_accumulation_is_refused_and_one_step_is_kept():
    model, once = make(), make()
    opt = step_in_backward(model, RowACMo)
    train(model, opt, range(1))
    train(once, step_in_backward(once, RowACMo), range(2))
    loss_of(model, 1).backward()
    with pytest.raises(RuntimeError, match=r"parameter 'head\.bias' got a second gradient .* accumulated .*opt\.step"):
        loss_of(model, 2).backward()
    assert_same_bits(list(model.parameters()), list(once.parameters()))
    assert all(p.grad is None for p in model.parameters())
    opt.step()
    train(model, opt, range(2))


def test_two_losses_of_different_parameters_are_no_accumulation():
    nets = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    opt = step_in_backward(nets, RowACMo)
    for _ in range(2):
        for net in nets:
            net(torch.ones(1, 3)).sum().backward()
        opt.step()
    assert {float(opt.state[p]["step"]) for p in nets.parameters()} == {2.0}


def test_retained_graph_is_refused_by_autograd():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    opt = step_in_backward(model, RowACMo)
    loss = model(torch.ones(1, 3)).sum()
    loss.backward(retain_graph=True)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_gradient_penalty_by_autograd_grad_is_exact():
    inside, after = nn.Linear(3, 3), nn.Linear(3, 3)
    after.load_state_dict(inside.state_dict())
    for model, opt in ((inside, step_in_backward(inside, RowACMo)), (after, RowACMo(after.parameters()))):
        x = torch.ones(1, 3, requires_grad=True)
        y = model(x).square().sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        (y + slope.square().sum()).backward()
        opt.step()
    assert_same_bits(list(inside.parameters()), list(after.parameters()))


@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_is_refused(unscale: bool):
    model = make()
    opt = step_in_backward(model, RowACMo)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model)).backward()
    if unscale:
        scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="GradScaler looks for overflow after backward"):
        scaler.step(opt)
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    opt.step()
    disabled.scale(loss_of(model)).backward()
    disabled.step(opt)
    opt.grad_scale = torch.ones(())
    with pytest.raises(RuntimeError, match="GradScaler"):
        loss_of(model).backward()


def test_a_closure_is_refused():
    opt = step_in_backward(make(), RowACMo)
    with pytest.raises(RuntimeError, match="closure calls backward"):
        opt.step(lambda: 0.0)


@pytest.mark.parametrize(
    ("cls", "options", "why"),
    [
        (ACMo, {}, "norm_scope='global' needs the norm of many gradients"),
        (ACMo, {"norm_scope": "group"}, "norm_scope='group' needs the norm"),
        (ACMo, {"norm_scope": "tensor", "max_grad_norm": 1.0}, r"max_grad_norm=1\.0 needs the norm of all"),
        (RowACMo, {"differentiable": True}, "autograd cannot record"),
    ],
)
def test_options_that_need_all_gradients_are_refused(cls: type[ACMo], options: dict[str, Any], why: str):
    model = make()
    with pytest.raises(ValueError, match=why):
        step_in_backward(model, cls, **options)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    opt = step_in_backward(model, RowACMo)
    with pytest.raises(ValueError, match=why):
        opt.load_state_dict(cls(make().named_parameters(), **options).state_dict())
    for group in opt.param_groups:
        group.update({"norm_scope": cls(make().parameters(), **options).param_groups[0]["norm_scope"], **options})
        group["unit_step"] = False
    with pytest.raises(ValueError, match=why):
        loss_of(model).backward()


def test_other_classes_and_wrappers_are_refused():
    with pytest.raises(TypeError, match=r"subclass of acmo\.ACMo, got <class 'torch\.optim\.sgd\.SGD'>"):
        step_in_backward(make(), SGD)
    wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
    with pytest.raises(TypeError, match="averages gradients after the hooks"):
        step_in_backward(wrapper, RowACMo)
    model = make()
    step_in_backward(model, RowACMo)
    with pytest.raises(ValueError, match=r"already steps inside backward: call remove\(\)"):
        step_in_backward(model, RowACMo)


def test_groups_that_change_are_followed():
    model, extra = nn.Linear(3, 3), nn.Linear(3, 3)
    opt = step_in_backward(model.parameters(), RowACMo)
    opt.add_param_group({"params": list(extra.parameters()), "lr": 0.1})
    with pytest.raises(ValueError, match="norm_scope='global' needs the norm"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(3))], "norm_scope": "global"})
    extra(model(torch.ones(1, 3))).sum().backward()
    opt.step()
    assert {float(opt.state[p]["step"]) for p in (*model.parameters(), *extra.parameters())} == {1.0}
    del opt.param_groups[0]
    extra(model(torch.ones(1, 3))).sum().backward()
    opt.step()
    assert [float(opt.state[p]["step"]) for p in extra.parameters()] == [2.0, 2.0]
    assert model.weight.grad is not None


def test_an_unfrozen_parameter_steps_in_step():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight.requires_grad_(False)
    opt = step_in_backward(model, RowACMo)
    model[0].weight.requires_grad_()
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    assert {float(opt.state[p]["step"]) for p in model.parameters()} == {1.0}


@pytest.mark.parametrize("way", [(RowACMo, {}), (ACMo, {"norm_scope": "tensor"})], ids=["row", "tensor"])
@every_backend
def test_a_step_with_skipped_parameters_counts_once(way: tuple[type[ACMo], dict[str, Any]], backend: Backend):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    opt = step_in_backward(model, way[0], **way[1], **backend)
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    before = copy.deepcopy(list(model.parameters()))
    loss = model(torch.ones(1, 3)).sum()
    model[0].weight.register_hook(lambda g: g * torch.nan)
    model[0].bias.register_hook(lambda g: g * torch.inf)
    loss.backward()
    opt.step()
    unchanged = [torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert unchanged == [True, True, False, False]
    assert opt.skipped_steps == opt.telemetry()["skipped_steps"] == opt.state_dict()["param_groups"][0]["skipped_steps"]
    assert opt.skipped_steps == 1
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    assert opt.skipped_steps == 2


@every_backend
def test_raise_names_the_parameter_and_what_has_stepped(backend: Backend):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    opt = step_in_backward(model, RowACMo, nonfinite="raise", **backend)
    handle = model[0].weight.register_hook(lambda g: g * torch.nan)
    with pytest.raises(FloatingPointError, match=r"parameter '0\.weight' is not finite; it was not .* have stepped"):
        model(torch.ones(1, 3)).sum().backward()
    handle.remove()
    opt.step()
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    assert float(opt.state[model[0].weight]["step"]) == 1.0


@every_backend
def test_a_parameter_at_rate_0_and_gradient_0_counts_its_step(backend: Backend):
    models = [nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    opts = [step_in_backward(models[0], RowACMo, lr=0.0, **backend), RowACMo(models[1].parameters(), lr=0.0, **backend)]
    for model, opt in zip(models, opts, strict=True):
        model(torch.zeros(1, 3)).sum().backward()
        opt.step()
    assert_same_bits(*[[opt.state[p]["step"] for p in m.parameters()] for m, opt in zip(models, opts, strict=True)])


def test_sparse_gradients_step_in_backward():
    tables = [nn.Embedding(9, 4, sparse=True) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    for table, opt in ((tables[0], step_in_backward(tables[0], RowACMo)), (tables[1], RowACMo(tables[1].parameters()))):
        for t in range(3):
            table(torch.tensor([1, t])).square().sum().backward()
            opt.step()
            opt.zero_grad()
    assert_same_bits(tables[0].weight, tables[1].weight)
