"""A sharded run equals the unsharded one: FSDP2, HSDP, tensor parallel, both together, mixed with plain, ZeRO."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import sharded
import torch
import torch.distributed as dist
from ranks import run_ranks

import acmo.sharding

BOUND = {torch.float32: 1e-6, torch.float64: 1e-12}
SCOPES = ("global", "group", "tensor")
OPTIONS = [
    {"weight_decay": 0.1, "max_grad_norm": 3.0},
    {"weight_decay": 0.1, "max_grad_norm": 3.0, "decoupled_weight_decay": True},
    {"psi": "sqrt"},
]
BACKENDS: dict[torch.dtype, Any] = {torch.float32: {}, torch.float64: {"foreach": True}}
LAYOUTS = {1: ("fsdp", "tp"), 2: ("fsdp", "hsdp0", "hsdp1", "tp", "fsdp+tp0", "mixed", "zero")}
LAYOUTS |= {3: ("fsdp", "hsdp0", "tp", "mixed", "zero"), 4: ("fsdp", "hsdp1", "tp", "fsdp+tp1", "mixed", "zero")}


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


@pytest.mark.parametrize(
    ("world", "layout"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[0] in (1, 3) else []) for case in CASES],
)
def test_parameters_and_moments_are_those_of_the_unsharded_run(world: int, layout: str):
    for found in run_ranks(world, compare, layout):
        assert not [case for case in found if not case[1] < case[2]]


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
        net, opt = sharded.make(way, {}, torch.float64)
        mine = []
        for _ in range(10):
            opt.zero_grad()
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            opt.step()
            mine.append(float(loss))
        losses.append(mine)
    return losses


@pytest.mark.parametrize("layout", ["fsdp", "hsdp1", "zero"])
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
def test_a_step_sends_one_small_message_a_sharding_mesh_dimension(layout: str, messages: int):
    for sent in run_ranks(4, count_messages, layout):
        assert len(sent) == messages
        assert sum(size for _, size in sent) < 1000


def telemetry(layout: str, scope: str) -> list[list[dict[str, Any]]]:
    asked = {"norm_scope": scope, "max_grad_norm": 3.0}
    return [sharded.train(way, asked, torch.float64, even="+" in layout)[2] for way in (layout, "plain")]


LATE = ("moment_norm", "cos_grad_moment", "cos_update_grad", "cos_update_moment")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("layout", ["fsdp", "hsdp1", "fsdp+tp1", "zero"])
def test_telemetry_is_of_the_whole_and_its_angles_of_the_step_before(layout: str, scope: str):
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
