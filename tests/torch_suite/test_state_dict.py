"""The state dict: the same for the same training, fit for a file, and open to what other versions wrote."""

from __future__ import annotations

import io
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from .problems import LeastSquares
from .registry import BACKENDS, Case, optimizers


def given(problem: LeastSquares, named: bool) -> Any:
    return problem.named if named else problem.params


def assert_same_state(one: dict[str, Any], two: dict[str, Any], but: tuple[str, ...] = ("param_names",)) -> None:
    """Bit for bit, dtypes and all; names are optional."""
    for a, b in zip(one["param_groups"], two["param_groups"], strict=True):
        assert {k: v for k, v in a.items() if k not in but} == {k: v for k, v in b.items() if k not in but}
    assert one["state"].keys() == two["state"].keys()
    for index, state in one["state"].items():
        assert state.keys() == two["state"][index].keys()
        for name, value in state.items():
            assert_close(value, two["state"][index][name], rtol=0, atol=0, equal_nan=True)


def assert_goes_on(case: Case, saves_names: bool, loads_names: bool) -> dict[str, Any]:
    """Save, load and train on, beside the training that never stopped; returns the loaded one's state dict."""
    problem = LeastSquares()
    optimizer = case.build(given(problem, saves_names))
    problem.train(optimizer, 5)
    twin = problem.clone()
    loaded = case.build(given(twin, loads_names))
    loaded.load_state_dict(deepcopy(optimizer.state_dict()))
    for _ in range(5):
        problem.train(optimizer, 1)
        twin.train(loaded, 1)
        assert_close(problem.params, twin.params, rtol=0, atol=0)
    assert_same_state(optimizer.state_dict(), loaded.state_dict())
    return loaded.state_dict()


@optimizers(*BACKENDS)
def test_loaded_training_resumes_with_the_same_numbers(case: Case):
    assert_goes_on(case, saves_names=False, loads_names=False)


@pytest.mark.parametrize(("saves_names", "loads_names"), [(True, True), (True, False), (False, True)])
@optimizers(*BACKENDS, configurations=1)
def test_names_are_kept_when_either_side_has_them(case: Case, saves_names: bool, loads_names: bool):
    state_dict = assert_goes_on(case, saves_names, loads_names)
    assert state_dict["param_groups"][0]["param_names"] == ["weight", "bias"]


@optimizers(*BACKENDS, configurations=1)
def test_parameter_given_twice_is_in_the_state_dict_once(case: Case):
    optimizer = case.build(LeastSquares().params)
    once = optimizer.state_dict()["param_groups"][-1]
    optimizer.param_groups.extend(optimizer.param_groups)
    assert optimizer.state_dict()["param_groups"][-1] == once


@optimizers(*BACKENDS)
def test_a_file_read_with_weights_only_holds_what_was_saved(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.named)
    problem.train(optimizer, 3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert_same_state(torch.load(file, weights_only=True), optimizer.state_dict(), but=())


@optimizers(*BACKENDS)
def test_loading_leaves_the_given_state_dict_as_it_was(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 3)
    saved = deepcopy(optimizer.state_dict())
    kept = deepcopy(saved)
    case.build(problem.params).load_state_dict(saved)
    assert_same_state(saved, kept, but=())


@optimizers(*BACKENDS)
def test_state_dict_without_newer_options_loads_and_steps(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 3)
    old = deepcopy(optimizer.state_dict())
    lacking = [flag for flag in case.info.not_og_supported_flags if flag in old["param_groups"][0]]
    assert lacking
    for flag in lacking:
        del old["param_groups"][0][flag]

    loaded = case.build(problem.params)
    loaded.load_state_dict(old)
    for flag in lacking:
        if case.entry.fills_from_constructor:
            assert loaded.param_groups[0][flag] == optimizer.param_groups[0][flag], flag
        assert flag in loaded.param_groups[0]
    before = problem.clone()
    problem.train(loaded, 1)
    assert not torch.equal(problem.weight, before.weight)


@optimizers(*BACKENDS)
def test_an_older_pickle_that_lacks_newer_options_can_be_stepped(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 3)
    old = deepcopy(optimizer.__getstate__(), {id(p): p for p in problem.params})
    for group in old["param_groups"]:
        for flag in case.info.not_og_supported_flags:
            group.pop(flag, None)
    revived = object.__new__(case.info.optim_cls)
    revived.__setstate__(old)
    before = problem.clone()
    problem.train(revived, 1)
    assert not torch.equal(problem.weight, before.weight)


@optimizers(*BACKENDS)
def test_a_step_counter_that_is_a_plain_number_can_be_loaded(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 3)
    twin = problem.clone()
    old = deepcopy(optimizer.state_dict())
    for state in old["state"].values():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].item()
    loaded = case.build(twin.params)
    loaded.load_state_dict(old)
    problem.train(optimizer, 2)
    twin.train(loaded, 2)
    assert_close(problem.params, twin.params, rtol=0, atol=0)


@optimizers(*BACKENDS)
def test_state_loaded_for_another_dtype_has_its_dtypes(case: Case):
    problem = LeastSquares(dtype=torch.float32)
    optimizer = case.build(problem.params)
    problem.train(optimizer, 3)

    def dtypes(state: dict[str, Any]) -> dict[str, torch.dtype]:
        return {name: value.dtype for name, value in state.items() if isinstance(value, Tensor)}

    native, target = LeastSquares(dtype=torch.float64), LeastSquares(dtype=torch.float64)
    of_native, loaded = case.build(native.params), case.build(target.params)
    native.train(of_native, 1)
    loaded.load_state_dict(deepcopy(optimizer.state_dict()))
    for index, p in enumerate(target.params):
        assert dtypes(loaded.state[p]) == dtypes(of_native.state[native.params[index]])
        for name, value in loaded.state[p].items():
            assert_close(value, optimizer.state[problem.params[index]][name], rtol=0, atol=0, check_dtype=False)
    target.train(loaded, 1)


@optimizers(*BACKENDS)
def test_a_state_follows_its_parameter_to_another_device(case: Case):
    """The meta device stands for one that this machine does not have."""
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 3)
    elsewhere = [torch.nn.Parameter(p.detach().to("meta")) for p in problem.params]
    loaded = case.build(elsewhere)
    loaded.load_state_dict(deepcopy(optimizer.state_dict()))
    for p, q in zip(problem.params, elsewhere, strict=True):
        assert loaded.state[q].keys() == optimizer.state[p].keys()
        for value in loaded.state[q].values():
            assert not isinstance(value, Tensor) or value.shape != q.shape or value.device == q.device
