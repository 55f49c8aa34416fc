"""The auxiliary problems of section 3: bounds and minimisers, against solvers that know nothing of the closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import acmo
from acmo.theory import auxiliary as aux

entries = st.floats(-100, 100, allow_subnormal=False)


def stacks(rows: int, d: int) -> st.SearchStrategy[aux.Array]:
    return hnp.arrays(np.float64, (rows, d), elements=entries)


@given(stacks(3, 3), stacks(2, 3), st.floats(1e-3, 10))
def test_adagrads_bound_is_never_below_adagrads_objective(history: aux.Array, s: aux.Array, alpha: float) -> None:
    upper, lower = aux.adagrad_bound(s, history, alpha), aux.adagrad(s, history, alpha)
    assert np.all(upper - lower >= -1e-9 * (1 + np.abs(upper) + np.abs(lower)))


@given(hnp.arrays(np.float64, 6, elements=st.floats(0, 1e6)))
def test_bound_is_sqrt_of_one_and_a_quarter_per_eigenvalue(eigenvalues: aux.Array) -> None:
    assert np.all(1 + eigenvalues / 4 - np.sqrt(eigenvalues) >= -1e-9)


def test_the_bound_is_attained_where_an_eigenvalue_is_four() -> None:
    history, s = np.array([[2.0, 0.0]]), np.array([1.0, 0.0])  # G = diag(4, 0)
    assert aux.adagrad_bound(s, history, 0.1) == pytest.approx(aux.adagrad(s, history, 0.1))


@pytest.mark.parametrize("rows", [2, 7])  # G singular, and not
@pytest.mark.parametrize("name", ["adagrad", "adagrad_bound"])
def test_adagrads_minimisers_are_where_scipy_ends(name: str, rows: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    history = np.random.default_rng(rows).normal(size=(rows, 4))
    objective, ours = getattr(aux, name), getattr(aux, f"{name}_minimiser")(history, 0.3)
    found = optimize.minimize(lambda s: objective(s, history, 0.3), np.zeros(4), tol=1e-12)
    assert found.fun >= objective(ours, history, 0.3) - 1e-9
    np.testing.assert_allclose(found.x, ours, atol=1e-4)


def test_hard_margin_minimiser_agrees_with_slsqp() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(0)
    g, past = rng.normal(size=5), rng.normal(size=(2, 5))
    ours = aux.hard_margin_minimiser(g, past, 0.3)
    constraint = {"type": "eq", "fun": lambda s: past @ s}
    found = optimize.minimize(
        lambda s: aux.hard_margin(s, g, 0.3), np.zeros(5), method="SLSQP", constraints=[constraint], tol=1e-12
    )
    np.testing.assert_allclose(past @ ours, 0, atol=1e-12)
    np.testing.assert_allclose(found.x, ours, atol=1e-5)
    np.testing.assert_allclose(aux.hard_margin_minimiser(g, past[:0], 0.3), -0.3 * g)


def test_acmos_step_minimises_its_auxiliary_problem() -> None:
    """The optimizer itself: what it does to θ at its second step is the minimiser of f̃, and scipy's too."""
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(1)
    g1, g2 = rng.normal(size=(2, 4))
    w = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    opt = acmo.ACMo([w], lr=0.25, momentum=0.9, delta=0.1)
    for g in (g1, g2):
        before = w.detach().clone()
        w.grad = torch.from_numpy(g)
        opt.step()
    beta_hat = float(aux.compute_beta_hat(g2, g1, 0.9, 0.1))
    found = optimize.minimize(lambda s: aux.acmo(s, g2, g1, beta_hat, 4.0), np.zeros(4), tol=1e-12)
    step = (w.detach() - before).numpy()
    np.testing.assert_allclose(step, aux.acmo_minimiser(g2, g1, beta_hat, 4.0), rtol=1e-12)
    np.testing.assert_allclose(step, found.x, atol=1e-6)


@given(stacks(1, 3), stacks(1, 3))
def test_at_beta_one_and_delta_zero_the_moment_halves_the_angle(g: aux.Array, m: aux.Array) -> None:
    g_norm, m_norm = np.linalg.norm(g), np.linalg.norm(m)
    if g_norm < 1e-9 or m_norm < 1e-9:
        return
    new = g + aux.compute_beta_hat(g, m, 1.0)[:, None] * m
    np.testing.assert_allclose((new @ g.T) / g_norm, (new @ m.T) / m_norm, atol=1e-9 * g_norm)
