"""Properties and derivatives of the optax twin by row: scale, special rows, rows that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import acmo.jax as twin  # noqa: E402
from tests.support.jax_pairs import ROW_SHAPES, draw  # noqa: E402
from tests.support.jax_suites import stepper  # noqa: E402

pytestmark = pytest.mark.slow  # jax is not among the packages of the quick tier


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]), st.integers(-95, 95))
def test_every_row_steps_downhill_at_unit_length(seed: int, momentum: float, exponent: int):
    rng = np.random.default_rng(seed)
    link = twin.scale_by_row_acmo(momentum)
    state = link.init(jnp.zeros((6, 5)))
    for _ in range(3):
        g = rng.standard_normal((6, 5)).astype(np.float32)
        u, state = link.update(jnp.asarray(np.ldexp(g, exponent)), state)
        np.testing.assert_allclose(np.sqrt(np.mean(np.square(u), 0)), 1, 1e-5)
        cosines = (u * g).sum(0) / np.linalg.norm(u, axis=0) / np.linalg.norm(g, axis=0)
        assert cosines.min() >= np.sqrt(1 - momentum**2) - 1e-5


@pytest.mark.parametrize("exponent", [-110, -100, 100, 120])  # 1e-33, 1e-30, 1e30, 1e36
def test_float32_steps_do_not_depend_on_scale(exponent: int):
    scales = np.array([exponent, 0, 3, -exponent, -1])
    link = twin.scale_by_row_acmo()
    kernel = jnp.zeros((6, 5))
    state, scaled = link.init(kernel), link.init(kernel)
    update = jax.jit(link.update)
    for tree in (next(draw(ROW_SHAPES, k, np.float32)) for k in range(4)):
        g = tree["filters"].reshape(-1)[:30].reshape(6, 5)
        u, state = update(g, state)
        v, scaled = update(np.ldexp(g, scales), scaled)
        assert (u == v).all()
        assert (np.ldexp(state.mu, scales) == scaled.mu).all()


def test_gradients_near_the_largest_number_step():
    link = twin.scale_by_row_acmo(1.0)
    g = jnp.full((4, 2), 3.4e38).at[:, 1].set(1.2e-38)
    state = link.init(g)
    for _ in range(3):
        u, state = link.update(g, state)
        np.testing.assert_allclose(u, 1, 1e-5)
    assert jnp.isfinite(state.mu).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_moment_that_vanishes_takes_no_step(dtype: str, x64: None):
    link = twin.scale_by_row_acmo(1.0)
    g = jnp.asarray(next(draw(ROW_SHAPES, 0))["kernel"], dtype)
    _, state = link.update(g, link.init(g))
    u, state = link.update(-g * jnp.array([1.0, 3.0, 1.0, 1 / 3, 1.0, 1.0, 1.0], dtype), state)
    assert (u == 0).all()
    assert (state.mu == 0).all()
    u, state = link.update(g, state)
    np.testing.assert_allclose(jnp.mean(u**2, 0), 1, 1e-5)


def test_rows_without_gradient_keep_moment_and_decay():
    ours = twin.row_acmo(0.1, weight_decay=0.5)
    p, g = (jnp.asarray(next(draw(ROW_SHAPES, k, np.float32))["kernel"]) for k in range(2))
    step = stepper(ours)
    p, state = step(p, ours.init(p), g)
    after, later = step(p, state, g.at[:, 2].set(0))
    before, mu = (optax.tree.get(s, "mu") for s in (state, later))
    assert (mu[:, 2] == before[:, 2]).all()
    assert (mu[:, 3] != before[:, 3]).all()
    np.testing.assert_allclose(after[:, 2], 0.95 * p[:, 2], 1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_skipped_by_itself(bad: float):
    ours = twin.row_acmo(0.1, weight_decay=0.5)
    p, g = (jnp.asarray(next(draw(ROW_SHAPES, k, np.float32))["kernel"]) for k in range(2))
    step = stepper(ours)
    p, state = step(p, ours.init(p), g)
    good, good_state = step(p, state, g)
    after, later = step(p, state, g.at[1, 2].set(bad).at[3, 4].set(bad))
    skipped = np.array([False, False, True, False, True, False, False])
    for found, kept, stepped in (
        (after, p, good), tuple(optax.tree.get(s, "mu") for s in (later, state, good_state))
    ):  # fmt: skip
        assert (found == jnp.where(skipped, kept, stepped)).all()
    assert optax.tree.get(later, "skipped_rows") == 2
    assert optax.tree.get(later, "skipped_steps") == 1
    _, later = step(after, later, g)
    assert optax.tree.get(later, "skipped_rows") == 0
    assert optax.tree.get(later, "skipped_steps") == 1


def test_propagate_lets_a_bad_row_through():
    ours = twin.row_acmo(0.1, weight_decay=0.5, nonfinite="propagate")
    p, g = (jnp.asarray(next(draw(ROW_SHAPES, k, np.float32))["kernel"]) for k in range(2))
    after, state = stepper(ours)(p, ours.init(p), g.at[1, 2].set(np.nan))
    assert jnp.isnan(after).any(0).tolist() == [False, False, True, False, False, False, False]
    assert optax.tree.get(state, "skipped_rows") == 0


@pytest.mark.parametrize("unit_step", [True, False])
@pytest.mark.parametrize("delta", [0.0, 0.5])
def test_row_derivatives_equal_finite_differences(delta: float, unit_step: bool, x64: None):
    start = jnp.asarray(next(draw(ROW_SHAPES, 0))["kernel"])
    noise = jnp.stack([jnp.asarray(next(draw(ROW_SHAPES, k))["kernel"]) for k in range(1, 5)])

    def loss(hyper: Any) -> Any:
        ours = twin.row_acmo(hyper[0], hyper[1], delta, hyper[2], unit_step=unit_step)

        def step(carry: Any, noise: Any) -> Any:
            params, state = carry
            updates, state = ours.update(params + noise, state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(step, (start, ours.init(start)), noise)
        return jnp.sum(params**4)

    hyper, h = jnp.array([0.1, 0.7, 0.05]), 1e-6
    found, second, value = jax.jit(jax.grad(loss))(hyper), jax.jit(jax.hessian(loss))(hyper), jax.jit(loss)
    slope = jax.jit(jax.grad(loss))
    expected = [(value(hyper.at[i].add(h)) - value(hyper.at[i].add(-h))) / (2 * h) for i in range(3)]
    np.testing.assert_allclose(found, expected, 1e-6)
    curves = [(slope(hyper.at[i].add(h)) - slope(hyper.at[i].add(-h))) / (2 * h) for i in range(3)]
    np.testing.assert_allclose(second, curves, 1e-5, 1e-5)


@pytest.mark.parametrize("unit_step", [True, False])
@pytest.mark.parametrize("special", ["zero gradient", "zero moment", "both", "nan", "opposite"])
def test_second_derivatives_at_special_rows_are_finite(special: str, unit_step: bool):
    g, m = (jnp.asarray(next(draw(ROW_SHAPES, k, np.float32))["kernel"]) for k in range(2))
    g = g.at[:, 2].set(0) if special in ("zero gradient", "both") else g
    m = m.at[:, 2].set(0) if special in ("zero moment", "both") else m
    g = g.at[1, 2].set(np.nan) if special == "nan" else g
    g = g.at[:, 2].set(-m[:, 2]) if special == "opposite" else g
    link = twin.scale_by_row_acmo(1.0, unit_step=unit_step)

    def loss(g: Any, m: Any) -> Any:
        u, state = link.update(g, link.init(g)._replace(mu=m))
        return jnp.sum(u**3) + jnp.sum(state.mu**3)

    for derivative in (jax.grad(loss, (0, 1)), jax.hessian(loss, (0, 1))):
        assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(derivative(g, m)))


def test_finite_rows_do_not_set_off_debug_nans():
    with jax.debug_nans(True):
        ours = twin.row_acmo(0.1, weight_decay=0.1)
        params = jax.tree.map(jnp.asarray, next(draw(ROW_SHAPES, 0, np.float32)))
        state = ours.init(params)
        for scale in (0.0, 1.0, 1e-30, 0.0, 1e30):
            _, state = ours.update(jax.tree.map(lambda p, s=scale: s * p, params), state, params)
