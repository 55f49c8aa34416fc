"""SpectralACMo over ranks equals the unsharded run; what it sends; checkpoints and ZeRO."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor

from acmo import SpectralACMo, matrix_exchange, scale
from acmo.scopes import is_spectral
from tests.support import sharded, sharded_rows
from tests.support.ranks import run_ranks

EVEN, MATRICES = sharded_rows.EVEN_MATRICES, sharded_rows.MATRICES
SPECTRAL: dict[str, Any] = {"unit_step": "spectral"}
BOUND = {torch.float64: 1e-11, torch.float32: 1e-5}
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "coupled, maximize": {"decoupled_weight_decay": False, "maximize": True, "delta": 1e-3},
    "int8, 3 iterations": {"momentum_dtype": torch.int8, "ns_steps": 3},
}
LAYOUTS = {
    1: ("fsdp",),
    2: ("fsdp", "tp1", "mixed"),
    3: ("fsdp", "tp0", "tp1"),
    4: ("fsdp", "hsdp", "fsdp+tp0", "fsdp+tp1"),
}


def shapes_of(layout: str) -> dict[str, tuple[int, ...]]:
    return EVEN if "+" in layout else MATRICES


def make(layout: str, options: dict[str, Any], dtype: torch.dtype, like: str = "") -> tuple[Any, Any]:
    return sharded_rows.make(layout, {**SPECTRAL, **options}, dtype, shapes_of(like or layout))


def compare(layout: str) -> dict[str, float]:
    """For every kind of step: the distance to the unsharded run, in units of the bound."""
    found = {}
    for dtype, bound in BOUND.items():
        for name, options in OPTIONS.items():
            if "int8" in name and (layout.endswith("tp1") or dtype == torch.float64):
                continue  # moments of rows that are cut keep the parameter's dtype; the scales are float32
            net, opt = make(layout, options, dtype)
            sharded_rows.advance(net, opt)
            whole, twin = make("plain", options, dtype, layout)
            sharded_rows.advance(whole, twin)
            off = sharded.distance(sharded_rows.whole_state(net, opt), sharded_rows.whole_state(whole, twin))
            found[f"{dtype}, {name}"] = off / bound
    return found


@pytest.mark.parametrize(
    ("world", "layout"), [(world, layout) for world, layouts in LAYOUTS.items() for layout in layouts]
)
def test_matrices_over_ranks_step_as_the_unsharded_ones(world: int, layout: str):
    for found in run_ranks(world, compare, layout):
        assert not {name: off for name, off in found.items() if not off < 1}


def orthogonalise_bfloat16() -> float:
    """Matrices in bfloat16, as GPUs send them, cut along different dimensions: the distance to the whole ones."""
    mesh = sharded.mesh_of((dist.get_world_size(),))
    wholes = [torch.randn(s, dtype=torch.float32) for s in [(20, 30), (31, 12), (9, 9)]]
    wholes = [(x / x.norm()).bfloat16() for x in wholes]
    owners = [distribute_tensor(x, mesh, [Shard(k % 2)]) for k, x in enumerate(wholes)]
    shards = [x.to_local() for x in owners]
    found = matrix_exchange.orthogonalise_shards(owners, shards, (mesh.get_group(),), 5)
    expected = matrix_exchange.orthogonalise(wholes, 5)
    cut = [distribute_tensor(x, mesh, o.placements) for x, o in zip(expected, owners, strict=True)]
    return max(float((x - y.to_local()).abs().max()) if x.numel() else 0.0 for x, y in zip(found, cut, strict=True))


def test_bfloat16_shards_are_those_of_the_whole_result():
    assert run_ranks(3, orthogonalise_bfloat16) == [0.0] * 3


def send(layout: str, options: dict[str, Any]) -> tuple[list[tuple[int, int]], int]:
    """What one step sends, and the bytes of this rank's entries of spectral matrices."""
    net, opt = make(layout, options, torch.float32)
    sharded.give(net, [torch.ones(p.shape) for p in net.parameters()])
    with sharded_rows.Tap() as tap:
        opt.step()
    mine = [p.to_local() for p in net.parameters() if is_spectral("auto", p.shape)]
    return tap.sent, sum(x.nbytes for x in mine)


def measured() -> dict[str, Any]:
    return {layout: send(layout, {}) for layout in ("fsdp", "hsdp", "fsdp+tp1")}


def test_a_step_sends_shards_once_and_their_directions_back():
    ranks = run_ranks(4, measured)
    for layout, ways in (("fsdp", 1), ("hsdp", 1), ("fsdp+tp1", 2)):
        world = {"fsdp": 4}.get(layout, 2)
        sent = [found[layout][0] for found in ranks]
        local = [found[layout][1] for found in ranks]
        assert all(len(own) == (3 if ways == 1 else 6) for own in sent)  # the norms, there, back: per mesh dimension
        assert all(ranks_asked == world for own in sent for ranks_asked, _ in own)
        if ways == 1:
            there = [own[1][1] for own in sent]
            assert there == local  # each rank sends its own entries, whatever the number of ranks
            assert sum(own[2][1] for own in sent) == sum(local)
    shapes = [s for s in MATRICES.values() if is_spectral("auto", s)]
    assert max(found["fsdp"][1] for found in ranks) <= scale.spectral_bytes(shapes, 4)
    assert ranks[0]["fsdp"][1] == scale.spectral_bytes(shapes, 4)  # the first rank is the fullest


def spoil(policy: str) -> dict[str, Any]:
    """Rank 1 has one infinite entry in a matrix: what moves, and what is raised."""
    net, opt = make("fsdp", {"nonfinite": policy}, torch.float32)
    sharded.give(net, [torch.randn(p.shape) for p in net.parameters()])
    before = [sharded.full(p) for p in net.parameters()]
    if dist.get_rank() == 1:
        net.square.grad.to_local().view(-1)[0] = math.inf
    raised = ""
    try:
        opt.step()
    except FloatingPointError as error:
        raised = str(error)
    moved = [not torch.equal(sharded.full(p), old) for p, old in zip(net.parameters(), before, strict=True)]
    return {"raised": raised, "moved": moved, "skipped": opt.skipped_steps}


def test_a_matrix_not_finite_on_one_rank_is_skipped_on_all():
    for found in run_ranks(2, spoil, "skip"):
        assert found == {"raised": "", "moved": [False, True, True, True, True, True], "skipped": 1}
    for found in run_ranks(2, spoil, "raise"):
        assert "not finite" in found["raised"]
        assert not any(found["moved"])


def save(folder: str) -> list[torch.Tensor]:
    net, opt = make("fsdp", {}, torch.float32)
    sharded_rows.advance(net, opt, 0, 3)
    dcp.save({"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, opt)}, checkpoint_id=folder)
    sharded_rows.advance(net, opt, 3)
    return sharded_rows.whole_state(net, opt)


def resume(folder: str) -> list[torch.Tensor]:
    net, opt = make("fsdp", {}, torch.float32)
    state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, opt)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(net, state["model"])  # type: ignore[arg-type]
    set_optimizer_state_dict(net, opt, state["optim"])  # type: ignore[arg-type]
    sharded_rows.advance(net, opt, 3)
    return sharded_rows.whole_state(net, opt)


def test_a_checkpoint_of_two_ranks_resumes_on_three(tmp_path: Path):
    end = run_ranks(2, save, str(tmp_path))[0]
    for found in run_ranks(3, resume, str(tmp_path)):
        assert sharded.distance(found, end) < 1e-5


def zero() -> float:
    """ZeroRedundancyOptimizer gives each rank whole tensors: nothing is sent by us."""
    net, whole = (sharded_rows.Tensors(MATRICES, torch.float32) for _ in range(2))
    opt = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=SpectralACMo, lr=0.1)
    twin = SpectralACMo(whole.parameters(), lr=0.1)
    with sharded_rows.Tap() as tap:
        sharded_rows.advance(net, opt)
    sharded_rows.advance(whole, twin)
    assert tap.sent == []
    return sharded.distance(list(net.parameters()), list(whole.parameters()))


def test_zero_redundancy_optimizer_needs_no_message():
    assert max(run_ranks(2, zero)) < 1e-5


def refuse() -> list[str]:
    found = []
    mesh = sharded.mesh_of((dist.get_world_size(),))
    p = nn.Parameter(distribute_tensor(torch.ones(12, 12), mesh, [Shard(0)]))
    for options in ({"foreach": False}, {"differentiable": True}, {"foreach": False, "norm_scope": "tensor"}):
        with pytest.raises(ValueError, match="DTensor") as error:
            SpectralACMo([p], **options)
        found.append(str(error.value))
    return found


def test_the_reference_refuses_sharded_matrices():
    for first, second, third in run_ranks(1, refuse):
        assert "foreach=False needs plain tensors" in first
        assert "differentiable=True" in second
        assert "foreach=False" in third
