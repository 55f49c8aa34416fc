"""The optax twin by row is RowACMo: on transposed arrays step by step that of PyTorch, with the same properties."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import acmo  # noqa: E402
import acmo.jax as twin  # noqa: E402
from acmo import jax_rows  # noqa: E402
from tests.support.jax_suites import stepper  # noqa: E402

pytestmark = pytest.mark.slow  # jax is not among the packages of the quick tier
Tree = dict[str, Any]
# As PyTorch stores them; the twin gets them with the first axis last.
SHAPES = {
    "bias": (5,), "edge": (24, 3), "filters": (4, 3, 2, 2), "head": (40, 4), "kernel": (5, 7), "narrow": (6, 1),
    "one": (1, 6), "scale": (), "wide": (3, 30),
}  # fmt: skip


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def draw(seed: int, dtype: type = np.float64) -> Iterator[Tree]:
    """Trees of deviates, of a size that changes from one to the next."""
    rng = np.random.default_rng(seed)
    while True:
        trees = [{k: np.exp(rng.normal()) * rng.standard_normal(s) for k, s in SHAPES.items()} for _ in range(2)]
        is_complex = np.issubdtype(dtype, np.complexfloating)
        yield {k: np.asarray(x + 1j * trees[1][k] if is_complex else x, dtype) for k, x in trees[0].items()}


def turn(x: Any) -> Any:
    """Turn (out, in, …) into (in, …, out)."""
    return np.moveaxis(x, 0, -1) if np.ndim(x) > 1 else x


class Pair:
    """PyTorch's RowACMo and the twin on the same arrays, each stored its own way, given the same gradients."""

    def __init__(self, twin_: Any, dtype: type = np.float64, turned: bool = True, **options: Any) -> None:
        self.grads = draw(1, dtype)
        start = next(draw(0, dtype))
        self.turn = turn if turned else lambda x: x
        self.torch = {k: torch.tensor(x, requires_grad=True) for k, x in start.items()}
        self.opt = acmo.RowACMo(list(self.torch.values()), foreach=True, **options)
        self.params = {k: jnp.asarray(self.turn(x)) for k, x in start.items()}
        self.state = twin_.init(self.params)
        self.step_twin = stepper(twin_)

    def step(self, grads: Tree | None = None) -> None:
        grads = next(self.grads) if grads is None else grads
        for k, p in self.torch.items():
            p.grad = torch.tensor(grads[k])
        self.opt.step()
        grads = {k: jnp.asarray(self.turn(g)) for k, g in grads.items()}
        self.params, self.state = self.step_twin(self.params, self.state, grads)

    def assert_equal(self, tolerance: float = 1e-10) -> None:
        mu = optax.tree.get(self.state, "mu")
        for k, p in self.torch.items():
            m = self.opt.state[p]["momentum_buffer"].numpy()
            np.testing.assert_allclose(self.params[k], self.turn(p.detach().numpy()), tolerance, tolerance, err_msg=k)
            np.testing.assert_allclose(mu[k], self.turn(m), tolerance, tolerance, err_msg=k)


@pytest.mark.combinations
@pytest.mark.parametrize("scope", ["auto", "row", "column"])
@pytest.mark.parametrize("unit_step", [True, False])
@pytest.mark.parametrize(("momentum", "delta", "decay"), [(0.9, 0.0, 0.1), (0.99, 0.3, 0.0)])
def test_30_row_steps_are_those_of_pytorch(
    scope: str, unit_step: bool, momentum: float, delta: float, decay: float, x64: None
):
    options: Tree = {"momentum": momentum, "delta": delta, "weight_decay": decay}
    options |= {"norm_scope": scope, "unit_step": unit_step}
    pair = Pair(twin.row_acmo(0.03, **options), lr=0.03, **options)
    for t in range(30):
        grads = next(pair.grads)
        if t in (0, 7):
            grads = {k: np.zeros_like(g) for k, g in grads.items()}
        if t in (5, 6):
            grads["kernel"][2] = 0
            grads["head"][:, 1] = 0
            grads["filters"][1] = 0
        if t == 9:
            grads["kernel"][1, 2] = np.nan
            grads["head"][30, 2] = np.inf
            grads["bias"][3] = -np.inf
        if t == 10:  # a row that turns right round
            grads["wide"][1] = -pair.opt.state[pair.torch["wide"]]["momentum_buffer"][1].numpy()
        pair.step(grads)
        pair.assert_equal()
    state = optax.tree.get(pair.state, "ScaleByRowACMoState")
    assert state.count == 30
    assert state.skipped_steps == pair.opt.telemetry()["skipped_steps"] == 1


def test_axis_0_is_pytorch_on_the_same_arrays(x64: None):
    pair = Pair(twin.row_acmo(0.03, weight_decay=0.1, axis=0), turned=False, lr=0.03, weight_decay=0.1)
    for _ in range(10):
        pair.step()
        pair.assert_equal()


def test_complex_row_steps_are_those_of_pytorch(x64: None):
    pair = Pair(twin.row_acmo(0.03, weight_decay=0.1), np.complex128, lr=0.03, weight_decay=0.1)
    for _ in range(10):
        pair.step()
        pair.assert_equal()


def test_float32_row_steps_are_those_of_pytorch():
    pair = Pair(twin.row_acmo(0.03), np.float32, lr=0.03)
    for _ in range(10):
        pair.step()
        pair.assert_equal(1e-5)


def test_tables_of_flax_go_by_feature_as_in_pytorch(x64: None):
    """nn.Embed has (vocabulary, features) as nn.Embedding, a head's kernel (features, vocabulary): all by feature."""
    rng = np.random.default_rng(0)
    table, grad = rng.standard_normal((2, 90, 4))
    ours = twin.row_acmo(0.1)
    expected = torch.tensor(table, requires_grad=True)
    expected.grad = torch.tensor(grad)
    acmo.RowACMo([expected], lr=0.1, foreach=True).step()
    for turned in (False, True):
        p, g = (jnp.asarray(x.T if turned else x) for x in (table, grad))
        updates, _ = ours.update(g, ours.init(p), p)
        found = optax.apply_updates(p, updates)
        np.testing.assert_allclose(found.T if turned else found, expected.detach(), 1e-12)


@pytest.mark.parametrize(
    ("shape", "axis", "scope", "axes"),
    [
        ((64, 512), -1, "auto", (0,)),
        ((64, 513), -1, "auto", (1,)),  # a head
        ((64, 513), -1, "row", (0,)),
        ((64, 513), 0, "auto", (1,)),
        ((513, 64), -1, "auto", (0,)),  # a table
        ((513, 64), 0, "auto", (0,)),
        ((64, 8), -1, "column", (1,)),
        ((3, 3, 16, 999), -1, "auto", (0, 1, 2)),
        ((3, 3, 16, 32), -1, "column", (0, 1, 2)),
        ((64, 4, 16), (-2, -1), "auto", (0,)),  # of attention: (in, heads, size)
        ((64, 16), (-2, -1), "auto", (0, 1)),
        ((1, 64), -1, "auto", (0, 1)),
        ((64, 1), -1, "auto", (0,)),
        ((64, 1), -1, "column", (0, 1)),
        ((64,), -1, "auto", (0,)),
        ((64,), 3, "auto", (0,)),
        ((), -1, "auto", ()),
    ],
)
def test_shape_axis_and_scope_decide_the_norm_axes(shape: Any, axis: Any, scope: str, axes: Any):
    assert jax_rows.find_norm_axes(shape, axis, scope) == axes


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
    for tree in (next(draw(k, np.float32)) for k in range(4)):
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
    g = jnp.asarray(next(draw(0))["kernel"], dtype)
    _, state = link.update(g, link.init(g))
    u, state = link.update(-g * jnp.array([1.0, 3.0, 1.0, 1 / 3, 1.0, 1.0, 1.0], dtype), state)
    assert (u == 0).all()
    assert (state.mu == 0).all()
    u, state = link.update(g, state)
    np.testing.assert_allclose(jnp.mean(u**2, 0), 1, 1e-5)


def test_rows_without_gradient_keep_moment_and_decay():
    ours = twin.row_acmo(0.1, weight_decay=0.5)
    p, g = (jnp.asarray(next(draw(k, np.float32))["kernel"]) for k in range(2))
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
    p, g = (jnp.asarray(next(draw(k, np.float32))["kernel"]) for k in range(2))
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
    p, g = (jnp.asarray(next(draw(k, np.float32))["kernel"]) for k in range(2))
    after, state = stepper(ours)(p, ours.init(p), g.at[1, 2].set(np.nan))
    assert jnp.isnan(after).any(0).tolist() == [False, False, True, False, False, False, False]
    assert optax.tree.get(state, "skipped_rows") == 0


@pytest.mark.parametrize("unit_step", [True, False])
@pytest.mark.parametrize("delta", [0.0, 0.5])
def test_row_derivatives_equal_finite_differences(delta: float, unit_step: bool, x64: None):
    start = jnp.asarray(next(draw(0))["kernel"])
    noise = jnp.stack([jnp.asarray(next(draw(k))["kernel"]) for k in range(1, 5)])

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
    g, m = (jnp.asarray(next(draw(k, np.float32))["kernel"]) for k in range(2))
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
        params = jax.tree.map(jnp.asarray, next(draw(0, np.float32)))
        state = ours.init(params)
        for scale in (0.0, 1.0, 1e-30, 0.0, 1e30):
            _, state = ours.update(jax.tree.map(lambda p, s=scale: s * p, params), state, params)


def test_a_mask_says_which_rows_decay(x64: None):
    ours = twin.row_acmo(0.03, weight_decay=0.1, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params))
    pair = Pair(ours, lr=0.03)
    pair.opt.param_groups[0]["params"] = [p for p in pair.torch.values() if p.ndim < 2]
    pair.opt.add_param_group({"params": [p for p in pair.torch.values() if p.ndim > 1], "weight_decay": 0.1})
    for _ in range(5):
        pair.step()
        pair.assert_equal()


def test_masked_arrays_are_not_stepped(x64: None):
    part = {k: k != "bias" for k in SHAPES}
    ours = optax.masked(twin.row_acmo(0.03, weight_decay=0.1), part)
    params = {k: jnp.asarray(turn(x)) for k, x in next(draw(0)).items()}
    grads = {k: jnp.asarray(turn(x)) for k, x in next(draw(1)).items()}
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
    pair = Pair(ours, lr=0.1)
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
    params, *grads = (jnp.stack([jnp.asarray(next(draw(3 * k + i))["kernel"]) for i in range(3)]) for k in range(4))
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
        g = jnp.asarray(next(draw(0))["kernel"], dtype)
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
