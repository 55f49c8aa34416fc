"""Lemmas B.1 to B.4 and R.1, R.2: over every i and every β̂ that their hypotheses allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from acmo.theory import telescoping as tel
from acmo.theory.lemmas import BETA_HAT_MAX, Array, gradient_factor, shift_factor

indices = st.integers(2, 10**9)
hats = st.floats(0, BETA_HAT_MAX)
raws = st.integers(2, 60).flatmap(lambda n: hnp.arrays(np.float64, (4, n), elements=hats))


@given(indices, st.floats(0, 0.5))
def test_b1_and_b2_hold_up_to_beta_hat_one_half(i: int, beta_hat: float) -> None:
    assert tel.b1(i, beta_hat) >= -1e-12
    assert tel.b2(i, beta_hat) >= -1e-15


@given(indices, hats, st.floats(0, 1))
def test_b3_and_b4_hold_if_beta_hat_grows_at_most_like_the_root(i: int, beta_hat: float, share: float) -> None:
    after = min(share * np.sqrt((i + 1) / i) * beta_hat, BETA_HAT_MAX)
    assert tel.b3(i, beta_hat, after) >= -1e-12
    assert tel.b4(i, beta_hat, after) >= -1e-12


@given(indices, hats, hats)
def test_b4_is_b3_in_other_words(i: int, beta_hat: float, after: float) -> None:
    assert tel.b4(i, beta_hat, after) == pytest.approx(float(tel.b3(i, beta_hat, after)), abs=1e-12)


@given(raws)
def test_psi_is_its_definition_step_by_step(raw: Array) -> None:
    expected = raw.copy()
    for k in range(1, raw.shape[1]):
        t = k + 2
        expected[:, k] = np.minimum(raw[:, k], np.sqrt(t / (t - 1)) * expected[:, k - 1])
    np.testing.assert_allclose(tel.apply_psi(raw), expected, rtol=1e-12, atol=1e-300)


@given(raws)
def test_r1_the_momentum_step_never_grows_under_psi(raw: Array) -> None:
    assert np.all(tel.r1_monotone(tel.apply_psi(raw)) >= -1e-15)


@given(raws)
def test_r2_the_variation_stays_below_a_seventh(raw: Array) -> None:
    assert np.all(tel.r2_variation(tel.apply_psi(raw)) >= 0)


def test_r2_is_nearly_used_up_and_fails_without_psi() -> None:
    steady = np.full(100_000, BETA_HAT_MAX)
    assert 0 < tel.r2_variation(tel.apply_psi(steady)) < 0.02
    assert tel.variation_constant() == pytest.approx(0.14189, abs=1e-5)
    assert tel.variation_constant() < 1 / 7
    flicker = np.where(np.arange(100_000) % 2, BETA_HAT_MAX, 0.01)
    assert tel.r2_variation(flicker) < -10  # raw β̂: grows like √T
    assert tel.r2_variation(tel.apply_psi(flicker)) >= 0


def test_what_the_paper_uses_of_the_factors_is_true() -> None:
    """w_i ≤ 0.293 (T_1 ①), |w| + |c| + 1 ≤ 5 (T_2.3), Σ 1/(i√(i+2)) ≤ 2 (its first use)."""
    i = np.arange(2, 10**6)
    assert shift_factor(i, BETA_HAT_MAX).max() < 0.293
    assert shift_factor(2, BETA_HAT_MAX) + gradient_factor(1, BETA_HAT_MAX) + 1 < 5
    j = np.arange(1, 10**6)
    assert np.all(np.cumsum(1 / (j * np.sqrt(j + 2))) <= 2 - 2 / np.sqrt(j + 1))


def test_a_growing_beta_hat_is_within_the_theorem() -> None:
    """The paper's remark (tex 407): from a small β̂_2 on, Ψ lets β̂ grow like √t, here until it is 1/12."""
    steps = 2000
    raw = np.full(steps - 1, BETA_HAT_MAX)
    raw[0] = BETA_HAT_MAX / np.sqrt(steps / 2)
    beta_hat = tel.apply_psi(raw)
    assert np.all(np.diff(beta_hat) > 0)
    assert beta_hat[-1] / beta_hat[0] == pytest.approx(np.sqrt(steps / 2))
    assert beta_hat[-1] == pytest.approx(BETA_HAT_MAX)
    assert tel.r1_monotone(beta_hat) >= -1e-15
    assert tel.r2_variation(beta_hat) >= 0
