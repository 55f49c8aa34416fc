"""Steps inside backward: the same bits as after it, one gradient at a time, and errors where that cannot be exact."""

from __future__ import annotations

import copy
import pickle
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer, lr_scheduler

import acmo
from acmo import ACMo, RowACMo, step_in_backward
from acmo.projections import Box
from tests.support.backends import BACKENDS, Backend, every_backend

WAYS: dict[str, tuple[type[ACMo], dict[str, Any]]] = {
    "auto": (RowACMo, {}),
    "row": (RowACMo, {"norm_scope": "row", "weight_decay": 0.1}),
    "column": (RowACMo, {"norm_scope": "column", "maximize": True}),
    "coupled": (RowACMo, {"weight_decay": 0.1, "decoupled_weight_decay": False, "unit_step": False}),
    "int8": (RowACMo, {"momentum_dtype": torch.int8}),
    "projected": (RowACMo, {"projection": Box(-0.2, 0.2), "lr": 0.1}),
    "tensor lr": (RowACMo, {"lr": torch.tensor(1e-2)}),
    "tensor": (ACMo, {"norm_scope": "tensor"}),
    "tensor, coupled": (ACMo, {"norm_scope": "tensor", "weight_decay": 0.1, "psi": "sqrt"}),
    "tensor, unit": (ACMo, {"norm_scope": "tensor", "unit_step": True}),
}
every_way = pytest.mark.parametrize("way", WAYS)


class Net(nn.Module):
    """A tied table and head, a convolution, a norm layer, and parameters without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.norm = nn.LayerNorm(6)
        self.idle = nn.Linear(6, 6)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.head = nn.Linear(6, 50)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.conv(self.table(tokens).transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(x).relu())


def make() -> Net:
    torch.manual_seed(0)
    return Net()


def loss_of(model: nn.Module, t: int = 0) -> Tensor:
    tokens = torch.randint(50, (4, 7), generator=torch.Generator().manual_seed(t))
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def train(model: nn.Module, opt: Optimizer, steps: range = range(5)) -> list[float]:
    losses = []
    for t in steps:
        loss = loss_of(model, t)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def assert_same_bits(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def assert_same_states(one: Optimizer, other: Optimizer) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert a["param_groups"] == b["param_groups"]
    assert_same_bits(a["state"], b["state"])


@every_way
@every_backend
def test_steps_in_backward_are_those_after_it(way: str, backend: Backend):
    cls, options = WAYS[way]
    inside, after = make(), make()
    opts = [
        step_in_backward(inside, cls, **{"lr": 1e-2, **options}, **backend),
        cls(after.named_parameters(), **{"lr": 1e-2, **options}, **backend),
    ]
    losses = [train(model, opt) for model, opt in zip((inside, after), opts, strict=True)]
    assert losses[0] == losses[1]
    assert_same_bits(list(inside.parameters()), list(after.parameters()))
    assert_same_states(*opts)
    reports = [opt.telemetry() for opt in opts]
    torch.testing.assert_close(*reports, rtol=1e-9, atol=1e-12, equal_nan=True)


@every_backend
def test_groups_keep_their_own_options_and_mix_scopes(backend: Backend):
    def groups(model: Net) -> list[dict[str, Any]]:
        groups = acmo.param_groups(model, weight_decay=0.1)
        groups[1] |= {"norm_scope": "tensor", "lr": 3e-2, "momentum": 0.5}
        return groups

    inside, after = make(), make()
    opts = [step_in_backward(groups(inside), RowACMo, **backend), RowACMo(groups(after), **backend)]
    schedules = [lr_scheduler.OneCycleLR(opt, [1e-2, 3e-2], total_steps=8) for opt in opts]
    for t in range(6):
        for model, opt, schedule in zip((inside, after), opts, schedules, strict=True):
            train(model, opt, range(t, t + 1))
            schedule.step()
    assert_same_bits(list(inside.parameters()), list(after.parameters()))
    assert_same_states(*opts)


def test_a_tied_weight_steps_once_per_backward():
    model = make()
    opt = step_in_backward(model, RowACMo)
    train(model, opt, range(3))
    assert [float(opt.state[p]["step"]) for p in (model.table.weight, model.conv.weight)] == [3, 3]


def test_gradients_do_not_exist_together():
    def run(inside: bool) -> tuple[int, int]:
        model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(20)])
        params, live, peak, most = list(model.parameters()), [], 0, 0

        def measure(p: Tensor) -> None:
            nonlocal peak, most
            live.append(weakref.ref(p.grad))
            peak = max(peak, sum(q.grad.nbytes for q in params if q.grad is not None))
            most = max(most, sum(ref() is not None for ref in live))

        for p in params:
            p.register_post_accumulate_grad_hook(measure)
        opt: Optimizer = step_in_backward(model, RowACMo) if inside else RowACMo(params)
        for _ in range(3):
            model(torch.ones(2, 64)).sum().backward()
            assert (params[0].grad is None) == inside
            opt.step()
            opt.zero_grad()
        return peak // (64 * 64 * 4), most

    assert run(inside=True) == (1, 1)
    assert run(inside=False) == (20, 20)


def test_memory_of_backward_is_that_of_one_gradient():
    def allocate(inside: bool) -> int:
        model = nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(20)])
        opt: Optimizer = step_in_backward(model, RowACMo) if inside else RowACMo(model.parameters())
        model(torch.ones(1, 128)).sum().backward()
        opt.step()
        opt.zero_grad()
        loss = model(torch.ones(1, 128)).sum()
        with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
            loss.backward()
        held = peak = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                peak = max(peak, held)
        return peak

    one = 128 * 128 * 4
    assert allocate(inside=False) >= 20 * one
    assert allocate(inside=True) < 3 * one


@pytest.mark.parametrize("backend", BACKENDS[2:])
def test_a_hook_does_not_look_at_other_parameters(backend: Backend):
    def count_calls(layers: int) -> float:
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
        opt = step_in_backward([{"params": [p]} for p in model.parameters()], RowACMo, **backend)
        p, calls = model[0].weight, 0

        def tally(frame: Any, event: str, arg: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            opt.step()
        model[1](torch.ones(1, 4)).sum().backward()  # the first of a step looks at all groups once
        p.grad = torch.ones_like(p)
        sys.setprofile(tally)
        opt._step_parameter(p)
        sys.setprofile(None)
        return calls

    assert count_calls(3) == count_calls(60)


def test_a_schedule_sees_the_steps_without_a_warning():
    model = make()
    opt = step_in_backward(model, RowACMo, lr=1e-2)
    schedule = lr_scheduler.StepLR(opt, 1, gamma=0.5)
    for t in range(3):
        train(model, opt, range(t, t + 1))
        schedule.step()  # warnings are errors
    assert opt.param_groups[0]["lr"] == pytest.approx(1e-2 / 8)


@every_backend
def test_state_moves_between_inside_and_after_backward(backend: Backend):
    models = [make() for _ in range(3)]
    inside = step_in_backward(models[0], RowACMo, **backend)
    after, straight = (RowACMo(m.named_parameters(), **backend) for m in models[1:])
    train(models[0], inside, range(3))
    after.load_state_dict(inside.state_dict())
    models[1].load_state_dict(models[0].state_dict())
    train(models[1], after, range(3, 5))
    inside.load_state_dict(after.state_dict())
    models[0].load_state_dict(models[1].state_dict())
    train(models[0], inside, range(5, 7))
    train(models[2], straight, range(7))
    assert_same_bits(list(models[0].parameters()), list(models[2].parameters()))
    assert_same_states(inside, straight)


def test_checkpoints_of_torch_distributed_work_before_a_step():
    model, other = make(), make()
    for net in (model, other):
        net.idle.requires_grad_(False)
    opt, loaded = (step_in_backward(m, RowACMo) for m in (model, other))
    train(model, opt, range(2))
    saved = get_optimizer_state_dict(model, opt)
    set_optimizer_state_dict(other, loaded, saved)
    other.load_state_dict(model.state_dict())
    assert train(model, opt, range(2, 4)) == train(other, loaded, range(2, 4))
    assert_same_states(opt, loaded)


def test_removed_hooks_leave_an_ordinary_optimizer():
    inside, after = make(), make()
    opt, plain = step_in_backward(inside, RowACMo), RowACMo(after.named_parameters())
    train(inside, opt, range(2))
    loss_of(inside, 2).backward()
    opt.remove()
    opt.remove()
    assert opt.telemetry()["skipped_steps"] == 0
    seen: list[Any] = []
    opt.register_step_post_hook(lambda *_: seen.append(1))
    train(inside, opt, range(3, 5))
    loss_of(inside, 5).backward()
    loss_of(inside, 6).backward()  # accumulates
    assert opt.step(lambda: 7.0) == 7.0
    train(after, plain, range(5))
    loss_of(after, 5).backward()
    loss_of(after, 6).backward()
    plain.step()
    assert_same_bits(list(inside.parameters()), list(after.parameters()))
    assert len(seen) == 3
    step_in_backward(inside, RowACMo).remove()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_an_ordinary_optimizer(duplicate: Any):
    model = make()
    opt = step_in_backward(model, RowACMo)
    train(model, opt, range(2))
    other, twin = duplicate((model, opt))
    assert type(twin) is RowACMo
    assert isinstance(opt, RowACMo)
    assert train(model, opt) == train(other, twin)
    assert_same_states(opt, twin)


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
