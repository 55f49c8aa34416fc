"""Accelerate: a prepared ACMo accumulates, clips and resumes, alone and on two ranks, as a plain loop does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from acmo import ACMo
from tests.support.ranks import run_ranks

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: it comes with acmo[dev-all]")
from accelerate.state import AcceleratorState, GradientState  # noqa: E402

BATCH, ACCUMULATE, CLIP, STEPS = 24, 2, 0.4, 20


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Its settings live in singletons."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def pieces(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, ACMo, DataLoader[Any], LRScheduler]:
    torch.manual_seed(0)
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=dtype) / 16, torch.tensor(data.target)
    model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).to(dtype)
    opt = ACMo(model.parameters(), lr=0.5, psi="sqrt", weight_decay=1e-3)
    rows = BATCH * ACCUMULATE * STEPS
    loader = DataLoader(TensorDataset(x[:rows], y[:rows]), batch_size=BATCH)
    return model, opt, loader, CosineAnnealingLR(opt, T_max=STEPS)


def everything(model: nn.Module, opt: Any) -> list[Tensor]:
    params = list(model.parameters())
    return [p.detach() for p in params] + [x for p in params for x in opt.state[p].values()]


def plain(dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[float]]:
    """The same training, written out."""
    model, opt, loader, scheduler = pieces(dtype)
    losses = []
    for i, (x, y) in enumerate(loader):
        loss = cross_entropy(model(x), y)
        (loss / ACCUMULATE).backward()
        losses.append(loss.item())
        if (i + 1) % ACCUMULATE == 0:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            opt.step()
            scheduler.step()
            opt.zero_grad()
    return everything(model, opt), losses


def accelerated(batch: int = BATCH, dtype: torch.dtype = torch.float32, save: Path | None = None, skip: int = 0) -> Any:
    """Train with Accelerate; save half-way, or start half-way from what was saved."""
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATE, step_scheduler_with_optimizer=False
    )
    model, opt, loader, scheduler = pieces(dtype)
    loader = DataLoader(loader.dataset, batch_size=batch)
    model, opt, loader, scheduler = accelerator.prepare(model, opt, loader, scheduler)
    if skip:
        assert save is not None
        accelerator.load_state(str(save))
    losses = []
    for i, (x, y) in enumerate(accelerator.skip_first_batches(loader, skip), start=skip):
        with accelerator.accumulate(model):
            loss = cross_entropy(model(x), y)
            accelerator.backward(loss)
            losses.append(loss.item())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
            opt.step()
            if accelerator.sync_gradients:
                scheduler.step()
            opt.zero_grad()
        if save is not None and not skip and i + 1 == len(loader) // 2:
            accelerator.save_state(str(save))
    return everything(accelerator.unwrap_model(model), opt), losses


def test_prepared_it_trains_as_a_plain_loop_bit_for_bit():
    (expected, losses), (found, seen) = plain(), accelerated()
    assert seen == losses
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])


def test_accelerate_training_resumes_bit_for_bit(tmp_path: Path):
    through, losses = accelerated(save=tmp_path / "saved")
    half = len(losses) // 2
    resumed, rest = accelerated(save=tmp_path / "saved", skip=half)
    assert rest == losses[half:]
    assert all(torch.equal(a, b) for a, b in zip(through, resumed, strict=True))


def on_two_ranks() -> list[Tensor]:
    found, _ = accelerated(batch=BATCH // dist.get_world_size(), dtype=torch.float64)
    return found


def test_accelerate_on_two_ranks_equals_one_with_all_the_batch():
    expected, _ = plain(torch.float64)
    for found in run_ranks(2, on_two_ranks):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_bfloat16_mixed_precision_trains():
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    model, opt, loader = accelerator.prepare(*pieces()[:3])
    losses, computed = [], set()
    model[0].register_forward_hook(lambda _module, _args, out: computed.add(out.dtype))
    for x, y in loader:
        loss = cross_entropy(model(x), y)
        opt.zero_grad()
        accelerator.backward(loss)
        opt.step()
        losses.append(loss.item())
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    assert computed == {torch.bfloat16}
    assert {s["momentum_buffer"].dtype for s in opt.state.values()} == {torch.float32}
