"""A gradient that is not finite on one rank: all ranks skip, or all raise."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import acmo.sharding
from acmo import ACMo
from acmo.skip_warning import SkippedStep
from tests.support import sharded
from tests.support.ranks import run_ranks


def nonfinite(layout: str, policy: str) -> dict[str, Any]:
    """Rank 1 gets a NaN in the third of five steps; what became of it."""
    net, opt = sharded.make(layout, {"nonfinite": policy}, torch.float64)
    inner = opt.optim if layout == "zero" else opt
    raised = ""
    for t, grads in enumerate(sharded.gradients(net, 5)):
        sharded.give(net, grads)
        # Its replica has the same, and under ZeRO every rank has all gradients, though only one steps that parameter.
        hit = {"hsdp1": dist.get_rank() % 2 == 1, "zero": True}.get(layout, dist.get_rank() == 1)
        if t == 2 and hit:
            local = [acmo.sharding.local(p.grad) for p in net.parameters() if p.grad is not None]
            next(g for g in local if g.numel()).view(-1)[0] = math.nan
        try:
            opt.step()
        except FloatingPointError as error:
            raised = str(error)
    finite = all(bool(torch.isfinite(sharded.full(p)).all()) for p in net.parameters())
    return {"finite": finite, "skipped": inner.skipped_steps, "raised": raised}


@pytest.mark.parametrize("layout", ["fsdp", "hsdp1", "tp", "fsdp+tp1", "mixed", "zero"])
def test_one_rank_with_a_nan_makes_every_rank_skip(layout: str):
    for found in run_ranks(4, nonfinite, layout, "skip"):
        assert found == {"finite": True, "skipped": 1, "raised": ""}


@pytest.mark.parametrize("layout", ["fsdp", "mixed", "zero"])
def test_one_rank_with_a_nan_makes_every_rank_raise(layout: str):
    for found in run_ranks(2, nonfinite, layout, "raise"):
        assert "not finite" in found["raised"]
        assert found["finite"]


def idle_rank(policy: str) -> str:
    """Rank 1 holds nothing of the model, and rank 0 has a NaN."""
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([{"params": [p] if dist.get_rank() == 0 else []}], process_group=dist.group.WORLD, nonfinite=policy)
    p.grad = torch.full((3,), math.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SkippedStep)  # rank 0 warns of it, as it should
        try:
            opt.step()
        except FloatingPointError:
            return "raised"
    return f"skipped {opt.skipped_steps}"


@pytest.mark.parametrize(("policy", "outcome"), [("skip", "skipped 1"), ("raise", "raised")])
def test_a_rank_without_parameters_does_as_the_others(policy: str, outcome: str):
    assert run_ranks(2, idle_rank, policy) == [outcome] * 2


def overflow(layout: str, policy: str) -> tuple[bool, int]:
    """A scaler that found an overflow on rank 1 alone."""
    net, opt = sharded.make(layout, {"nonfinite": policy}, torch.float64)
    sharded.give(net, [torch.ones(p.shape, dtype=torch.float64) for p in net.parameters()])
    inner = opt.optim if layout == "zero" else opt
    inner.found_inf = torch.tensor(float(dist.get_rank() == 1))
    before = [sharded.full(p) for p in net.parameters()]
    inner.step()
    same = all(torch.equal(sharded.full(p), old) for p, old in zip(net.parameters(), before, strict=True))
    return same, inner.skipped_steps


@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
@pytest.mark.parametrize("layout", ["fsdp", "mixed", "zero"])
def test_overflow_on_one_rank_makes_every_rank_skip(layout: str, policy: str):
    assert run_ranks(2, overflow, layout, policy) == [(True, 1)] * 2
