"""Paths of the real optimizers, each with the learning rate that one rule picks for all."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from acmo.lab.gallery.surfaces import SURFACES, Surface
from acmo.rivals import REGISTRY

OPTIMIZERS = ("acmo", "sgd-momentum", "adam")
BETA = 0.9  # of all three: the default of ACMo and Adam, and the lab's of SGD
# The same for all, four points a decade from 0.0001 to 10; everything else at its default.
GRID = tuple(10 ** (k / 4) for k in range(-16, 5))
LOST = 1e-10  # a step this short beside θ has lost its direction in rounding


class Path(NamedTuple):
    """Where an optimizer went on a surface.

    Args:
      optimizer: its name in `acmo.rivals.REGISTRY`.
      lr: the learning rate that was picked.
      theta: θ before each step and after the last, (steps + 1) x 2.
      value: f(θ), without noise, for each of them.
      cosine: of the angle between each step and the gradient of its batch, with the sign of a descent; NaN where
        there is none.
    """

    optimizer: str
    lr: float
    theta: np.ndarray
    value: np.ndarray
    cosine: np.ndarray

    @property
    def uphill(self) -> int:
        """Return how many steps went uphill on their own batch."""
        return int(np.sum(self.cosine < 0))


class Scene(NamedTuple):
    """A surface and the paths on it."""

    surface: Surface
    paths: tuple[Path, ...]


def trace(steps: int, seed: int = 0) -> list[Scene]:
    """Pick each optimizer's learning rate on each surface and run it there.

    The rate is the one with the lowest mean of f over the last tenth of the steps. It is picked under other noise than
    it is shown under, and all optimizers meet the same noise.

    Args:
      steps: of each path.
      seed: of the noise.

    Returns:
      A scene for each of `SURFACES`, with a path for each of `OPTIMIZERS`.
    """
    noise = torch.randn(2, steps, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    scenes = []
    for surface in SURFACES:
        picked = {name: pick(surface, name, surface.noise * noise[1]) for name in OPTIMIZERS}
        paths = (follow(surface, name, lr, surface.noise * noise[0]) for name, lr in picked.items())
        scenes.append(Scene(surface, tuple(paths)))
    return scenes


def tenth(steps: int) -> int:
    """Return the steps that a learning rate is judged by."""
    return max(1, steps // 10)


def pick(surface: Surface, optimizer: str, noise: Tensor) -> float:
    """Return the point of `GRID` whose run ends lowest. A rate that diverges ends at infinity."""
    theta = [_start(surface) for _ in GRID]
    # One run per parameter group saves one autograd per run: a group has its own lr and, with norm_scope="group", norm.
    options = {"norm_scope": "group", "nonfinite": "propagate"} if optimizer == "acmo" else {}
    groups = [{"params": [point], "lr": lr} for point, lr in zip(theta, GRID, strict=True)]
    opt = REGISTRY[optimizer].build(groups, **options)
    ends = []
    for t, xi in enumerate(noise):
        _step(surface, opt, theta, xi)
        if t >= len(noise) - tenth(len(noise)):
            ends.append(surface.value(torch.stack(theta).detach()))
    score = torch.stack(ends).mean(0).nan_to_num(math.inf)
    return GRID[int(score.argmin())]


def follow(surface: Surface, optimizer: str, lr: float, noise: Tensor) -> Path:
    """Run an optimizer and keep where it was."""
    theta = _start(surface)
    opt = REGISTRY[optimizer].build([theta], lr=lr)
    places, gradients = [theta.detach().clone()], []
    for xi in noise:
        gradients.append(_step(surface, opt, [theta], xi)[0])
        places.append(theta.detach().clone())
    path, g = torch.stack(places), torch.stack(gradients)
    step = path[:-1] - path[1:]
    lengths = step.norm(dim=1)
    cosine = (step * g).sum(1) / (lengths * g.norm(dim=1))
    cosine[lengths <= LOST * (1 + path[:-1].norm(dim=1))] = math.nan
    return Path(optimizer, lr, path.numpy(), surface.value(path).numpy(), cosine.numpy())


def _start(surface: Surface) -> Tensor:
    return torch.tensor(surface.start, dtype=torch.float64, requires_grad=True)


def _step(surface: Surface, opt: Optimizer, theta: list[Tensor], xi: Tensor) -> Tensor:
    """Step every point with its gradient under the same noise; the gradients."""
    gradients = surface.gradient(torch.stack(theta)) + xi
    for point, gradient in zip(theta, gradients, strict=True):
        point.grad = gradient
    opt.step()
    return gradients
