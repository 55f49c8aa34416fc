"""Every kind of hook that torch.optim.Optimizer registers fires, in order, and can be removed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .problems import LeastSquares
from .registry import BACKENDS, EVERY_WAY, Case, optimizers


def a_param() -> list[torch.Tensor]:
    return [torch.rand(2, 3, requires_grad=True)]


@optimizers(*EVERY_WAY, configurations=1)
def test_step_hooks_fire_around_each_step_until_removed(case: Case):
    optimizer = case.build(a_param())
    fired: list[str] = []
    pre = optimizer.register_step_pre_hook(lambda opt, args, kwargs: fired.append("pre"))
    post = optimizer.register_step_post_hook(lambda opt, args, kwargs: fired.append("post"))
    optimizer.step()
    optimizer.step()
    assert fired == ["pre", "post"] * 2
    pre.remove()
    optimizer.step()
    post.remove()
    optimizer.step()
    assert fired == ["pre", "post"] * 2 + ["post"]


@optimizers(*EVERY_WAY, configurations=1)
def test_a_step_pre_hook_may_replace_the_arguments(case: Case):
    optimizer = case.build(a_param())
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((opt, lambda: 42.0), {}))
    assert optimizer.step() == 42.0


@optimizers(*EVERY_WAY, configurations=1)
def test_global_hooks_fire_outside_the_optimizers_own(case: Case):
    fired: list[str] = []

    def note(what: str) -> Any:
        return lambda opt, args, kwargs: fired.append(f"{what} {type(opt).__name__}")

    one, two = case.build(a_param()), SGD(a_param(), lr=0.1)
    handles = [
        register_optimizer_step_pre_hook(note("global pre")),
        register_optimizer_step_post_hook(note("global post")),
        *(opt.register_step_pre_hook(note("pre")) for opt in (one, two)),
        *(opt.register_step_post_hook(note("post")) for opt in (one, two)),
    ]
    try:
        one.step()
        two.step()
    finally:
        for handle in handles:
            handle.remove()
    order = ("global pre", "pre", "post", "global post")
    assert fired == [f"{what} {name}" for name in (case.info.optim_cls.__name__, "SGD") for what in order]
    one.step()
    assert len(fired) == 8


def put_a_test_entry_into_state(optimizer: Optimizer) -> None:
    optimizer.state["test"] = 1


def take_the_test_entry_out(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    return state_dict | {
        "state": {k: v for k, v in state_dict["state"].items() if k != "test"},
        "had_test": "test" in state_dict["state"],
    }


@optimizers(*EVERY_WAY, configurations=1)
def test_state_dict_pre_hook_runs_before_the_state_is_read(case: Case):
    optimizer = case.build(a_param())
    handle = optimizer.register_state_dict_pre_hook(put_a_test_entry_into_state)
    assert optimizer.state_dict()["state"]["test"] == 1
    handle.remove()
    del optimizer.state["test"]
    assert "test" not in optimizer.state_dict()["state"]


@optimizers(*EVERY_WAY, configurations=1)
def test_a_state_dict_post_hook_may_replace_the_state_dict(case: Case):
    optimizer = case.build(a_param())
    handle = optimizer.register_state_dict_post_hook(take_the_test_entry_out)
    assert optimizer.state_dict()["had_test"] is False
    handle.remove()
    assert "had_test" not in optimizer.state_dict()


@optimizers(*EVERY_WAY, configurations=1)
def test_state_dict_hooks_fire_pre_then_post(case: Case):
    optimizer = case.build(a_param())
    optimizer.register_state_dict_pre_hook(put_a_test_entry_into_state)
    optimizer.register_state_dict_post_hook(take_the_test_entry_out)
    state_dict = optimizer.state_dict()
    assert state_dict["had_test"] is True
    assert "test" not in state_dict["state"]


def lr_in_place(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    state_dict["param_groups"][0]["lr"] = 0.002


def lr_in_a_copy(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    copy = deepcopy(state_dict)
    copy["param_groups"][0]["lr"] = 0.003
    return copy


@optimizers(*EVERY_WAY, configurations=1)
def test_load_pre_hooks_change_the_loaded_state_in_order(case: Case):
    optimizer = case.build(a_param())
    state_dict = optimizer.state_dict()
    optimizer.register_load_state_dict_pre_hook(lr_in_place)
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["lr"] == 0.002

    in_front = optimizer.register_load_state_dict_pre_hook(lr_in_a_copy, prepend=True)
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["lr"] == 0.002

    in_front.remove()
    optimizer.register_load_state_dict_pre_hook(lr_in_a_copy)
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["lr"] == 0.003


@optimizers(*EVERY_WAY, configurations=1)
def test_a_load_state_dict_post_hook_sees_what_was_loaded(case: Case):
    optimizer = case.build(a_param())
    seen: list[float] = []
    optimizer.register_load_state_dict_pre_hook(lr_in_a_copy)
    handle = optimizer.register_load_state_dict_post_hook(lambda opt: seen.append(opt.param_groups[0]["lr"]))
    optimizer.load_state_dict(optimizer.state_dict())
    handle.remove()
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [0.003]


@optimizers(*EVERY_WAY, configurations=1)
def test_load_post_hook_sees_options_that_the_state_lacked(case: Case):
    optimizer = case.build(a_param())
    old = deepcopy(optimizer.state_dict())
    lacking = set(case.info.not_og_supported_flags) & old["param_groups"][0].keys()
    for flag in lacking:
        del old["param_groups"][0][flag]
    seen: set[str] = set()
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.update(opt.param_groups[0]))
    optimizer.load_state_dict(old)
    assert lacking
    assert lacking <= seen


@optimizers(*BACKENDS)
def test_hooks_leave_a_training_as_it_is(case: Case):
    """An entry of a hook's own in `state`, as torch's checks make one, is saved, loaded and otherwise left alone."""
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    optimizer.register_state_dict_pre_hook(put_a_test_entry_into_state)
    problem.train(optimizer, 2)
    twin = problem.clone()
    loaded = case.build(twin.params)
    loaded.load_state_dict(deepcopy(optimizer.state_dict()))
    assert loaded.state["test"] == 1
    problem.train(optimizer, 2)
    twin.train(loaded, 2)
    torch.testing.assert_close(problem.params, twin.params, rtol=0, atol=0)
