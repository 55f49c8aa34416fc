"""Optimizers can be printed, copied and pickled, and a copy trains as the original does."""

from __future__ import annotations

import pickle
from copy import deepcopy

import torch
from torch.optim import Optimizer
from torch.testing import assert_close

from .problems import LeastSquares
from .registry import BACKENDS, EVERY_WAY, Case, optimizers


def public(obj: object) -> set[str]:
    return {name for name in vars(obj) if not name.startswith("_")}


def assert_trains_alike(optimizer: Optimizer, copy: Optimizer) -> None:
    originals, copies = optimizer.param_groups[0]["params"], copy.param_groups[0]["params"]
    for _ in range(3):
        for p, q in zip(originals, copies, strict=True):
            assert p is not q
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        optimizer.step()
        before = [p.detach().clone() for p in originals]
        copy.step()
        assert_close(originals, before, rtol=0, atol=0)
        assert_close(originals, copies, rtol=0, atol=0)


@optimizers(*EVERY_WAY)
def test_an_optimizer_prints_its_name_and_options(case: Case):
    printed = repr(case.build(LeastSquares().params))
    assert printed.startswith(case.info.optim_cls.__name__)
    for name in ("lr", *case.kwargs()):
        if name in case.build(LeastSquares().params).defaults:
            assert f"{name}: " in printed


@optimizers(*BACKENDS)
def test_a_deepcopy_has_all_public_attributes_and_trains_alike(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 3)
    copy = deepcopy(optimizer)
    assert public(copy) == public(optimizer)
    assert_trains_alike(optimizer, copy)


@optimizers(*BACKENDS)
def test_a_pickled_optimizer_trains_alike(case: Case):
    problem = LeastSquares()
    optimizer = case.build(problem.params)
    problem.train(optimizer, 3)
    assert_trains_alike(optimizer, pickle.loads(pickle.dumps(optimizer)))
