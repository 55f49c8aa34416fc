"""The optax twin by row among optax's own transformations: masks, partitions, schedules, dtypes, errors."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import acmo.jax as twin  # noqa: E402
from acmo import jax_rows  # noqa: E402
from tests.support.jax_pairs import ROW_SHAPES, Tree, draw, make_row_pair, turn  # noqa: E402
from tests.support.jax_suites import stepper  # noqa: E402

pytestmark = pytest.mark.slow  # jax is not among the packages of the quick tier


def test_a_mask_says_which_rows_decay(x64: None):
    ours = twin.row_acmo(0.03, weight_decay=0.1, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params))
    pair = make_row_pair(ours, lr=0.03)
    pair.opt.param_groups[0]["params"] = [p for p in pair.torch.values() if p.ndim < 2]
    pair.opt.add_param_group({"params": [p for p in pair.torch.values() if p.ndim > 1], "weight_decay": 0.1})
    for _ in range(5):
        pair.step()
        pair.assert_equal()


def test_masked_arrays_are_not_stepped(x64: None):
    part = {k: k != "bias" for k in ROW_SHAPES}
    ours = optax.masked(twin.row_acmo(0.03, weight_decay=0.1), part)
    params = {k: jnp.asarray(turn(x)) for k, x in next(draw(ROW_SHAPES, 0)).items()}
    grads = {k: jnp.asarray(turn(x)) for k, x in next(draw(ROW_SHAPES, 1)).items()}
    updates, _ = jax.jit(ours.update)(grads, ours.init(params), params)
    assert (updates["bias"] == grads["bias"]).all()
    assert (updates["kernel"] != grads["kernel"]).all()
    nothing = optax.masked(twin.row_acmo(0.03), False)
    assert jax.jit(nothing.update)(params, nothing.init(params), params)[0].keys() == params.keys()


def test_a_partition_gives_axes_by_parameter(x64: None):
    parts = {k: twin.row_acmo(0.1, axis=axis) for k, axis in (("dense", -1), ("attention", (-2, -1)))}
    ours = optax.partition(parts, {"kernel": "dense", "query": "attention"})
    rng = np.random.default_rng(0)
    grads = {"kernel": rng.standard_normal((6, 4)), "query": rng.standard_normal((6, 2, 4))}
    updates, _ = ours.update(grads, ours.init(grads), grads)
    np.testing.assert_allclose(jnp.mean(updates["kernel"] ** 2, 0), 0.01)
    np.testing.assert_allclose(jnp.mean(updates["query"] ** 2, 0), np.full((2, 4), 0.01))


def test_injected_schedules_drive_a_row_step(x64: None):
    def falling(start: float) -> Any:
        return lambda count: start / (1 + count)

    ours = optax.inject_hyperparams(twin.row_acmo)(falling(0.1), momentum=falling(1.0), weight_decay=falling(0.2))
    pair = make_row_pair(ours, lr=0.1)
    for t in range(6):
        pair.opt.param_groups[0].update(lr=0.1 / (1 + t), momentum=1 / (1 + t), weight_decay=0.2 / (1 + t))
        pair.step()
        pair.assert_equal()
    assert pair.step_twin._cache_size() == 1
    by_tuple = optax.inject_hyperparams(twin.row_acmo)(0.1, axis=(0,))
    updates, _ = by_tuple.update(jnp.ones((2, 3)), by_tuple.init(jnp.ones((2, 3))), jnp.ones((2, 3)))
    np.testing.assert_allclose(updates, -0.1)
    with pytest.raises(TypeError, match=r"axis must be an int or a tuple of ints.*use a tuple"):
        optax.inject_hyperparams(twin.row_acmo)(0.1, axis=0).init(jnp.ones((2, 3)))


def test_vmap_steps_each_member_by_its_own_rows(x64: None):
    ours = twin.row_acmo(0.03, weight_decay=0.1)
    params, *grads = (
        jnp.stack([jnp.asarray(next(draw(ROW_SHAPES, 3 * k + i))["kernel"]) for i in range(3)]) for k in range(4)
    )
    step, batch = stepper(ours), params
    states, state = [ours.init(p) for p in params], jax.vmap(ours.init)(params)
    members = list(params)
    for g in grads:
        batch, state = jax.vmap(step)(batch, state, g)
        both = [step(p, s, x) for p, s, x in zip(members, states, g, strict=True)]
        members, states = [p for p, _ in both], [s for _, s in both]
    np.testing.assert_allclose(batch, jnp.stack(members), 1e-12)


def test_dtypes_of_row_moments_and_updates():
    for dtype, mu_dtype, stored in (
        ("float16", None, "float32"), ("bfloat16", None, "bfloat16"), ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32"),
    ):  # fmt: skip
        link = twin.scale_by_row_acmo(mu_dtype=mu_dtype)
        g = jnp.asarray(next(draw(ROW_SHAPES, 0))["kernel"], dtype)
        state = link.init(g)
        for _ in range(2):
            u, state = link.update(g, state)
            assert (u.dtype, state.mu.dtype) == (dtype, stored)
            np.testing.assert_allclose(jnp.mean(jnp.square(u.astype("float32")), 0), 1, 1e-2)


def test_empty_arrays_pass_through_a_row_step():
    link = twin.scale_by_row_acmo()
    empty = {"a": jnp.zeros((0, 3)), "b": jnp.zeros((3, 0)), "c": jnp.zeros(0)}
    u, _ = jax.jit(link.update)(empty, link.init(empty))
    assert jax.tree.map(jnp.shape, u) == jax.tree.map(jnp.shape, empty)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.2}, r"momentum must be in \[0, 1\], got 1.2"),
        ({"delta": -1.0}, "delta must be finite and >= 0, got -1"),
        ({"learning_rate": -0.1}, "learning_rate must be finite and >= 0, got -0.1"),
        ({"weight_decay": -0.1}, "weight_decay must be finite and >= 0, got -0.1"),
        ({"norm_scope": "global"}, "norm_scope must be one of 'row', 'column', 'auto', got 'global'"),
        ({"unit_step": "spectral"}, "unit_step must be one of True, False, 'rms', got 'spectral'"),
        ({"nonfinite": "raise"}, "nonfinite must be one of 'skip', 'propagate', got 'raise'"),
        ({"mu_dtype": "float16"}, "mu_dtype must be one of 'bfloat16', 'float32', 'float64', got 'float16'"),
        ({"axis": 2}, r"axis must be in \[-2, 1\] for an array of shape \(2, 3\), got 2"),
    ],
)
def test_a_bad_row_option_is_named_with_its_value(options: Tree, message: str):
    with pytest.raises(ValueError, match=message):
        twin.row_acmo(**{"learning_rate": 0.1} | options).init(jnp.ones((2, 3)))


def test_without_decay_a_row_update_needs_no_parameters():
    ours = twin.row_acmo(0.5)
    updates, _ = ours.update(jnp.ones((3, 2)), ours.init(jnp.zeros((3, 2))))
    np.testing.assert_allclose(updates, -0.5, 1e-6)


def test_a_fresh_row_state_can_be_donated():
    ours = twin.row_acmo(0.1)
    params = jnp.ones((3, 2))
    state = ours.init(params)
    for _ in range(2):
        _, state = jax.jit(ours.update, donate_argnums=1)(params, state)
    assert optax.tree.get(state, "skipped_steps") == 0


def test_examples_in_the_docstrings_by_row_hold():
    result = doctest.testmod(jax_rows)
    assert result.attempted > 5
    assert result.failed == 0
