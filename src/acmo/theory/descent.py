"""The paper's intuition, measured: does a step lower the losses of the current batch and of the ten before it?

A small MLP is trained on scikit-learn's digits in shuffled epochs. For six optimizers, among them both Adagrads that
section 3.1 is about, the loss of the current batch and of each of the previous ten is measured before and after every
step. ``python -m acmo.theory.descent`` prints the table of docs/theory.md.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Optimizer

from acmo.optimizer import ACMo
from acmo.theory.extras import import_extra
from acmo.theory.gram_adagrad import GramAdagrad
from acmo.theory.lemmas import Array

BATCH = 64
PAST = 10
GRID = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)  # half a decade apart
TUNING_SEEDS = (1000, 1001, 1002)  # not used again
COMMON = 0.1  # a second measurement at one lr, for those whose step is α times a sum of gradients
COMPARED = ("SGD", "SGD-momentum", "ACMo")

OPTIMIZERS: dict[str, Callable[[Sequence[Tensor], float], Optimizer]] = {
    "SGD": lambda params, lr: SGD(params, lr=lr),
    "SGD-momentum": lambda params, lr: SGD(params, lr=lr, momentum=0.9),
    "Adam": lambda params, lr: Adam(params, lr=lr),
    "Adagrad": lambda params, lr: Adagrad(params, lr=lr),
    "full-matrix Adagrad": lambda params, lr: GramAdagrad(params, lr=lr),
    "ACMo": lambda params, lr: ACMo(params, lr=lr),
}


class Descent(NamedTuple):
    """What one optimizer does at one lr: shares over all steps of all seeds."""

    optimizer: str
    lr: float
    steps: int
    current: float  # steps that lower the current batch's loss
    previous: float  # (step, batch) pairs, the batch one of the previous ten, whose loss falls
    inequality: float  # steps with f_A(θ_{t+1}) − f_A(θ_t) ≤ −(α/2)(‖g‖² − ‖ĝ‖²), 3.2; NaN where it does not apply
    final_loss: float  # of the whole training set, mean over seeds
    cosines: Array  # between update and gradient, one per step


@cache
def load_digits() -> tuple[Tensor, Tensor]:
    """Return the images, scaled to [0, 1], and labels of scikit-learn's digits."""
    data = import_extra("sklearn.datasets", "the descent measurement").load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate the tensors into one vector, in float64 because the differences taken later are small."""
    return torch.cat([x.detach().double().flatten() for x in tensors])


def train(name: str, lr: float, epochs: int, seed: int, watch: bool) -> tuple[float, Array]:
    """Train once. Return the final loss and, if ``watch``, one row per step: current, previous, inequality, cosine."""
    x, y = load_digits()
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
                before, theta, g = losses(), flatten(params), flatten([p.grad for p in params if p.grad is not None])
            opt.step()
            if watch and len(seen) > PAST:
                change = losses() - before
                update = (theta - flatten(params)) / lr
                rest = update - g
                promised = -lr / 2 * (g @ g - rest @ rest)
                holds = float(change[-1] <= promised) if name in COMPARED else float("nan")
                cosine = update @ g / (update.norm() * g.norm())
                rows.append([float(change[-1] < 0), float((change[:-1] < 0).double().mean()), holds, float(cosine)])
    with torch.no_grad():
        final = float(loss_of(model(x), y))
    return final if np.isfinite(final) else float("inf"), np.array(rows)


def measure(epochs: int = 10, seeds: int = 3, tick: Callable[[], None] | None = None) -> list[Descent]:
    """Measure each optimizer at its best lr of `GRID`, then those of `COMPARED` at lr `COMMON`.

    ``tick`` is called after each of the nine measurements.
    """
    results = []
    for name, lr in [*((name, None) for name in OPTIMIZERS), *((name, COMMON) for name in COMPARED)]:
        results.append(measure_one(name, lr or best_lr(name, epochs), epochs, seeds))
        if tick:
            tick()
    return results


def best_lr(name: str, epochs: int) -> float:
    """Return the lr of `GRID` with the lowest final training loss, mean over `TUNING_SEEDS`."""
    losses = {lr: np.mean([train(name, lr, epochs, seed, watch=False)[0] for seed in TUNING_SEEDS]) for lr in GRID}
    return min(losses, key=losses.__getitem__)


def measure_one(name: str, lr: float, epochs: int, seeds: int) -> Descent:
    """Measure one optimizer at one lr."""
    runs = [train(name, lr, epochs, seed, watch=True) for seed in range(seeds)]
    rows = np.concatenate([r for _, r in runs])
    current, previous, inequality, _ = rows.mean(0)
    final = float(np.mean([loss for loss, _ in runs]))
    return Descent(name, lr, len(rows), float(current), float(previous), float(inequality), final, rows[:, 3])


def markdown_table(descents: Sequence[Descent]) -> str:
    """Return the table of docs/theory.md."""
    lines = ["| optimizer | lr | this batch | last ten | inequality | final loss |", "|---|---|---|---|---|---|"]
    for d in descents:
        inequality = "–" if np.isnan(d.inequality) else f"{d.inequality:.3f}"
        lines.append(
            f"| {d.optimizer} | {d.lr:g} | {d.current:.3f} | {d.previous:.3f} | {inequality} | {d.final_loss:.4f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the networks are small
    print(markdown_table(measure()))
