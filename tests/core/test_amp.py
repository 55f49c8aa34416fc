"""Mixed precision: float16 under a GradScaler that overflows, bfloat16 autocast, on real models and real data.

That scaled gradients train as unscaled ones is checked with exact numbers in `torch_suite/test_amp.py`.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from acmo import ACMo
from tests.support.backends import Backend, every_backend

HUGE = 2.0**24  # a scale at which the first float16 gradients overflow, by themselves
FULL: dict[str, Any] = {"psi": "sqrt", "max_grad_norm": 0.3, "weight_decay": 1e-3}


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


class Training:
    """A small network on digits, under autocast; with a GradScaler if there is a scale."""

    def __init__(self, dtype: torch.dtype, scale: float | None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.opt = ACMo(self.model.parameters(), lr=0.2, **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=5, enabled=scale is not None)
        self.dtype, self.data, self.t = dtype, digits(), 0

    def backward(self, spoil: bool = False) -> float:
        rows = slice(self.t * 32 % 1700, self.t * 32 % 1700 + 32)
        self.t += 1
        self.opt.zero_grad()
        with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype != torch.float32):
            loss = cross_entropy(self.model(self.data[0][rows]), self.data[1][rows])
        self.scaler.scale(loss * torch.inf if spoil else loss).backward()
        return loss.item()

    def step(self, spoil: bool = False, clip: float | None = None) -> float:
        loss = self.backward(spoil)
        if clip is not None:
            self.scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss

    def everything(self) -> list[Tensor]:
        state = [x for p in self.model.parameters() for x in self.opt.state.get(p, {}).values()]
        return [x.detach().clone() for x in (*self.model.parameters(), *state)]


@every_backend
@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
def test_float16_trains_through_overflows_under_every_policy(policy: str, backend: Backend):
    run = Training(torch.float16, HUGE, nonfinite=policy, **FULL, **backend)
    losses, overflows = [], 0
    for t in range(60):
        scale = run.scaler.get_scale()
        before = run.everything()
        losses.append(run.step(spoil=t in (20, 21, 40)))
        if run.scaler.get_scale() < scale:  # the scaler's own verdict
            overflows += 1
            after = run.everything()[: len(before)]  # the first step makes state, even if it is skipped
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert overflows >= 6  # three forced, and some at the start, at which the very first step was skipped
    assert run.opt.skipped_steps == overflows
    assert {int(run.opt.state[p]["step"]) for p in run.model.parameters()} == {60 - overflows}
    assert all(x.isfinite().all() for x in run.everything())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@every_backend
def test_max_grad_norm_under_a_scaler_equals_unscale_then_clip(backend: Backend):
    ours, torchs = (Training(torch.float32, 2.0**16, max_grad_norm=c, **backend) for c in (0.1, None))
    for t in range(12):
        ours.step(spoil=t == 6)
        torchs.step(spoil=t == 6, clip=0.1)
    torch.testing.assert_close(ours.everything(), torchs.everything())
    assert ours.opt.telemetry()["clip_scale"] < 1
    assert ours.opt.telemetry()["grad_norm"] < 100  # of the gradient itself, not 65536 times it
    assert ours.opt.skipped_steps == torchs.opt.skipped_steps == 1


@every_backend
def test_training_saved_with_its_scaler_resumes_bit_for_bit(backend: Backend):
    first = Training(torch.float16, HUGE, **FULL, **backend)
    for _ in range(15):
        first.step()
    second = Training(torch.float16, 1.0, **FULL, **backend)
    for ours, theirs in ((second.model, first.model), (second.opt, first.opt), (second.scaler, first.scaler)):
        ours.load_state_dict(copy.deepcopy(theirs.state_dict()))  # type: ignore[attr-defined]
    second.t = first.t
    for t in range(15):
        assert first.step(spoil=t == 3) == second.step(spoil=t == 3)
    assert all(torch.equal(a, b) for a, b in zip(first.everything(), second.everything(), strict=True))
    assert first.opt.skipped_steps == second.opt.skipped_steps >= 4
    assert first.scaler.get_scale() == second.scaler.get_scale()


@every_backend
def test_float16_parameters_train_with_a_float32_moment(backend: Backend):
    # unscale_ refuses float16 gradients; ACMo unscales for itself, so that a scaler can drive it all the same.
    run = Training(torch.float16, 2.0**10, **backend)
    run.model.half()
    run.opt = ACMo(run.model.parameters(), lr=0.2, momentum_dtype=torch.float32, **backend)
    losses, scales = [], [run.scaler.get_scale()]
    for t in range(60):
        losses.append(run.step(spoil=t == 10))
        scales.append(run.scaler.get_scale())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert run.opt.skipped_steps == sum(b < a for a, b in itertools.pairwise(scales)) >= 1
    assert all(s["momentum_buffer"].dtype == torch.float32 for s in run.opt.state.values())
    # m is of unscaled gradients, within the paper's bound (1 + β)‖g‖.
    told = run.opt.telemetry()
    assert told["moment_norm"] <= 1.9 * told["grad_norm"] * 1.01 < 100


@every_backend
def test_bfloat16_autocast_trains_close_to_float32(backend: Backend):
    mixed, full = (Training(dtype, None, **FULL, **backend) for dtype in (torch.bfloat16, torch.float32))
    losses = [(mixed.step(), full.step()) for _ in range(60)]
    assert all(p.dtype == torch.float32 for p in mixed.opt.state)
    assert losses[-1][0] < 0.7 * losses[0][0]
    assert losses[-1][0] == pytest.approx(losses[-1][1], rel=0.1)


@every_backend
def test_overflow_skips_one_of_two_optimizers_of_a_scaler(backend: Backend):
    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    opts = [ACMo(m.parameters(), lr=0.1, **backend) for m in (body, head)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for t in range(4):
        for opt in opts:
            opt.zero_grad()
        scaler.scale(head(body(torch.ones(2, 4))).square().sum()).backward()
        if t == 2:
            assert body.weight.grad is not None
            body.weight.grad[0, 0] = torch.inf
        for opt in opts:
            scaler.step(opt)
        scaler.update()
    assert [opt.skipped_steps for opt in opts] == [1, 0]
    assert [int(opt.state[m.weight]["step"]) for opt, m in zip(opts, (body, head), strict=True)] == [3, 4]
    assert scaler.get_scale() == 512
