"""A sharded run equals the unsharded one: FSDP2, HSDP, tensor parallel, both together, mixed with plain, ZeRO."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial

import acmo.sharding
from acmo import ACMo
from acmo.projections import L2Ball, NonNegative, Simplex
from tests.support import sharded
from tests.support.ranks import run_ranks

BOUND = {torch.float32: 1e-6, torch.float64: 1e-12}
SCOPES = ("global", "group", "tensor")
OPTIONS = [
    {"weight_decay": 0.1, "max_grad_norm": 3.0},
    {"weight_decay": 0.1, "max_grad_norm": 3.0, "decoupled_weight_decay": True, "psi": "sqrt"},
    {"weight_decay": 0.1, "unit_step": True, "lr": 0.02},
]
BACKENDS: dict[torch.dtype, Any] = {torch.float32: {}, torch.float64: {"foreach": True}}
LAYOUTS = {
    1: ("fsdp", "hsdp0", "tp", "fsdp+tp0", "mixed", "zero"),
    2: ("fsdp", "hsdp0", "hsdp1", "tp", "fsdp+tp0", "mixed", "zero"),
    3: ("fsdp", "hsdp0", "tp", "fsdp+tp0", "mixed", "zero"),
    4: ("fsdp", "hsdp1", "tp", "fsdp+tp1", "mixed", "zero"),
}


def compare(layout: str) -> list[tuple[str, float, float]]:
    """For every kind of step: its name, the distance to the unsharded run, and the bound."""
    found = []
    for dtype, scope, options in itertools.product(BOUND, SCOPES, OPTIONS):
        asked = {**options, **BACKENDS[dtype], "norm_scope": scope}
        params, moments, _ = sharded.train(layout, asked, dtype)
        whole_params, whole_moments, _ = sharded.train("plain", asked, dtype, even="+" in layout)
        off = max(sharded.distance(params, whole_params), sharded.distance(moments, whole_moments))
        found.append((f"{dtype} {asked}", off, BOUND[dtype]))
    return found


CASES = [(world, layout) for world, layouts in LAYOUTS.items() for layout in layouts]
QUICK = [(2, layout) for layout in ("fsdp", "tp", "mixed", "zero")]


@pytest.mark.parametrize(
    ("world", "layout"), [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES]
)
def test_parameters_and_moments_are_those_of_the_unsharded_run(world: int, layout: str):
    for found in run_ranks(world, compare, layout):
        assert not [case for case in found if not case[1] < case[2]]


def compare_in_one_ball(layout: str) -> list[tuple[float, float]]:
    """By dtype and scope: the distance to the unsharded run, and its bound; all parameters are in one ball."""
    found = []
    for dtype, scope in ((torch.float64, "global"), (torch.float64, "row"), (torch.float32, "global")):
        if scope == "row" and layout == "zero":
            continue
        options = {"norm_scope": scope, "projection": L2Ball(1.0, scope="all")}
        params, _, _ = sharded.train(layout, options, dtype)
        whole, _, _ = sharded.train("plain", options, dtype, even="+" in layout)
        found.append((sharded.distance(params, whole), BOUND[dtype]))
    return found


@pytest.mark.parametrize(
    "layout", ["fsdp", "zero", *(pytest.param(x, marks=pytest.mark.slow) for x in ("tp", "fsdp+tp0", "mixed", "hsdp0"))]
)
def test_one_ball_over_all_shards_is_that_of_the_unsharded_run(layout: str):
    for found in run_ranks(2, compare_in_one_ball, layout):
        assert all(off < bound for off, bound in found), found


def compare_without_messages(layout: str) -> float:
    acmo.sharding.dist = Mute()  # type: ignore[attr-defined, assignment]
    params, _, _ = sharded.train(layout, {}, torch.float64)
    whole, _, _ = sharded.train("plain", {}, torch.float64, even="+" in layout)
    return sharded.distance(params, whole)


class Mute:
    """torch.distributed, but sums stay where they are."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, message: torch.Tensor, group: Any = None) -> None:
        pass

    def all_gather(self, everyone: list[torch.Tensor], message: torch.Tensor, group: Any = None) -> None:
        for x in everyone:
            x.zero_()
        everyone[0].copy_(message)


@pytest.mark.parametrize("layout", ["fsdp", "hsdp1", "tp", "fsdp+tp1", "mixed", "zero"])
def test_without_its_message_the_sharded_run_is_another_one(layout: str):
    assert max(run_ranks(4, compare_without_messages, layout)) > 1e-3


def train_for_real(layout: str) -> list[list[float]]:
    """Forward and backward on the same batch everywhere: losses of the sharded and of the plain net."""
    losses = []
    x = torch.randn(16, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for way in (layout, "plain"):
        net, opt = sharded.make(way, {}, torch.float64, even=layout == "tp")
        mine = []
        for _ in range(10):
            opt.zero_grad()
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            opt.step()
            mine.append(float(loss))
        losses.append(mine)
    return losses


@pytest.mark.parametrize("layout", ["fsdp", "hsdp1", "tp", "zero"])
def test_a_real_training_goes_the_way_of_the_unsharded_one(layout: str):
    for ours, plain in run_ranks(4, train_for_real, layout):
        assert ours == pytest.approx(plain, rel=1e-10)
        assert plain[-1] < plain[0]


def count_messages(layout: str) -> list[Any]:
    """What a step sends: (collective, bytes)."""
    sent: list[Any] = []

    class Tap(Mute):
        def all_reduce(self, message: torch.Tensor, group: Any = None) -> None:
            sent.append(("all_reduce", message.nbytes))
            dist.all_reduce(message, group=group)

        def all_gather(self, everyone: list[torch.Tensor], message: torch.Tensor, group: Any = None) -> None:
            sent.append(("all_gather", message.nbytes))
            dist.all_gather(everyone, message, group=group)

    net, opt = sharded.make(layout, {}, torch.float32)
    acmo.sharding.dist = Tap()  # type: ignore[attr-defined, assignment]
    sharded.give(net, [torch.ones(p.shape) for p in net.parameters()])
    opt.step()
    return sent


@pytest.mark.parametrize(("layout", "messages"), [("fsdp", 1), ("hsdp1", 1), ("tp", 1), ("fsdp+tp1", 2), ("zero", 1)])
def test_step_sends_one_small_message_per_sharded_dimension(layout: str, messages: int):
    for sent in run_ranks(4, count_messages, layout):
        assert len(sent) == messages
        assert sum(size for _, size in sent) < 1000


def telemetry(layout: str, scope: str) -> list[list[dict[str, Any]]]:
    asked = {"norm_scope": scope, "max_grad_norm": 3.0}
    return [sharded.train(way, asked, torch.float64, even="+" in layout)[2] for way in (layout, "plain")]


LATE = ("moment_norm", "cos_grad_moment", "cos_update_grad", "cos_update_moment")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("layout", ["fsdp", "hsdp1", "fsdp+tp1", "zero"])
def test_telemetry_covers_all_shards_with_the_last_steps_angles(layout: str, scope: str):
    for ours, plain in run_ranks(4, telemetry, layout, scope):
        assert all(math.isnan(ours[0][key]) for key in LATE)
        compared = 0
        for before, now, mine in zip(plain, plain[1:], ours[1:], strict=False):
            for key in ("grad_norm", "clip_scale", "skipped_steps"):
                assert mine[key] == pytest.approx(now[key], rel=1e-9)
            if layout == "zero" and scope == "tensor":  # a tensor's own β̂ stays with its owner
                continue
            assert mine["beta_hat"] == pytest.approx(now["beta_hat"], rel=1e-9)
            for key in LATE:
                if not math.isnan(mine[key]):  # the set of gradients changed in between: no record to complete
                    assert mine[key] == pytest.approx(before[key], rel=1e-9, abs=1e-9)
                    compared += 1
        assert compared or (layout == "zero" and scope == "tensor")


def compiled(layout: str) -> float:
    """A compiled step of sharded parameters runs eagerly: no error, the same numbers."""
    (net, opt), (plain, other) = (sharded.make(way, {}, torch.float64) for way in (layout, "plain"))
    step = torch.compile(opt.step, backend="eager")
    for grads in sharded.gradients(plain, 3):
        sharded.give(net, grads)
        sharded.give(plain, grads)
        step()
        other.step()
    return sharded.distance([sharded.full(p) for p in net.parameters()], list(plain.parameters()))


@pytest.mark.parametrize("layout", ["fsdp", "zero"])
def test_a_compiled_step_over_ranks_runs_eagerly(layout: str):
    assert max(run_ranks(2, compiled, layout)) < 1e-12


def late_group() -> list[float]:
    """A group added after a step, which only rank 0 has a parameter of."""
    p, q, rank = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2)), dist.get_rank()
    opt = ACMo([p], process_group=dist.group.WORLD)
    norms = []
    for t in range(4):
        if t == 1:
            opt.add_param_group({"params": [q] if rank == 0 else []})
        p.grad, q.grad = torch.ones(3), torch.ones(2)
        opt.step()
        norms.append(opt.telemetry()["grad_norm"])
    return norms


def test_a_group_may_be_added_after_a_step_on_all_ranks():
    for norms in run_ranks(2, late_group):
        assert norms == pytest.approx([math.sqrt(6), *[math.sqrt(8)] * 3])


def refusals() -> dict[str, str]:
    found = {}

    def refused(name: str, make: Any) -> None:
        try:
            make()
            found[name] = "accepted"
        except (ValueError, TypeError) as error:
            found[name] = str(error)

    net = sharded.Net(torch.float32)
    sharded.lay_out(net, "fsdp", dist.get_world_size())
    params = list(net.parameters())
    refused("both", lambda: ACMo(params, process_group=dist.group.WORLD))
    refused("differentiable", lambda: ACMo(params, differentiable=True))
    refused("projection", lambda: ACMo(params, projection=Simplex()))
    plain = [nn.Parameter(torch.ones(3))]
    refused("reference", lambda: ACMo(plain, process_group=dist.group.WORLD, foreach=False))
    refused("group", lambda: ACMo(plain, process_group=1))
    refused("zero", lambda: ZeroRedundancyOptimizer(plain, optimizer_class=ACMo, lr=0.1))
    plain[0]._is_flat_param = True  # type: ignore[attr-defined]
    refused("flat", lambda: ACMo(plain))
    refused("flat tensor", lambda: ACMo(plain, process_group=dist.group.WORLD, norm_scope="tensor"))
    placements = [Partial()]
    partial = nn.Parameter(DTensor.from_local(torch.ones(3), sharded.mesh_of((2,)), placements))
    refused("partial", lambda: ACMo([partial]))
    swapped = ACMo(sharded.Net(torch.float32).parameters(), projection=Simplex())
    swapped.param_groups[0]["params"] = params
    sharded.give(net, [torch.ones(p.shape) for p in params])
    refused("swapped", swapped.step)
    return found


def test_options_that_fail_silently_over_ranks_are_refused():
    words = {
        "both": "count twice",
        "differentiable": "plain tensors",
        "projection": "elementwise",
        "reference": "foreach",
        "group": "process group",
        "zero": "functools.partial",
        "flat": "process_group=",
        "flat tensor": "whole tensors",
        "partial": "partial",
        "swapped": "elementwise",
    }
    for found in run_ranks(2, refusals):
        assert found.keys() == words.keys()
        assert not {name: found[name] for name, word in words.items() if word not in found[name]}


def flattened() -> float:
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    (net, opt), (other, twin) = (sharded.make("fsdp", {"projection": NonNegative()}, torch.float64) for _ in range(2))
    for grads in sharded.gradients(sharded.Net(torch.float64), 3):
        sharded.give(net, grads)
        opt.step()
    set_optimizer_state_dict(other, twin, get_optimizer_state_dict(net, opt, options=options), options=options)
    assert isinstance(twin.param_groups[0]["projection"], NonNegative)
    return sharded.distance(sharded.moments(other, twin, "fsdp"), sharded.moments(net, opt, "fsdp"))


def test_flattened_state_dict_loads_and_keeps_the_projection():
    assert run_ranks(2, flattened) == [0.0, 0.0]


def pipeline() -> float:
    """Two stages of different layers, each sharded over two ranks: the norm is of both."""
    mesh = sharded.mesh_of((2, 2), ("pp", "dp"))
    stages = [sharded.Net(torch.float64) for _ in range(2)]
    whole = [copy.deepcopy(net) for net in stages]
    mine = stages[mesh.get_local_rank("pp")]
    fully_shard(mine, mesh=mesh["dp"])
    opt = ACMo(mine.parameters(), lr=0.1, process_group=mesh["pp"].get_group())
    other = ACMo([p for net in whole for p in net.parameters()], lr=0.1)
    for grads in zip(*(sharded.gradients(net, 4) for net in whole), strict=True):
        grads = [[g if g is None else g * (k + 1) for g in of] for k, of in enumerate(grads)]
        sharded.give(mine, grads[mesh.get_local_rank("pp")])
        for net, g in zip(whole, grads, strict=True):
            sharded.give(net, g)
        opt.step()
        other.step()
    return sharded.distance(
        [sharded.full(p) for p in mine.parameters()], list(whole[mesh.get_local_rank("pp")].parameters())
    )


def test_pipeline_of_sharded_stages_has_one_norm_over_all():
    assert max(run_ranks(4, pipeline)) < 1e-12
