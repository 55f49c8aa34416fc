"""DistributedDataParallel: ranks that see parts of a batch train as one process that sees all of it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from acmo import ACMo
from tests.support.ranks import run_ranks

STEPS, BATCH = 20, 24
Case = dict[str, Any]

FULL: dict[str, Any] = {"psi": "sqrt", "max_grad_norm": 0.5, "weight_decay": 0.01}
FLAGS = {"reference": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "default": {}}
CASES: dict[str, Case] = {
    **{f"{name} {dtype}": {"options": {**flags, **FULL}, "dtype": dtype}
       for name, flags in FLAGS.items() for dtype in ("float32", "float64")},
    "decoupled decay, scope tensor": {
        "options": {"norm_scope": "tensor", "weight_decay": 0.01, "decoupled_weight_decay": True}},
    "accumulated over 2": {"accumulate": 2},
    "accumulated over 4, gradients are views of buckets": {"accumulate": 4, "ddp": {"gradient_as_bucket_view": True}},
    "static graph": {"ddp": {"static_graph": True}},
    "layer that no rank uses": {"unused": True, "ddp": {"find_unused_parameters": True}},
    "one rank has a NaN": {"bad": 7, "accumulate": 2},
}  # fmt: skip


class Net(nn.Module):
    """With a layer that may go unused: its parameters then have no gradient, and no part in any norm."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.hidden, self.out, self.extra = nn.Linear(64, 16), nn.Linear(16, 10), nn.Linear(16, 10)
        self.unused = unused

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x).tanh()
        return self.out(h) if self.unused else self.out(h) + self.extra(h)


def training(case: Case, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Train on digits; a rank sees its part of every batch, in micro-batches if it accumulates."""
    torch.manual_seed(0)
    dtype = getattr(torch, case.get("dtype", "float64"))
    net = Net(case.get("unused", False)).to(dtype)
    opt = ACMo(net.parameters(), lr=0.3, **case.get("options", {}))
    model: nn.Module = net
    if world > 1:
        model = DistributedDataParallel(net, **case.get("ddp", {}))
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=dtype) / 16, torch.tensor(digits.target)
    parts, losses = case.get("accumulate", 1), []
    for t in range(STEPS):
        mine = torch.arange(t * BATCH, (t + 1) * BATCH).chunk(world)[rank].chunk(parts)
        opt.zero_grad()
        for i, rows in enumerate(mine):
            silent = world > 1 and (i + 1 < parts or case.get("never_sync", False))
            with model.no_sync() if silent else contextlib.nullcontext():  # type: ignore[operator]
                loss = cross_entropy(model(x[rows]), y[rows]) / parts
                if case.get("bad") == t and rank == world - 1 and i == 0:
                    loss = loss * torch.nan
                loss.backward()
        losses.append(float(loss.detach()))
        opt.step()
    return {
        "params": [p.detach() for p in net.parameters()],
        "moments": [opt.state[p]["momentum_buffer"] for p in net.parameters() if p in opt.state],
        "steps": {int(opt.state[p]["step"]) for p in net.parameters() if p in opt.state},
        "skipped": opt.skipped_steps,
        "losses": losses,
    }


def trainings(cases: list[Case]) -> list[dict[str, Any]]:
    """One a case, all in one start of the ranks."""
    return [training(case, dist.get_rank(), dist.get_world_size()) for case in cases]


@pytest.fixture(scope="module", params=[2, 3], ids="{} ranks".format)
def runs(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    ranks = run_ranks(request.param, trainings, list(CASES.values()))
    return {name: [rank[k] for rank in ranks] for k, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_ranks_train_as_one_process_with_the_whole_batch(name: str, runs: dict[str, list[dict[str, Any]]]):
    ranks, alone = runs[name], training(CASES[name])
    single = CASES[name].get("dtype") == "float32"
    close = {"rtol": 1e-5, "atol": 1e-6} if single else {"rtol": 1e-12, "atol": 1e-13}
    for rank in ranks:
        torch.testing.assert_close(rank["params"], alone["params"], **close)
        torch.testing.assert_close(rank["moments"], alone["moments"], **close)
        assert rank["steps"] == alone["steps"]
        assert rank["skipped"] == alone["skipped"] == ("bad" in CASES[name])
        # Rank by rank they must not drift apart, not even by rounding: DDP never sends parameters again.
        assert all(torch.equal(a, b) for a, b in zip(rank["params"], ranks[0]["params"], strict=True))
    assert alone["losses"][-1] < alone["losses"][0]


def test_ranks_that_never_sync_do_not_train_as_one():
    first, second = (rank[0] for rank in run_ranks(2, trainings, [{"never_sync": True}]))
    assert not torch.allclose(first["params"][0], second["params"][0], rtol=1e-3)
