"""RowACMo with torch.distributed.checkpoint and ZeroRedundancyOptimizer, and what it refuses over ranks."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard

from acmo import ACMo, RowACMo
from tests.support import sharded, sharded_rows
from tests.support.ranks import run_ranks

HALF = 4
INT8: dict[str, Any] = {"momentum_dtype": torch.int8}
CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "int8": INT8,
    "int8 by column": {**INT8, "norm_scope": "column", "decoupled_weight_decay": False},
    "psi": {"psi": sharded_rows.limit_growth, "unit_step": False, "lr": 0.02, "delta": 0.1},
    "tensor lr": {"lr": torch.tensor(0.1), **INT8},
}


def save(folder: str) -> dict[str, Any]:
    """On 2 ranks: save each case halfway, and return where its unbroken run ends, with the halfway state, whole."""
    ends = {}
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    for name, options in CASES.items():
        net, opt = sharded_rows.make("fsdp", options, torch.float32)
        sharded_rows.advance(net, opt, 0, HALF)
        state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, opt)}
        dcp.save(state, checkpoint_id=f"{folder}/{name}")
        half = {"model": get_model_state_dict(net, options=whole)}
        half["optim"] = get_optimizer_state_dict(net, opt, options=whole)
        half = copy.deepcopy(half)
        sharded_rows.advance(net, opt, HALF)
        ends[name] = {"end": sharded_rows.whole_state(net, opt), "half": half, "skipped": opt.skipped_steps}
    return ends


def resume(folder: str, layout: str, halves: dict[str, Any]) -> dict[str, Any]:
    """Load each case from the files and from the whole state, and finish its run."""
    ends = {}
    everywhere = StateDictOptions(full_state_dict=True)
    for name, options in CASES.items():
        net, opt = sharded_rows.make(layout, options, torch.float32)
        state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, opt)}
        moved = [float(x["step"]) for x in state["optim"]["state"].values()]  # type: ignore[attr-defined, union-attr]
        assert not any(moved), "asking a new optimizer for its state takes no step"
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        set_model_state_dict(net, state["model"])  # type: ignore[arg-type]
        set_optimizer_state_dict(net, opt, state["optim"])  # type: ignore[arg-type]
        sharded_rows.advance(net, opt, HALF)
        ends[name] = {"files": sharded_rows.whole_state(net, opt)}
        net, opt = sharded_rows.make(layout, options, torch.float32)
        half = copy.deepcopy(halves[name])
        set_model_state_dict(net, half["model"], options=everywhere)
        set_optimizer_state_dict(net, opt, half["optim"], options=everywhere)
        sharded_rows.advance(net, opt, HALF)
        ends[name]["whole"] = sharded_rows.whole_state(net, opt)
        ends[name]["scales"] = [
            (isinstance(x, DTensor), tuple(x.shape) == tuple(p.shape[:1]))
            for p in net.parameters()
            if (x := opt.state[p].get("momentum_scale")) is not None
        ]
    return ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def saved(folder: Path) -> dict[str, Any]:
    return run_ranks(2, save, str(folder))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("world", "layout"), [(1, "plain"), (2, "fsdp"), (3, "fsdp"), (4, "hsdp")])
def test_rows_saved_on_2_ranks_resume_on_others(world: int, layout: str, folder: Path, saved: dict[str, Any]):
    halves = {name: end["half"] for name, end in saved.items()}
    for ends in run_ranks(world, resume, str(folder), layout, halves):
        for name, end in ends.items():
            for way in ("files", "whole"):
                off = sharded.distance(end[way], saved[name]["end"])
                assert off == 0 if (world, layout) == (2, "fsdp") else off < 2e-5, (name, way, off)
            wants = 6 if CASES[name].get("momentum_dtype") else 0  # the tensors of two dimensions and more
            assert end["scales"] == [(layout != "plain", True)] * wants


def convert() -> list[float]:
    """A float32 state into int8 and an int8 state into float32, under FSDP2."""
    found = []
    for first, second in (({}, INT8), (INT8, {})):
        (net, opt), (other, twin) = (
            sharded_rows.make("fsdp", {**x, "norm_scope": "row"}, torch.float32, sharded_rows.BARE)
            for x in (first, second)
        )
        sharded_rows.advance(net, opt, 0, 2)
        state = opt.state_dict()
        for group in state["param_groups"]:
            del group["momentum_dtype"]  # else it comes along
        twin.load_state_dict(state)
        n = len(list(net.parameters()))
        found.append(
            sharded.distance(sharded_rows.whole_state(other, twin)[n:], sharded_rows.whole_state(net, opt)[n:])
        )
        dtypes = {twin.state[p]["momentum_buffer"].dtype for p in other.parameters()}
        assert dtypes == {second.get("momentum_dtype", torch.float32)}
        sharded_rows.advance(other, twin, 2, 3)
    return found


def test_moments_on_shards_convert_between_int8_and_float32():
    for to_bytes, to_numbers in run_ranks(2, convert):
        assert 0 < to_bytes < 0.01
        assert to_numbers < 1e-6


def zero(scope: str, options: dict[str, Any], shared: bool) -> tuple[float, int, int]:
    """The distance to the run on one rank, the messages of our own, and the steps with a skipped row."""
    ends = []
    net, whole = (sharded_rows.Tensors(sharded_rows.UNEVEN, torch.float64) for _ in range(2))
    kind = functools.partial(RowACMo, process_group=dist.group.WORLD) if shared else RowACMo
    asked = {"lr": 0.1, "norm_scope": scope, **options}
    opt = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=kind, **asked)
    twin = RowACMo(whole.parameters(), **asked)
    with sharded_rows.Tap() as tap:
        sharded_rows.advance(net, opt)
    sharded_rows.advance(whole, twin)
    ends = [[p.detach() for p in x.parameters()] for x in (net, whole)]
    opt.consolidate_state_dict(to=0)
    skipped = opt.state_dict()["param_groups"][0]["skipped_steps"] if dist.get_rank() == 0 else 1
    return sharded.distance(*ends), len(tap.sent), int(skipped)


@pytest.mark.parametrize("scope", ["tensor", "auto", "row", "column"])
def test_zero_redundancy_optimizer_by_row_needs_no_group(scope: str):
    unit = {"unit_step": scope != "tensor"}
    for off, messages, skipped in run_ranks(2, zero, scope, unit, False):
        assert (off < 1e-12, messages, skipped) == (True, 0, 1)


def test_zero_by_row_with_a_group_clips_over_all_ranks():
    options = {"unit_step": False, "max_grad_norm": 3.0}
    for off, messages, _ in run_ranks(3, zero, "auto", options, True):
        assert off < 1e-12
        assert messages == sharded_rows.STEPS


def idle_rank() -> str:
    """Rank 1 has no parameters, and rank 0 a gradient that is not finite."""
    p = nn.Parameter(torch.ones(3, 2))
    params = [p] if dist.get_rank() == 0 else []
    opt = RowACMo([{"params": params}], process_group=dist.group.WORLD, nonfinite="raise")
    p.grad = torch.ones(3, 2)
    opt.step()
    p.grad = torch.full((3, 2), torch.inf)
    try:
        opt.step()
    except FloatingPointError:
        return f"raised {opt.skipped_steps}"
    return "stepped"


def test_a_rank_without_parameters_raises_with_the_others_by_row():
    assert run_ranks(2, idle_rank) == ["raised 0"] * 2


def refusals() -> dict[str, str]:
    found = {}

    def refused(name: str, make: Any) -> None:
        try:
            make()
            found[name] = "accepted"
        except ValueError as error:
            found[name] = str(error)

    plain = [nn.Parameter(torch.ones(3, 2))]
    inside = functools.partial(ZeroRedundancyOptimizer, plain, lr=0.1)
    refused("zero clip", lambda: inside(RowACMo, unit_step=False, max_grad_norm=1.0))
    refused("zero raise", lambda: inside(RowACMo, nonfinite="raise"))
    refused("zero tensor", lambda: inside(ACMo, norm_scope="tensor"))
    refused("zero global", lambda: inside(ACMo))
    net = sharded_rows.Tensors(sharded_rows.BARE, torch.float32)
    sharded_rows.lay_out(net, "tp1")
    refused("reference", lambda: RowACMo(net.parameters(), foreach=False))
    placements = {x for p in net.parameters() for x in p.placements}  # type: ignore[attr-defined]
    assert placements == {Shard(1)}
    plain[0]._is_flat_param = True  # type: ignore[attr-defined]
    refused("flat", lambda: RowACMo(plain))
    refused("flat group", lambda: RowACMo(plain, process_group=dist.group.WORLD))
    return found


def test_rows_that_cannot_be_known_over_ranks_are_refused():
    words = {
        "zero clip": "max_grad_norm=1.0 needs all",
        "zero raise": 'nonfinite="raise" needs all',
        "zero tensor": "accepted",
        "zero global": "norm_scope='global' needs all",
        "reference": "foreach=False",
        "flat": "does not know them",
        "flat group": "does not know them",
    }
    for found in run_ranks(2, refusals):
        assert found.keys() == words.keys()
        assert not {name: found[name] for name, word in words.items() if word not in found[name]}
