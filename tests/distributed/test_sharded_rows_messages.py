"""What a step of RowACMo sends, and what one rank's bad gradient or overflow does on the others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate

import acmo.sharding
from acmo import scale
from tests.support import sharded, sharded_rows
from tests.support.ranks import run_ranks

EVEN, UNEVEN, BARE = sharded_rows.EVEN, sharded_rows.UNEVEN, sharded_rows.BARE
Sent = list[tuple[int, int]]  # (ranks, bytes) per message


def send(layout: str, options: dict[str, Any], shapes: dict[str, tuple[int, ...]], overflow: bool = False) -> Sent:
    """What one step sends."""
    net, opt = sharded_rows.make(layout, options, torch.float32, shapes)
    sharded.give(net, [torch.ones(p.shape) for p in net.parameters()])
    if overflow:
        opt.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    with sharded_rows.Tap() as tap:
        opt.step()
    return tap.sent


COUPLED: dict[str, Any] = {"decoupled_weight_decay": False, "norm_scope": "row"}
CLIPPED: dict[str, Any] = {"unit_step": False, "max_grad_norm": 1.0}
CUT = 4 + 1 + 1 + 1  # FSDP2 cuts the 4 columns of the table, and thin, bias and gain, which are one row each


def measured() -> dict[str, Sent]:
    return {
        "bare": send("fsdp", {}, BARE),
        "bare int8": send("fsdp", {"momentum_dtype": torch.int8}, BARE),
        "bare overflow": send("fsdp", {}, BARE, overflow=True),
        "fsdp": send("fsdp", {}, UNEVEN),
        "fsdp raise": send("fsdp", {"nonfinite": "raise"}, UNEVEN),
        "fsdp clipped": send("fsdp", CLIPPED, UNEVEN),
        "hsdp": send("hsdp", {}, UNEVEN),
        "tp1": send("tp1", {"norm_scope": "row"}, BARE),
        "tp1 coupled": send("tp1", COUPLED, BARE),
        "fsdp+tp1": send("fsdp+tp1", {}, EVEN),
        "plain": send("plain", CLIPPED, UNEVEN),
    }


def test_step_by_row_sends_one_message_per_mesh_dimension():
    assert scale.cut_rows(list(UNEVEN.values())) == CUT
    rows = 7 + 2 + 5  # of the matrices under tensor parallel along dimension 1
    for sent in run_ranks(4, measured):
        assert sent["bare"] == sent["bare int8"] == sent["plain"] == []
        assert sent["bare overflow"] == [(4, scale.row_message_bytes(0, flags=True))] == [(4, 16)]
        assert sent["fsdp"] == [(4, scale.row_message_bytes(CUT))] == [(4, 168)]
        assert sent["fsdp raise"] == [(4, scale.row_message_bytes(CUT, flags=True))] == [(4, 184)]
        # With clipping one more message before it, of a number for each of the kinds of tensors that are kept together.
        assert sent["fsdp clipped"] == [(4, 8 * 4), (4, 168)]
        assert sent["hsdp"] == [(2, 168)]
        assert sent["tp1"] == [(4, scale.row_message_bytes(rows))] == [(4, 336)]
        assert sent["tp1 coupled"] == [(4, scale.row_message_bytes(rows, decayed=rows))] == [(4, 448)]
        # Over dp the table's 2 columns of this rank and the bias, over tp the rows of matrix and conv of this rank.
        assert sorted(sent["fsdp+tp1"]) == sorted([(2, 24 * (2 + 1)), (2, 24 * (4 + 2))])


def spoil(net: Any, rank: int, value: float) -> None:
    """Write into the first entry of every gradient on one rank, but of none that has a replica."""
    for p in net.parameters():
        if dist.get_rank() != rank or any(x.is_replicate() for x in getattr(p, "placements", [Replicate()])):
            continue
        if p.grad is not None and (g := acmo.sharding.local(p.grad)).numel():
            g.view(-1)[0] = value


def nonfinite(layout: str, policy: str) -> dict[str, Any]:
    """Rank 1 gets infinite entries in the third of five steps: what is raised, which share of each tensor moves."""
    net, opt = sharded_rows.make(layout, {"nonfinite": policy}, torch.float64)
    found: dict[str, Any] = {"raised": "", "moved": []}
    for t in range(5):
        sharded.give(net, [torch.ones(p.shape, dtype=p.dtype) for p in net.parameters()])
        before = [sharded.full(p) for p in net.parameters()]
        if t == 2:
            spoil(net, 1, math.inf)
        try:
            opt.step()
        except FloatingPointError as error:
            found["raised"] = str(error)
        if t == 2:
            pairs = zip(net.parameters(), before, strict=True)
            found["moved"] = [float((sharded.full(p) != old).double().mean()) for p, old in pairs]
    found["finite"] = all(bool(torch.isfinite(sharded.full(p)).all()) for p in net.parameters())
    return found


@pytest.mark.parametrize("layout", ["fsdp", "tp1", "mixed", "fsdp+tp1"])
def test_a_bad_row_on_one_rank_is_skipped_on_all(layout: str):
    ranks = run_ranks(4 if "+" in layout else 2, nonfinite, layout, "skip")
    for found in ranks:
        assert found["finite"]
        assert found["raised"] == ""
        assert found["moved"] == ranks[0]["moved"]
        assert max(found["moved"]) > 0
        assert min(found["moved"]) < 1


@pytest.mark.parametrize("layout", ["fsdp", "tp1", "mixed", "fsdp+tp1"])
def test_raise_by_row_raises_on_all_ranks_and_moves_nothing(layout: str):
    for found in run_ranks(4 if "+" in layout else 2, nonfinite, layout, "raise"):
        assert "not finite" in found["raised"]
        assert found["finite"]
        assert set(found["moved"]) == {0.0}


def overflow(layout: str) -> tuple[bool, int, list[float]]:
    """A scaler that found an overflow on rank 1 alone."""
    net, opt = sharded_rows.make(layout, {}, torch.float32)
    sharded.give(net, [torch.ones(p.shape) for p in net.parameters()])
    opt.found_inf = torch.tensor(float(dist.get_rank() == 1))  # type: ignore[attr-defined]
    before = [sharded.full(p) for p in net.parameters()]
    opt.step()
    same = all(torch.equal(sharded.full(p), old) for p, old in zip(net.parameters(), before, strict=True))
    return same, opt.skipped_steps, [float(opt.state[p]["step"]) for p in net.parameters()]


@pytest.mark.parametrize("layout", ["fsdp", "tp1", "mixed"])
def test_overflow_on_one_rank_makes_every_rank_skip_by_row(layout: str):
    assert run_ranks(2, overflow, layout) == [(True, 1, [0.0] * len(UNEVEN))] * 2


def scaled() -> list[tuple[float, int]]:
    """Three steps under FSDP2 and a GradScaler; in the second, rank 1 overflows. The scale and the skipped steps."""
    net, opt = sharded_rows.make("fsdp", {}, torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    found = []
    for t, grads in enumerate(sharded_rows.gradients(net, 3)):
        sharded.give(net, [g if g is None else g + 1 for g in grads])
        if t == 1:
            spoil(net, 1, math.inf)
        scaler.step(opt)
        scaler.update()
        found.append((scaler.get_scale(), opt.skipped_steps))
    return found


def test_a_scaler_on_rows_agrees_about_an_overflow_on_one_rank():
    assert run_ranks(2, scaled) == [[(8.0, 0), (4.0, 1), (4.0, 1)]] * 2


def oppose(dtype: torch.dtype) -> tuple[bool, list[float]]:
    """The second gradient is the first one's negative and β is 1: nothing of the moment is left."""
    net, opt = sharded_rows.make("tp1", {"weight_decay": 0.0, "norm_scope": "row", "momentum": 1.0}, dtype, BARE)
    (first, *_) = sharded_rows.gradients(net)
    sharded.give(net, first)
    opt.step()
    before = [sharded.full(p) for p in net.parameters()]
    sharded.give(net, [None if g is None else -g for g in first])
    opt.step()
    same = all(torch.equal(sharded.full(p), old) for p, old in zip(net.parameters(), before, strict=True))
    return same, [float(sharded.full(opt.state[p]["momentum_buffer"]).abs().max()) for p in net.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cut_row_that_cancels_is_a_zero_moment(dtype: torch.dtype):
    assert run_ranks(3, oppose, dtype) == [(True, [0.0] * len(BARE))] * 3


def tiny_and_huge() -> float:
    """Rows of 1e-30 and 1e30 beside ordinary ones, cut over the ranks."""
    ends = []
    for layout in ("tp1", "plain"):
        net, opt = sharded_rows.make(layout, {"norm_scope": "row"}, torch.float32, {"matrix": (3, 5)})
        for (g,) in ([g for g in grads if g is not None] for grads in sharded_rows.gradients(net, 3)):
            sharded.give(net, [g * torch.tensor([[1e-30], [1e30], [1.0]])])
            opt.step()
        ends.append([sharded.full(p) for p in net.parameters()])
    return sharded.distance(*ends)


def test_cut_rows_of_any_size_step_as_whole_ones():
    assert max(run_ranks(2, tiny_and_huge)) < 2e-5
