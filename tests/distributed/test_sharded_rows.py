"""RowACMo over ranks equals the unsharded run, and sends what docs/scale.md says: nothing for whole rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support import sharded, sharded_rows
from tests.support.ranks import run_ranks

BOUND = {torch.float64: 1e-12, torch.float32: 2e-5}
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "row, coupled": {"norm_scope": "row", "decoupled_weight_decay": False, "foreach": True},
    "column, maximize": {"norm_scope": "column", "maximize": True, "delta": 1e-3},
    "no unit step": {"unit_step": False, "decoupled_weight_decay": False, "lr": 0.02},
    "clipped": {"unit_step": False, "max_grad_norm": 3.0, "lr": 0.02},
    "int8": {"momentum_dtype": torch.int8},
    "psi": {"psi": sharded_rows.limit_growth, "unit_step": False, "lr": 0.02, "delta": 0.1},
    "int8 by column": {"momentum_dtype": torch.int8, "norm_scope": "column", "unit_step": False, "lr": 0.02},
}
LAYOUTS = {
    1: ("fsdp", "tp1"),
    2: ("fsdp", "tp0", "tp1", "mixed", "fsdp+tp1"),
    3: ("fsdp", "tp0", "tp1", "mixed"),
    4: ("fsdp", "hsdp", "tp0", "tp1", "mixed", "fsdp+tp0", "fsdp+tp1"),
}


def compare(layout: str) -> dict[str, float]:
    """For every kind of step: the distance to the unsharded run, in units of the bound."""
    found = {}
    for dtype, bound in BOUND.items():
        for name, given in OPTIONS.items():
            options = given
            net, opt = sharded_rows.make(layout, options, dtype)
            sharded_rows.advance(net, opt)
            if "int8" in name and layout.endswith("tp1") and dist.get_world_size() > 1:
                options = {**options, "momentum_dtype": dtype}  # moments of rows that are cut keep the parameter's
            shapes = sharded_rows.EVEN if "+" in layout else sharded_rows.UNEVEN
            whole, twin = sharded_rows.make("plain", options, dtype, shapes)
            sharded_rows.advance(whole, twin)
            off = sharded.distance(sharded_rows.whole_state(net, opt), sharded_rows.whole_state(whole, twin))
            # The scales of int8 moments are float32, and backends round them differently by a bit.
            found[f"{dtype}, {name}"] = off / (BOUND[torch.float32] if "int8" in name else bound)
    return found


@pytest.mark.parametrize(
    ("world", "layout"), [(world, layout) for world, layouts in LAYOUTS.items() for layout in layouts]
)
def test_rows_over_ranks_are_those_of_the_unsharded_run(world: int, layout: str):
    for found in run_ranks(world, compare, layout):
        assert not {name: off for name, off in found.items() if not off < 1}


def compare_without_messages(layout: str) -> float:
    ends = []
    for way in (layout, "plain"):
        net, opt = sharded_rows.make(way, {}, torch.float64, sharded_rows.UNEVEN)
        with sharded_rows.Tap(mute=way == layout):
            sharded_rows.advance(net, opt)
        ends.append([sharded.full(p) for p in net.parameters()])
    return sharded.distance(*ends)


@pytest.mark.parametrize("layout", ["fsdp", "tp1"])
def test_without_its_message_a_run_by_row_is_another_one(layout: str):
    assert max(run_ranks(2, compare_without_messages, layout)) > 1e-3


def telemetry(layout: str) -> list[dict[str, Any]]:
    """What the sharded and the plain run report, on shapes whose rows are all cut under tensor parallel."""
    found = []
    for way in (layout, "plain"):
        net, opt = sharded_rows.make(way, {}, torch.float64, sharded_rows.BARE)
        sharded_rows.advance(net, opt, 0, 3)
        found.append(opt.telemetry())
    return found


def test_telemetry_of_cut_rows_is_that_of_the_unsharded_run():
    for ours, plain in run_ranks(2, telemetry, "tp1"):
        assert ours.pop("tensors") == [pytest.approx(own, abs=1e-9) for own in plain.pop("tensors")]
        assert ours == pytest.approx(plain, rel=1e-9)


def test_telemetry_of_whole_rows_is_that_of_this_rank():
    ranks = run_ranks(3, telemetry, "fsdp")
    norm = sum(ours["grad_norm"] ** 2 for ours, _ in ranks) ** 0.5
    assert norm == pytest.approx(ranks[0][1]["grad_norm"], rel=1e-9)
    short = [ours["tensors"][1]["cos_mean"] for ours, _ in ranks]  # 2 rows: the third rank has none
    assert [math.isnan(x) for x in short] == [False, False, True]
