"""Each rival against its paper's formula in float64 NumPy: 60 steps, below 1e-10."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from acmo.rivals import SM3, SWATS, AdaBound, FullMatrixAdagrad, NDAdam, PAdam
from tests.support import rival_oracles as oracles

STEPS = 60
SHAPES = [(4, 3), (5,), (), (2, 3, 2)]
LR = 0.02
LRS = [LR * 0.5 ** (t // 25) for t in range(STEPS)]  # as StepLR makes them


def problem(idle: bool) -> tuple[list[Tensor], list[list[Tensor | None]]]:
    """Tensors, and their gradients step by step; when `idle`, the second tensor misses every third step."""
    thetas = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
    gradients = [
        [None if idle and i == 1 and t % 3 == 1 else torch.randn_like(x) for i, x in enumerate(thetas)]
        for t in range(STEPS)
    ]
    return thetas, gradients


def numpy(gradients: list[list[Tensor | None]]) -> list[list[np.ndarray | None]]:
    return [[None if g is None else g.numpy() for g in gs] for gs in gradients]


def assert_follows(
    oracle: Any, make: Callable[[list[Any]], Optimizer], thetas: Sequence[Tensor], gradients: list[list[Tensor | None]]
) -> Optimizer:
    params = [nn.Parameter(x.clone()) for x in thetas]
    optimizer = make(params)
    scheduler = StepLR(optimizer, step_size=25, gamma=0.5)
    for t, (expected, gs) in enumerate(zip(oracle, gradients, strict=True)):
        for p, g in zip(params, gs, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()
        scheduler.step()
        for i, (p, x) in enumerate(zip(params, expected, strict=True)):
            assert np.abs(p.detach().numpy() - x).max() < 1e-10, f"step {t + 1}, tensor {i}"
    return optimizer


CASES: list[Any] = [
    *(
        pytest.param(PAdam, oracles.padam, options, {"foreach": foreach}, id=f"PAdam-{name}-foreach={foreach}")
        for foreach in (False, True)
        for name, options in {
            "default": {},
            "p=1/2": {"partial": 0.5, "weight_decay": 0.1},
            "p=1/16": {"partial": 1 / 16, "betas": (0.99, 0.99), "maximize": True},
            "corrected": {"bias_correction": True, "weight_decay": 0.01, "maximize": True},
        }.items()
    ),
    *(
        pytest.param(AdaBound, oracles.adabound, options, {"foreach": foreach}, id=f"AdaBound-{name}-foreach={foreach}")
        for foreach in (False, True)
        for name, options in {
            "default": {},
            "tight": {"gamma": 0.5, "final_lr": 1.0, "weight_decay": 0.1},
            "amsbound": {"amsbound": True, "gamma": 0.01, "betas": (0.8, 0.9)},
            "decoupled": {"decoupled_weight_decay": True, "weight_decay": 0.1, "maximize": True},
        }.items()
    ),
    pytest.param(SM3, oracles.sm3, {}, {}, id="SM3-default"),
    pytest.param(SM3, oracles.sm3, {"momentum": 0.0, "weight_decay": 0.1}, {}, id="SM3-no momentum"),
    pytest.param(SM3, oracles.sm3, {"maximize": True, "weight_decay": 0.1}, {}, id="SM3-maximize"),
]


@pytest.mark.parametrize(("cls", "oracle", "options", "flags"), CASES)
def test_sixty_steps_follow_the_formula(cls: Any, oracle: Any, options: dict[str, Any], flags: dict[str, Any]):
    """With a scheduler, and a tensor that misses gradients."""
    thetas, gradients = problem(idle=True)
    expected = oracle([x.numpy() for x in thetas], numpy(gradients), LRS, **options)
    assert_follows(expected, lambda params: cls(params, lr=LR, **options, **flags), thetas, gradients)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "maximize": True}], ids=["default", "maximize"])
def test_60_steps_of_full_matrix_adagrad_equal_the_svd_formula(options: dict[str, Any]):
    thetas, gradients = problem(idle=False)
    expected = oracles.full_matrix_adagrad([x.numpy() for x in thetas], numpy(gradients), LRS, **options)
    assert_follows(expected, lambda params: FullMatrixAdagrad(params, lr=LR, **options), thetas, gradients)


@pytest.mark.parametrize("maximize", [False, True], ids=["minimize", "maximize"])
@pytest.mark.parametrize("axes", [(1, 0, None, 1), (0, None, None, 2)], ids=str)
def test_60_steps_of_nd_adam_equal_the_formula_per_vector(axes: tuple[int | None, ...], maximize: bool):
    thetas, gradients = problem(idle=True)
    expected = oracles.nd_adam([x.numpy() for x in thetas], numpy(gradients), LRS, axes=axes, maximize=maximize)

    def make(params: list[Tensor]) -> Optimizer:
        groups = [
            {"params": [p], "vector_axes": None if axis is None else (axis,)}
            for p, axis in zip(params, axes, strict=True)
        ]
        return NDAdam(groups, lr=LR, maximize=maximize)

    assert_follows(expected, make, thetas, gradients)


@pytest.mark.parametrize(
    ("tolerance", "options"),
    [(1e-9, {}), (1e-4, {}), (1e-4, {"weight_decay": 0.01, "betas": (0.8, 0.99), "maximize": True})],
    ids=["Adam all the way", "switches", "switches, maximize"],
)
def test_60_steps_of_swats_equal_the_formula_through_the_switch(tolerance: float, options: dict[str, Any]):
    """Gradients around a mean, so that the projected rate is positive; the scheduler acts after the switch too."""
    thetas, gradients = problem(idle=False)
    means = [torch.randn_like(x) for x in thetas]
    gradients = [[m + 0.05 * g for m, g in zip(means, gs, strict=True)] for gs in gradients]
    switched: list[tuple[int, float]] = []
    expected = oracles.swats(
        [x.numpy() for x in thetas], numpy(gradients), LRS, tolerance=tolerance, switched=switched, **options
    )
    optimizer = assert_follows(
        expected, lambda params: SWATS(params, lr=LR, tolerance=tolerance, **options), thetas, gradients
    )
    if tolerance < 1e-6:
        assert not switched
        assert optimizer.switch_step is optimizer.sgd_lr is None
    else:
        step, rate = switched[0]
        assert 2 < step < 50
        assert optimizer.switch_step == step
        assert optimizer.sgd_lr == pytest.approx(rate, rel=1e-12)
