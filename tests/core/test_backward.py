"""Steps inside backward: the same bits as after it, one gradient at a time, saved and removed as one optimizer."""

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
from torch.optim import Optimizer, lr_scheduler

import acmo
from acmo import ACMo, RowACMo, step_in_backward
from acmo.projections import Box
from tests.support.backends import BACKENDS, Backend, every_backend
from tests.support.backward_nets import Net, assert_same_bits, assert_same_states, loss_of, make, train

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
