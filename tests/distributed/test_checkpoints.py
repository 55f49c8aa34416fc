"""torch.distributed.checkpoint: saved under 2 ranks, loaded under 1, 2 and 4, a run goes on as if never stopped."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from acmo import ACMo
from tests.support import sharded
from tests.support.ranks import run_ranks

BAD, HALF, END = 3, 5, 10  # a NaN on the way, the checkpoint, the end
RESUMED = (1, 2, pytest.param(4, marks=pytest.mark.slow))
FULL = {"psi": "sqrt", "weight_decay": 0.1, "max_grad_norm": 3.0}  # decay of line 3: coupled
FLAT = {1: "fsdp", 2: "fsdp", 4: "fsdp"}
WAYS = ("files", "everywhere", "from rank 0")  # how a state comes back: DCP's files, or whole, on all ranks or on one
Case = dict[str, Any]
CASES: dict[str, Case] = {
    "fsdp": {"on": FLAT, "options": FULL},
    "fsdp, float32": {"on": FLAT, "options": FULL, "dtype": torch.float32},
    "fsdp, moments in bfloat16": {"on": FLAT, "options": {"momentum_dtype": torch.bfloat16}},
    "hsdp": {"on": {1: "hsdp0", 2: "hsdp1", 4: "hsdp1"}, "options": {"norm_scope": "tensor", **FULL}},
    "fsdp + tp": {"on": {1: "fsdp+tp0", 2: "fsdp+tp0", 4: "fsdp+tp1"}, "options": FULL},
    "into another layout": {"on": {1: "plain", 2: "fsdp", 4: "hsdp1"}, "options": {"norm_scope": "group", **FULL}},
    "tensor lr": {"on": FLAT, "options": {"psi": "sqrt", "lr": torch.tensor(0.02)}, "one_group": True},
}
WHOLE = ("fsdp", "fsdp, moments in bfloat16", "fsdp + tp", "tensor lr")  # those that also go through full states
RETURNS = [(name, way) for name in CASES for way in WAYS if way == "files" or name in WHOLE]
NEW = ("fsdp", "fsdp, moments in bfloat16", "hsdp", "tensor lr")  # those that are asked for a state before any step


def build(case: Case, world: int) -> tuple[Any, ACMo]:
    """As `sharded.make`, on the layout for so many ranks."""
    layout = case["on"][world]
    dtype, even = case.get("dtype", torch.float64), "+" in case["on"][2]
    if not case.get("one_group"):
        return sharded.make(layout, case["options"], dtype, even)
    torch.manual_seed(0)
    net = sharded.Net(dtype, even)
    sharded.lay_out(net, layout, world)
    return net, ACMo(net.named_parameters(), **{**case["options"], "lr": case["options"]["lr"].clone()})


def advance(net: Any, opt: ACMo, first: int, last: int) -> None:
    """Steps first to last of the one training that all tests here are about."""
    for t, grads in enumerate(sharded.gradients(net, last)):
        if t >= first:
            sharded.give(net, [g * torch.nan if g is not None and t == BAD else g for g in grads])
            opt.step()


def everything(net: Any, opt: ACMo) -> dict[str, Any]:
    """Parameters and state, whole, by name."""
    found: dict[str, Any] = {"skipped": opt.skipped_steps, "lr": [float(group["lr"]) for group in opt.param_groups]}
    for name, p in net.named_parameters():
        found[name] = sharded.full(p)
        found |= {f"{name} {key}": sharded.full(x) for key, x in opt.state[p].items()}
    return found


def save(net: Any, opt: ACMo, folder: str) -> None:
    state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, opt)}
    dcp.save(state, checkpoint_id=folder)


def load(net: Any, opt: ACMo, folder: str) -> None:
    """The recipe: the new optimizer's own state, made by a step that changes nothing, is what is read into."""
    state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, opt)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(net, state["model"])
    set_optimizer_state_dict(net, opt, state["optim"])


def unbroken(cases: dict[str, Case], folder: str) -> dict[str, Any]:
    """On 2 ranks: each case's run, with a checkpoint halfway and without; what both end in, and the halfway state."""
    ends = {}
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    for name, case in cases.items():
        net, opt = build(case, 2)
        advance(net, opt, 0, HALF)
        save(net, opt, f"{folder}/{name}")
        half = {"model": get_model_state_dict(net, options=whole)}
        half["optim"] = get_optimizer_state_dict(net, opt, options=whole)
        half = copy.deepcopy(half)  # what is on a CPU already is not copied, and would change with the steps to come
        advance(net, opt, HALF, END)
        undisturbed = build(case, 2)
        advance(*undisturbed, 0, END)
        ends[name] = {"saved": everything(net, opt), "never saved": everything(*undisturbed), "half": half}
    return ends


def resumed(cases: dict[str, Case], folder: str, halves: dict[str, Any]) -> dict[str, Any]:
    """Each case's second half, from the checkpoint's files and from full states."""
    world, rank, ends = dist.get_world_size(), dist.get_rank(), {}
    everywhere = StateDictOptions(full_state_dict=True)
    from_one = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    for name, case in cases.items():
        net, opt = build(case, world)
        load(net, opt, f"{folder}/{name}")
        advance(net, opt, HALF, END)
        ends[name] = {"files": everything(net, opt)}
        for options in (everywhere, from_one) if name in WHOLE else ():
            net, opt = build(case, world)
            half = copy.deepcopy(halves[name])  # torch puts DTensors into the very dict that it is given
            if rank != 0 and options is from_one:
                half = {"model": {}, "optim": {}}
            set_model_state_dict(net, half["model"], options=options)
            set_optimizer_state_dict(net, opt, half["optim"], options=options)
            advance(net, opt, HALF, END)
            ends[name]["everywhere" if options is everywhere else "from rank 0"] = everything(net, opt)
    return ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[dict[str, Any]]:
    return run_ranks(2, unbroken, CASES, str(folder))


@pytest.fixture(scope="module", params=RESUMED, ids=["1 rank", "2 ranks", "4 ranks"])
def resumptions(request: pytest.FixtureRequest, folder: Path, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return run_ranks(request.param, resumed, CASES, str(folder), {name: runs[0][name]["half"] for name in CASES})


def apart(a: dict[str, Any], b: dict[str, Any], bound: float) -> list[str]:
    """The names of what differs by more than the bound, relative to its norm; by a bit, where that is 0."""
    assert a.keys() == b.keys()
    return [name for name in a if not alike(a[name], b[name], bound)]


def alike(x: Any, y: Any, bound: float) -> bool:
    if not isinstance(x, Tensor) or bound == 0:
        return bool(torch.equal(x, y) if isinstance(x, Tensor) else x == y)
    return x.dtype == y.dtype and bool((x.double() - y.double()).norm() <= bound * y.double().norm())


@pytest.mark.parametrize("name", CASES)
def test_saving_changes_nothing(name: str, runs: list[dict[str, Any]]):
    for rank in runs:
        assert apart(rank[name]["saved"], rank[name]["never saved"], 0) == []
        assert rank[name]["saved"]["skipped"] == 1
    assert runs[1][name]["half"] == {"model": {}, "optim": {}}  # offloaded: only rank 0 gets it


@pytest.mark.parametrize(("name", "way"), RETURNS)
def test_a_resumed_run_ends_where_the_unbroken_one_does(
    name: str, way: str, runs: list[dict[str, Any]], resumptions: list[dict[str, Any]]
):
    rounding = 1e-6 if CASES[name].get("dtype") == torch.float32 else 1e-12
    bound = 0.0 if len(resumptions) == 2 else rounding  # the same number of ranks: the same bits
    for rank in resumptions:
        assert apart(rank[name][way], runs[0][name]["saved"], bound) == []


def never_stepped(cases: dict[str, Case]) -> dict[str, Any]:
    """Ask a new optimizer for its state; what it says, and where a run ends that goes on from there."""
    found = {}
    for name, case in cases.items():
        asked, other = build(case, 2), build(case, 2)
        before = [sharded.full(p) for p in asked[0].parameters()]
        lr = [float(group["lr"]) for group in asked[1].param_groups]
        state = get_optimizer_state_dict(*asked)
        set_optimizer_state_dict(*asked, state)
        groups: Any = state["param_groups"]
        entries: dict[str, Any] = state["state"]  # type: ignore[assignment]
        found[name] = {
            "moved": [not torch.equal(sharded.full(p), x) for p, x in zip(asked[0].parameters(), before, strict=True)],
            "m": [float(sharded.full(x["momentum_buffer"]).abs().max()) for x in entries.values()],
            "sharded": [isinstance(x["momentum_buffer"], DTensor) for x in entries.values()],
            "t": [float(x["step"]) for x in entries.values()],
            "beta_hat": [float(x["beta_hat"]) for x in entries.values() if "beta_hat" in x],
            "lr": [float(group["lr"]) for group in groups] == lr,
            "skipped": asked[1].skipped_steps,
            "told": asked[1].telemetry() == {},
        }
        advance(*asked, 0, END)
        advance(*other, 0, END)
        found[name]["ends"] = [everything(*asked), everything(*other)]
    return found


@pytest.fixture(scope="module")
def fresh() -> list[dict[str, Any]]:
    return run_ranks(2, never_stepped, {name: CASES[name] for name in NEW})


@pytest.mark.parametrize("name", NEW)
def test_asking_a_new_optimizer_for_its_state_takes_no_step(name: str, fresh: list[dict[str, Any]]):
    for rank in fresh:
        found = rank[name]
        assert not any(found["moved"])
        assert found["m"] == found["t"] == [0.0] * 5
        assert set(found["beta_hat"]) <= {torch.inf}
        assert (found["skipped"], found["lr"], found["told"]) == (0, True, True)
        assert all(found["sharded"])
        assert apart(*found["ends"], 0) == []


def consolidated() -> list[dict[str, Any]]:
    """ZeroRedundancyOptimizer has its own way: one rank collects the state, and all load it."""
    net, opt = sharded.make("zero", FULL, torch.float64)
    advance(net, opt, 0, HALF)
    opt.consolidate_state_dict(to=0)
    box = [copy.deepcopy(opt.state_dict()) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    params = [p.detach().clone() for p in net.parameters()]
    advance(net, opt, HALF, END)
    again, other = sharded.make("zero", FULL, torch.float64)
    with torch.no_grad():
        for p, value in zip(again.parameters(), params, strict=True):
            p.copy_(value)
    other.load_state_dict(box[0])
    advance(again, other, HALF, END)
    return [
        {"skipped": o.optim.skipped_steps, "params": [p.detach() for p in n.parameters()]}
        for n, o in ((net, opt), (again, other))
    ]


def test_zero_resumes_from_its_consolidated_state_bit_for_bit():
    for ours, again in run_ranks(2, consolidated):
        assert ours["skipped"] == again["skipped"] == 1
        assert all(torch.equal(p, q) for p, q in zip(ours["params"], again["params"], strict=True))
