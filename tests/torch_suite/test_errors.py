"""What should be an error is one, and says what was wrong."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn
from torch.testing._internal.common_optimizers import OptimizerErrorEnum

from .problems import LeastSquares
from .registry import BACKENDS, Case, Entry, optimizer_entries, optimizers


@optimizer_entries
def test_the_info_leaves_the_choice_of_backend_to_the_checks(entry: Entry):
    for given in entry.info.optim_inputs_func(device="cpu"):
        assert not {"foreach", "fused", "differentiable"} & given.kwargs.keys()


@optimizer_entries
def test_bad_input_gets_the_error_that_the_info_names(entry: Entry):
    wrong = []
    for error in entry.info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        params, kwargs = error.optimizer_error_input.params, error.optimizer_error_input.kwargs
        what = f"{error.optimizer_error_input.desc}: {kwargs}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                optimizer = entry.info.optim_cls(params, **kwargs)
                if error.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR:
                    wrong.append(f"{what} was accepted")
                else:
                    optimizer.step()
                    wrong.append(f"{what} was stepped")
        except error.error_type as raised:
            if not re.search(error.error_regex, str(raised)):
                wrong.append(f"{what} says {raised}, not {error.error_regex}")
        except Exception as raised:
            wrong.append(f"{what} raises {raised!r}, not {error.error_type.__name__}")
    assert not wrong, "\n".join(wrong)


@optimizers("reference", "foreach")
def test_sparse_gradients_are_refused_or_equal_dense_ones(case: Case):
    sparse = LeastSquares()
    dense = sparse.clone()
    suited = case.info.metadata_for_sparse[0]
    optimizer, optimizer_of_dense = case.build(sparse.params, **suited), case.build(dense.params, **suited)
    for step in range(10):
        for problem in (sparse, dense):
            problem.closure()
            problem.weight.grad[step % 10 :] = 0.0
        sparse.weight.grad = sparse.weight.grad.to_sparse(1)
        if not case.info.supports_sparse:
            before = sparse.weight.detach().clone()
            with pytest.raises(RuntimeError, match="sparse"):
                optimizer.step()
            assert torch.equal(sparse.weight, before)
            return
        optimizer.step()
        optimizer_of_dense.step()
        torch.testing.assert_close(sparse.params, dense.params)


@optimizers("fused")
def test_fused_refuses_parameters_on_meta_until_they_are_real(case: Case):
    p = nn.Parameter(torch.zeros(3, device="meta"))
    optimizer = case.build([p])
    p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="fused"):
        optimizer.step()

    optimizer.zero_grad()
    torch.utils.swap_tensors(p, nn.Parameter(torch.zeros(3)))  # as Module.to_empty does, if told to
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert (p != 0).all()


@optimizers(*BACKENDS, configurations=1)
def test_a_state_of_other_groups_is_refused(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 1)
    other = case.build([problem.weight])
    with pytest.raises(ValueError, match="doesn't match the size"):
        other.load_state_dict(optimizer.state_dict())
