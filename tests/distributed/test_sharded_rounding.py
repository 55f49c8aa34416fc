"""Stochastic rounding over ranks: an entry's bits depend on its place in the whole tensor, not on its shard."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from acmo.rounding import find_first_index, index_entries
from acmo.sharding import local
from tests.support import sharded, sharded_rows
from tests.support.ranks import run_ranks

LAYOUTS = {2: ("fsdp", "tp0", "tp1", "fsdp+tp1"), 3: ("fsdp", "tp1"), 4: ("hsdp", "fsdp+tp0")}
CASES = [(world, layout) for world, layouts in LAYOUTS.items() for layout in layouts]


def number_entries(layout: str) -> bool:
    """Whether the numbers of all ranks' entries, put together, are those of the whole tensor."""
    for even in (False, True):
        shapes = sharded_rows.EVEN if even or "+" in layout else sharded_rows.UNEVEN
        net = sharded_rows.Tensors(shapes, torch.float64)
        sharded_rows.lay_out(net, layout)
        for p in net.parameters():
            index = index_entries(local(p), p)
            first = find_first_index(p)
            if first is not None and index.numel():
                assert torch.equal(index.flatten(), torch.arange(first, first + index.numel()))
            with torch.no_grad():
                local(p).copy_(index)
            if not torch.equal(sharded.full(p).flatten(), torch.arange(p.numel(), dtype=p.dtype)):
                return False
    return True


def compare(layout: str, options: dict[str, Any]) -> float:
    """The share of entries with the bits of the unsharded run."""
    shapes = sharded_rows.EVEN if "+" in layout else sharded_rows.BARE
    ends = []
    for way in (layout, "plain"):
        net, opt = sharded_rows.make(way, {"lr": 1e-3, "stochastic_rounding": True, **options}, torch.bfloat16, shapes)
        sharded_rows.advance(net, opt)
        ends.append(torch.cat([sharded.full(p).flatten() for p in net.parameters()]))
    return float((ends[0] == ends[1]).double().mean())


@pytest.mark.parametrize(("world", "layout"), CASES)
def test_entries_of_shards_have_their_numbers_in_the_whole(world: int, layout: str):
    assert run_ranks(world, number_entries, layout) == [True] * world


@pytest.mark.parametrize("layout", ["fsdp", "tp0"])
def test_sharded_rows_round_to_the_bits_of_the_unsharded_run(layout: str):
    assert run_ranks(3, compare, layout, {"norm_scope": "row"}) == [1.0] * 3


def test_rows_that_are_cut_round_to_nearly_the_same_bits():
    # ‖m_t‖ of a cut row differs in the last bit of a float32, which seldom decides.
    assert min(run_ranks(2, compare, "tp1", {"norm_scope": "row"})) > 0.97
    assert min(run_ranks(2, compare, "tp1", {"norm_scope": "column"})) > 0.97


def resume(half: int) -> bool:
    """Whether a resumed run under FSDP2 has the bits of the unbroken one."""
    ends = []
    for broken in (False, True):
        net, opt = sharded_rows.make("fsdp", {"stochastic_rounding": True}, torch.bfloat16)
        sharded_rows.advance(net, opt, 0, half)
        if broken:
            twin, other = sharded_rows.make("fsdp", {"stochastic_rounding": True}, torch.bfloat16)
            twin.load_state_dict(net.state_dict())
            other.load_state_dict(opt.state_dict())
            net, opt = twin, other
        sharded_rows.advance(net, opt, half)
        ends.append([local(p).clone() for p in net.parameters()])
    dist.barrier()
    return all(torch.equal(p, q) for p, q in zip(*ends, strict=True))


def test_resumed_sharded_run_rounds_to_the_same_bits():
    assert run_ranks(2, resume, 3) == [True, True]
