"""The paper's intuition put to the test: does a step lower the losses of this batch, and of the ten before it?

A real training (scikit-learn's digits, a small MLP, shuffled epochs); every step's change of the loss is measured on
the current batch and on each of the previous ten, before and after the step, for four optimizers.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from acmo.optimizer import ACMo
from acmo.theory.extras import extra
from acmo.theory.lemmas import Array

BATCH = 64
PAST = 10
GRID = (2.0, 1.0, 0.5, 0.1, 0.05, 0.01, 0.005, 0.001, 0.0005)
COMMON = 0.05  # the lr of a second look at those whose step is α times something like a gradient
COMPARED = ("SGD", "SGD-momentum", "ACMo")

OPTIMIZERS: dict[str, Callable[[Sequence[Tensor], float], Optimizer]] = {
    "SGD": lambda params, lr: SGD(params, lr=lr),
    "SGD-momentum": lambda params, lr: SGD(params, lr=lr, momentum=0.9),
    "Adam": lambda params, lr: Adam(params, lr=lr),
    "ACMo": lambda params, lr: ACMo(params, lr=lr),
}


class Descent(NamedTuple):
    """Shares over all steps of all seeds of one optimizer at one lr."""

    optimizer: str
    lr: float
    steps: int
    current: float  # steps that lower the current batch's loss
    previous: float  # (step, batch) pairs, the batch one of the previous ten, whose loss falls
    inequality: float  # steps with f_A(θ_{t+1}) − f_A(θ_t) ≤ −(α/2)(‖g‖² − ‖ĝ‖²), section 3.2; NaN for Adam
    final_loss: float  # of the whole training set, mean over seeds
    cosines: Array  # of the update with the gradient, a value a step


@cache
def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits, scaled to [0, 1]."""
    data = extra("sklearn.datasets", "the descent measurement").load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """One vector, in float64: differences of losses and steps are small."""
    return torch.cat([x.detach().double().flatten() for x in tensors])


def train(name: str, lr: float, epochs: int, seed: int, watch: bool) -> tuple[float, Array]:
    """One training: the final loss and, if ``watch``, a row a step: current, previous …, inequality, cosine."""
    x, y = digits()
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    params = list(model.parameters())
    opt = OPTIMIZERS[name](params, lr)
    loss_of = torch.nn.functional.cross_entropy
    shuffle = torch.Generator().manual_seed(seed)
    seen: list[Tensor] = []
    rows = []

    def losses() -> Tensor:
        with torch.no_grad():
            index = torch.cat(seen)
            return loss_of(model(x[index]), y[index], reduction="none").double().view(-1, BATCH).mean(1)

    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=shuffle)[: len(x) // BATCH * BATCH].view(-1, BATCH):
            seen = [*seen[-PAST:], index]
            opt.zero_grad()
            loss_of(model(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
            if watch:
                before, theta, g = losses(), flat(params), flat([p.grad for p in params if p.grad is not None])
            opt.step()
            if watch and len(seen) > PAST:
                change = losses() - before
                update = (theta - flat(params)) / lr
                rest = update - g
                promised = -lr / 2 * (g @ g - rest @ rest)
                holds = float("nan") if name == "Adam" else float(change[-1] <= promised)
                cosine = update @ g / (update.norm() * g.norm())
                rows.append([float(change[-1] < 0), float((change[:-1] < 0).double().mean()), holds, float(cosine)])
    with torch.no_grad():
        final = float(loss_of(model(x), y))
    return final if np.isfinite(final) else float("inf"), np.array(rows)


def measure(epochs: int = 10, seeds: int = 3, tick: Callable[[], None] | None = None) -> list[Descent]:
    """Each optimizer at the lr of `GRID` with the lowest final training loss (a seed of its own), then ``seeds`` runs.

    After them `COMPARED` once more, all at lr `COMMON`. ``tick`` is called after each of the seven.
    """
    results = []
    for name, lr in [*((name, None) for name in OPTIMIZERS), *((name, COMMON) for name in COMPARED)]:
        results.append(watched(name, lr or best_lr(name, epochs), epochs, seeds))
        if tick:
            tick()
    return results


def best_lr(name: str, epochs: int) -> float:
    """The lr of `GRID` with the lowest final training loss."""
    tuned = {lr: train(name, lr, epochs, 1000, watch=False)[0] for lr in GRID}
    return min(tuned, key=tuned.__getitem__)


def watched(name: str, lr: float, epochs: int, seeds: int) -> Descent:
    """One optimizer at one lr."""
    runs = [train(name, lr, epochs, seed, watch=True) for seed in range(seeds)]
    rows = np.concatenate([r for _, r in runs])
    current, previous, inequality, _ = rows.mean(0)
    final = float(np.mean([loss for loss, _ in runs]))
    return Descent(name, lr, len(rows), float(current), float(previous), float(inequality), final, rows[:, 3])
