"""The descent measurement on digits: what it counts is what happened."""

import numpy as np
import pytest

from acmo.theory import descent

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
