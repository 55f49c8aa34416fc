"""Every learning-rate scheduler of torch, those that cycle momentum too, and averaged models (SWA, EMA)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn, update_bn

from acmo import ACMo
from tests.support.backends import Backend, every_backend
from tests.support.oracle import Oracle

STEPS = 24
L = lr_scheduler
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda opt: L.LambdaLR(opt, [lambda t: 0.9**t, lambda t: 1 / (1 + t)]),
    "MultiplicativeLR": lambda opt: L.MultiplicativeLR(opt, lambda t: 0.95),
    "StepLR": lambda opt: L.StepLR(opt, step_size=5, gamma=0.5),
    "MultiStepLR": lambda opt: L.MultiStepLR(opt, [4, 9], gamma=0.3),
    "ConstantLR": lambda opt: L.ConstantLR(opt, factor=0.25, total_iters=6),
    "LinearLR": lambda opt: L.LinearLR(opt, start_factor=0.1, total_iters=8),
    "ExponentialLR": lambda opt: L.ExponentialLR(opt, gamma=0.9),
    "PolynomialLR": lambda opt: L.PolynomialLR(opt, total_iters=STEPS, power=2.0),
    "CosineAnnealingLR": lambda opt: L.CosineAnnealingLR(opt, T_max=10),
    "CosineAnnealingWarmRestarts": lambda opt: L.CosineAnnealingWarmRestarts(opt, T_0=4, T_mult=2),
    "SequentialLR": lambda opt: L.SequentialLR(
        opt, [L.LinearLR(opt, 0.1, total_iters=5), L.CosineAnnealingLR(opt, STEPS - 5)], milestones=[5]
    ),
    "ChainedScheduler": lambda opt: L.ChainedScheduler([L.ExponentialLR(opt, 0.95), L.ConstantLR(opt, 0.5, 4)]),
    "CyclicLR": lambda opt: L.CyclicLR(opt, 0.01, 0.2, step_size_up=4, base_momentum=0.5, max_momentum=0.95),
    "OneCycleLR": lambda opt: L.OneCycleLR(opt, [0.3, 0.1], total_steps=STEPS + 1, base_momentum=0.6, max_momentum=1.0),
    "ReduceLROnPlateau": lambda opt: L.ReduceLROnPlateau(opt, factor=0.5, patience=2),
    "SWALR": lambda opt: SWALR(opt, swa_lr=0.01, anneal_epochs=6),
}
# torch before 2.7 calls its own deprecated form in SequentialLR.
pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")
CYCLES_MOMENTUM = {"CyclicLR", "OneCycleLR"}


def build(kind: type[Optimizer], values: list[Tensor], tensor_lr: bool, **options: Any) -> Any:
    """Two groups with rates of their own."""
    rates = [torch.tensor(r, dtype=torch.float64) if tensor_lr else r for r in (0.1, 0.05)]
    groups = [{"params": [nn.Parameter(v.clone())], "lr": r} for v, r in zip(values, rates, strict=True)]
    return kind(groups, lr=0.1, momentum=0.9, **options)


def params(opt: Optimizer) -> list[Tensor]:
    return [p for group in opt.param_groups for p in group["params"]]


def advance(scheduler: Any, t: int) -> None:
    if isinstance(scheduler, L.ReduceLROnPlateau):
        scheduler.step(max(10.0 - t, 5.0))  # falls, then stays
    else:
        scheduler.step()


def test_no_scheduler_of_torch_is_forgotten():
    assert set(L.__all__) - {"LRScheduler"} <= set(SCHEDULERS)


@pytest.mark.combinations
@pytest.mark.parametrize("tensor_lr", [False, True], ids=["float lr", "Tensor lr"])
@pytest.mark.parametrize("name", SCHEDULERS)
@every_backend
def test_a_schedule_is_sgds_and_every_step_obeys_it(name: str, tensor_lr: bool, backend: Backend):
    values = [torch.randn(5, 4, dtype=torch.float64), torch.randn(7, dtype=torch.float64)]
    opt = build(ACMo, values, tensor_lr, **backend)
    sgd = build(SGD, values, tensor_lr)  # the schedule: with a Tensor lr torch 2.6 makes errors of its own
    oracle = Oracle([{"params": [v.numpy()]} for v in values])  # what the steps should do, given it
    schedulers = [SCHEDULERS[name](opt), SCHEDULERS[name](sgd)]
    seen = []
    for t in range(STEPS):
        for ours, theirs, group in zip(opt.param_groups, sgd.param_groups, oracle.groups, strict=True):
            assert float(ours["lr"]) == pytest.approx(float(theirs["lr"]), rel=1e-12)
            assert ours["momentum"] == theirs["momentum"]
            assert type(ours["lr"]) is type(theirs["lr"])
            group.update(lr=float(theirs["lr"]), momentum=theirs["momentum"])
        seen.append((float(sgd.param_groups[0]["lr"]), sgd.param_groups[0]["momentum"]))
        for p, q in zip(params(opt), params(sgd), strict=True):
            p.grad = q.grad = torch.randn_like(p)
        opt.step()
        sgd.step()
        oracle.step([[p.grad.numpy()] for p in params(opt)])
        for scheduler in schedulers:
            advance(scheduler, t)
    for k, p in enumerate(params(opt)):
        torch.testing.assert_close(p.detach(), torch.from_numpy(oracle.theta[k, 0]), rtol=1e-11, atol=1e-12)
    assert len({lr for lr, _ in seen}) > 1
    assert (len({momentum for _, momentum in seen}) > 1) == (name in CYCLES_MOMENTUM)


@pytest.mark.parametrize("tensor_lr", [False, True], ids=["float lr", "Tensor lr"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedule_saved_half_way_resumes_bit_for_bit(name: str, tensor_lr: bool):
    values = [torch.randn(5, 4), torch.randn(7)]
    grads = [[torch.randn_like(v) for v in values] for _ in range(STEPS)]

    def steps(opt: Any, scheduler: Any, times: range) -> None:
        for t in times:
            for p, g in zip(params(opt), grads[t], strict=True):
                p.grad = g.clone()
            opt.step()
            advance(scheduler, t)

    opt = build(ACMo, values, tensor_lr, psi="sqrt")
    scheduler = SCHEDULERS[name](opt)
    steps(opt, scheduler, range(10))
    again = build(ACMo, [p.detach() for p in params(opt)], tensor_lr, psi="sqrt")
    resumed = SCHEDULERS[name](again)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    resumed.load_state_dict(copy.deepcopy(scheduler.state_dict()))
    for each, its in ((opt, scheduler), (again, resumed)):
        steps(each, its, range(10, STEPS))
    for p, q in zip(params(opt), params(again), strict=True):
        assert torch.equal(p, q)
        assert all(torch.equal(x, again.state[q][key]) for key, x in opt.state[p].items())


def test_plateau_cuts_the_rate_while_digits_are_learnt():
    _, opt, epoch = digits_training()
    scheduler = L.ReduceLROnPlateau(opt, factor=0.5, patience=1, threshold=0.05)
    losses = []
    for _ in range(25):
        losses.append(epoch())
        scheduler.step(losses[-1])
    assert losses[-1] < 0.2 * losses[0]
    assert opt.param_groups[0]["lr"] < 0.3


def test_one_cycle_trains_digits_and_restores_momentum():
    _, opt, epoch = digits_training()
    scheduler = L.OneCycleLR(opt, max_lr=1.0, total_steps=12, base_momentum=0.8, max_momentum=0.95)
    losses, momenta = [], []
    for _ in range(11):
        momenta.append(opt.param_groups[0]["momentum"])
        losses.append(epoch())
        scheduler.step()
    assert losses[-1] < 0.3 * losses[0]
    assert momenta[0] == 0.95
    assert min(momenta) < 0.82
    assert opt.param_groups[0]["momentum"] == pytest.approx(0.95)


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_averaged_models_average_what_the_steps_leave_behind(kind: str):
    net, opt, epoch = digits_training()
    fn = get_swa_multi_avg_fn() if kind == "swa" else get_ema_multi_avg_fn(0.7)
    averaged = AveragedModel(net, multi_avg_fn=fn)
    scheduler = SWALR(opt, swa_lr=0.05, anneal_epochs=3)
    left, losses = [], []
    for _ in range(8):
        losses.append(epoch())
        averaged.update_parameters(net)
        scheduler.step()
        left.append([p.detach().clone() for p in net.parameters()])
    for k, p in enumerate(averaged.module.parameters()):
        expected = left[0][k]
        for n, at in enumerate(left[1:], start=1):
            expected = (expected * n + at[k]) / (n + 1) if kind == "swa" else 0.7 * expected + 0.3 * at[k]
        torch.testing.assert_close(p.detach(), expected)
    x, y = digits()
    update_bn([x], averaged)
    averaged.eval()
    with torch.no_grad():
        assert nn.functional.cross_entropy(averaged(x), y) < losses[0]
    assert opt.param_groups[0]["lr"] == pytest.approx(0.05)


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data[:800], dtype=torch.float32) / 16, torch.tensor(data.target[:800])


def digits_training() -> tuple[nn.Module, ACMo, Callable[[], float]]:
    """A small network, its optimizer, and what trains it for an epoch and returns the mean loss."""
    torch.manual_seed(0)
    x, y = digits()
    net = nn.Sequential(nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10))
    opt = ACMo(net.parameters(), lr=0.3)

    def epoch() -> float:
        net.train()
        total = 0.0
        for rows in torch.randperm(len(x)).split(100):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            opt.step()
            total += loss.item() * len(rows) / len(x)
        return total

    return net, opt, epoch
