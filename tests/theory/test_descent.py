"""The descent measurement on digits: what it counts is what happened."""

import numpy as np
import pytest
import torch

from acmo.rivals import FullMatrixAdagrad
from acmo.theory import descent
from acmo.theory.gram_adagrad import GramAdagrad

pytest.importorskip("sklearn")


def test_tiny_sgd_steps_lower_every_batch_loss() -> None:
    d = descent.measure_one("SGD", 0.01, epochs=2, seeds=1)
    assert d.steps == 2 * (1797 // 64) - descent.PAST
    assert d.current == d.inequality == 1.0
    np.testing.assert_allclose(d.cosines, 1.0, atol=1e-4)


def test_steps_far_too_long_raise_the_loss_they_should_lower() -> None:
    assert descent.measure_one("SGD", 50.0, epochs=1, seeds=1).current < 0.9


def test_acmo_keeps_its_promised_angle_with_the_gradient() -> None:
    """cos(m_t, g_t) ≥ √(1 − β²) = 0.436: the worst case is a triangle with the sides 1 and β."""
    d = descent.measure_one("ACMo", 0.1, epochs=2, seeds=1)
    assert d.cosines.min() >= np.sqrt(1 - 0.9**2) - 1e-3
    assert np.isnan(descent.measure_one("Adam", 0.01, epochs=1, seeds=1).inequality)


def test_gram_adagrad_steps_as_the_rival_with_the_whole_matrix() -> None:
    """Two tensors of 20 and 70 entries, 70 steps: the history grows once, and G_t stays singular, as on digits."""
    start = torch.randn(90, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = [[torch.nn.Parameter(x.clone()) for x in start.split([20, 70])] for _ in range(2)]
    optimizers = [GramAdagrad(pairs[0], lr=0.1), FullMatrixAdagrad(pairs[1], lr=0.1)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(70):
        g = torch.randn(90, dtype=torch.float64, generator=generator).split([20, 70])
        for params, opt in zip(pairs, optimizers, strict=True):
            for p, x in zip(params, g, strict=True):
                p.grad = x.clone()
            opt.step()
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_gram_adagrad_refuses_a_closure() -> None:
    with pytest.raises(ValueError, match="takes no closure"):
        GramAdagrad([torch.nn.Parameter(torch.zeros(2))], lr=0.1).step(lambda: 0.0)


def test_the_rates_are_half_a_decade_apart_and_tuned_by_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = np.array(descent.GRID[:-1]) / np.array(descent.GRID[1:])
    assert ratios.min() > 2.9
    assert ratios.max() < 3.5
    losses = {1000: {0.3: 0.0}, 1001: {0.1: 0.2}, 1002: {0.1: 0.2}}  # the first seed alone would choose 0.3

    def train(name: str, lr: float, epochs: int, seed: int, watch: bool) -> tuple[float, None]:
        return losses[seed].get(lr, 0.9), None

    monkeypatch.setattr(descent, "train", train)
    assert descent.best_lr("SGD", 1) == 0.1


def test_the_table_has_a_dash_where_the_inequality_means_nothing() -> None:
    row = descent.Descent("Adam", 0.03, 9, 0.5, 0.25, float("nan"), 0.125, np.zeros(1))
    assert descent.markdown_table([row]).endswith("| Adam | 0.03 | 0.500 | 0.250 | – | 0.1250 |")
