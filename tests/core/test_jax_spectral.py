"""The optax twin with orthogonalised steps is SpectralACMo: on transposed arrays, step by step, that of PyTorch."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import acmo  # noqa: E402
import acmo.jax as twin  # noqa: E402
from acmo import jax_spectral  # noqa: E402
from tests.support import spectral_oracle  # noqa: E402
from tests.support.jax_pairs import Pair, Tree, draw, turn  # noqa: E402
from tests.support.jax_suites import stepper  # noqa: E402

pytestmark = pytest.mark.slow  # jax is not among the packages of the quick tier
# As PyTorch stores them; the twin gets them with the first axis last.
SHAPES = {
    "bias": (12,), "edge": (8, 30), "fat": (10, 60), "filters": (16, 3, 2, 2), "head": (90, 10), "kernel": (12, 20),
    "scale": (), "tall": (40, 9),
}  # fmt: skip
SPECTRAL = ("fat", "filters", "kernel", "tall")


def test_defaults_are_those_of_the_class():
    own, theirs = (inspect.signature(f).parameters for f in (acmo.SpectralACMo, twin.spectral_acmo))
    for name in ("momentum", "delta", "weight_decay", "norm_scope", "ns_steps", "nonfinite"):
        assert theirs[name].default == own[name].default, name


def make_pair(twin_: Any, dtype: type = np.float64, turned: bool = True, **options: Any) -> Pair:
    spectral = options.pop("spectral", None)

    def build(params: list[torch.Tensor]) -> acmo.SpectralACMo:
        return acmo.SpectralACMo([{"params": params, "spectral": spectral}], foreach=True, **options)

    return Pair(SHAPES, build, twin_, dtype, turned)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1}, {"momentum": 0.99, "delta": 0.3}, {"norm_scope": "row", "ns_steps": 3},
        {"norm_scope": "column"}, {"norm_scope": "column", "spectral": True}, {"spectral": False}, {"spectral": True},
    ],
    ids=str,
)  # fmt: skip
def test_15_spectral_steps_are_those_of_pytorch(options: Tree, x64: None):
    pair = make_pair(twin.spectral_acmo(0.03, **options), lr=0.03, **options)
    for t in range(15):
        grads = next(pair.grads)
        if t in (0, 7):
            grads = {k: np.zeros_like(g) for k, g in grads.items()}
        if t == 5:
            grads["kernel"][:] = 0
            grads["head"][:, 1] = 0
        if t == 9:
            grads["kernel"][1, 2] = np.nan
            grads["head"][30, 2] = np.inf
        pair.step(grads)
        pair.assert_equal()
    assert optax.tree.get(pair.state, "count") == 15
    assert optax.tree.get(pair.state, "skipped_steps") == pair.opt.telemetry()["skipped_steps"] == 1


def test_axis_0_is_spectral_pytorch_on_the_same_arrays(x64: None):
    pair = make_pair(twin.spectral_acmo(0.03, weight_decay=0.1, axis=0), turned=False, lr=0.03, weight_decay=0.1)
    for _ in range(5):
        pair.step()
        pair.assert_equal()


def test_float32_spectral_steps_are_those_of_pytorch():
    pair = make_pair(twin.spectral_acmo(0.03), np.float32, lr=0.03)
    for _ in range(5):
        pair.step()
        pair.assert_equal(1e-4)


def test_steps_are_those_of_singular_values(x64: None):
    """Without momentum the step is the polynomial of the singular values, whatever PyTorch does."""
    grads = next(draw(SHAPES, 3))
    turned = {k: jnp.asarray(turn(g)) for k, g in grads.items()}
    link = twin.scale_by_spectral_acmo(0.0)
    steps, _ = link.update(turned, link.init(turned))
    for k in SPECTRAL:
        g = grads[k].reshape(len(grads[k]), -1)
        expected = np.sqrt(max(g.shape)) * spectral_oracle.orthogonalise(g)
        np.testing.assert_allclose(steps[k], turn(expected.reshape(grads[k].shape)), 1e-10, 1e-10, err_msg=k)


@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (9, 9), (9, 70)])
def test_optax_muon_takes_the_same_step_without_momentum(shape: tuple[int, int]):
    g = jnp.asarray(np.random.default_rng(0).standard_normal(shape), "float32")
    muon = optax.contrib.scale_by_muon(beta=0.0, nesterov=False)
    expected, _ = muon.update(g, muon.init(g), g)
    ours = twin.scale_by_spectral_acmo(0.0)
    found, _ = ours.update(g, ours.init(g))
    np.testing.assert_allclose(found / np.sqrt(max(shape)), expected, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("shape", "axis", "options", "expected"),
    [
        ((64, 64), -1, {}, True), ((9, 9), -1, {}, True), ((8, 64), -1, {}, False), ((64, 8), -1, {}, False),
        ((64, 512), -1, {}, True), ((64, 513), -1, {}, False), ((513, 64), -1, {}, False),
        ((64, 513), -1, {"spectral": True}, True), ((513, 64), -1, {"spectral": True}, True),
        ((64, 64), -1, {"spectral": False}, False), ((64, 64), -1, {"norm_scope": "column"}, False),
        ((3, 3, 16, 32), -1, {}, True), ((3, 3, 512, 9), -1, {}, True), ((3, 3, 16, 8), -1, {}, False),
        ((64, 4, 16), (-2, -1), {}, True), ((64, 4, 4), -1, {}, False), ((64, 16), (-2, -1), {}, False),
        ((64,), -1, {}, False), ((), -1, {}, False),
    ],
)  # fmt: skip
def test_shapes_decide_what_is_orthogonalised(shape: Any, axis: Any, options: Tree, expected: bool):
    chosen = {"norm_scope": "auto", "spectral": None} | options
    assert jax_spectral.is_matrix(jnp.zeros(shape), axis, **chosen) is expected
    assert not jax_spectral.is_matrix(jnp.zeros(shape, "complex64"), axis, **chosen)


def test_what_is_not_orthogonalised_steps_by_row(x64: None):
    params, grads = ({k: jnp.asarray(turn(x)) for k, x in next(draw(SHAPES, i)).items()} for i in range(2))
    both = [make(0.03, weight_decay=0.1) for make in (twin.spectral_acmo, twin.row_acmo)]
    found, expected = (ours.update(grads, ours.init(params), params)[0] for ours in both)
    for k in SHAPES:
        assert (k in SPECTRAL) != bool((found[k] == expected[k]).all()), k


@pytest.mark.parametrize("exponent", [-110, -100, 100, 120])  # 1e-33, 1e-30, 1e30, 1e36
def test_float32_matrices_do_not_depend_on_scale(exponent: int):
    link = twin.scale_by_spectral_acmo()
    state = scaled = link.init(jnp.zeros((20, 12)))
    update = jax.jit(link.update)
    for seed in range(3):
        g = next(draw(SHAPES, seed, np.float32))["kernel"].T
        u, state = update(g, state)
        v, scaled = update(np.ldexp(g, exponent), scaled)
        assert (u == v).all()
        assert 0.5 < jnp.sqrt(jnp.mean(u**2)) < 1.3


def test_a_matrix_of_rank_one_and_a_vanished_moment_are_finite():
    link = twin.scale_by_spectral_acmo(1.0)
    g = jnp.outer(jnp.arange(1.0, 13.0), jnp.arange(1.0, 10.0))
    u, state = link.update(g, link.init(g))
    size = spectral_oracle.polynomial(np.array([1.0]))[0] * np.sqrt(12)
    np.testing.assert_allclose(u, size * g / jnp.linalg.norm(g), 1e-4, 1e-5)
    u, state = link.update(-g, state)
    assert (u == 0).all()
    assert (state.mu == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_matrix_that_is_not_finite_is_skipped_by_itself(bad: float):
    params, g = ({k: jnp.asarray(turn(x)) for k, x in next(draw(SHAPES, i, np.float32)).items()} for i in range(2))
    spoilt = g | {"kernel": g["kernel"].at[3, 4].set(bad)}
    ours = twin.spectral_acmo(0.1, weight_decay=0.5)
    step = stepper(ours)
    good, _ = step(params, ours.init(params), g)
    after, state = step(params, ours.init(params), spoilt)
    for k in SHAPES:
        assert (after[k] == (params if k == "kernel" else good)[k]).all(), k
    assert (optax.tree.get(state, "mu")["kernel"] == 0).all()
    assert (optax.tree.get(state, "skipped_rows"), optax.tree.get(state, "skipped_steps")) == (1, 1)
    through = twin.spectral_acmo(0.1, nonfinite="propagate")
    after, state = stepper(through)(params, through.init(params), spoilt)
    assert jnp.isnan(after["kernel"]).all()
    assert optax.tree.get(state, "skipped_rows") == 0


def test_dtypes_of_spectral_moments_and_updates():
    for dtype, mu_dtype, stored in (
        ("float16", None, "float32"), ("bfloat16", None, "bfloat16"), ("float32", "bfloat16", "bfloat16"),
    ):  # fmt: skip
        g = jnp.asarray(next(draw(SHAPES, 0))["kernel"], dtype)
        link, exact = twin.scale_by_spectral_acmo(0.0, mu_dtype=mu_dtype), twin.scale_by_spectral_acmo(0.0)
        u, state = link.update(g, link.init(g))
        assert (u.dtype, state.mu.dtype) == (dtype, stored)
        wide = g.astype("float32")
        expected, _ = exact.update(wide, exact.init(wide))  # the moment is orthogonalised before it is rounded
        np.testing.assert_allclose(u.astype("float32"), expected, 1e-5 if dtype == "float32" else 1e-2)


def test_injected_schedules_and_iterations_drive_a_spectral_step(x64: None):
    ours = optax.inject_hyperparams(twin.spectral_acmo)(lambda count: 0.1 / (1 + count), ns_steps=4, momentum=0.8)
    pair = make_pair(ours, lr=0.1, momentum=0.8, ns_steps=4)
    for t in range(4):
        pair.opt.param_groups[0]["lr"] = 0.1 / (1 + t)
        pair.step()
        pair.assert_equal(1e-7)  # optax keeps the momentum in float32


def test_spectral_derivatives_equal_finite_differences(x64: None):
    start, *noise = (jnp.asarray(next(draw(SHAPES, k))["kernel"]) for k in range(4))

    def loss(hyper: Any) -> Any:
        ours, params = twin.spectral_acmo(hyper[0], hyper[1], weight_decay=hyper[2]), start
        state = ours.init(params)
        for x in noise:
            updates, state = ours.update(params + x, state, params)
            params = optax.apply_updates(params, updates)
        return jnp.sum(params**4)

    hyper, h, value = jnp.array([0.1, 0.7, 0.05]), 1e-6, jax.jit(loss)
    expected = [(value(hyper.at[i].add(h)) - value(hyper.at[i].add(-h))) / (2 * h) for i in range(3)]
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(hyper), expected, 1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ns_steps": 0}, ValueError, "ns_steps must be finite and >= 1, got 0"),
        ({"ns_steps": 2.5}, TypeError, "ns_steps must be a whole number, got 2.5"),
        ({"ns_steps": True}, TypeError, "ns_steps must be a whole number, got True"),
        ({"spectral": "yes"}, TypeError, "spectral must be True or False or None, got 'yes'"),
        ({"norm_scope": "tensor"}, ValueError, "norm_scope must be one of 'row', 'column', 'auto', got 'tensor'"),
        ({"momentum": 1.2}, ValueError, r"momentum must be in \[0, 1\], got 1.2"),
        ({"learning_rate": -0.1}, ValueError, "learning_rate must be finite and >= 0, got -0.1"),
        ({"axis": 2}, ValueError, r"axis must be in \[-2, 1\] for an array of shape \(20, 30\), got 2"),
    ],
)
def test_a_bad_spectral_option_is_named_with_its_value(options: Tree, error: Any, message: str):
    with pytest.raises(error, match=message):
        twin.spectral_acmo(**{"learning_rate": 0.1} | options).init(jnp.ones((20, 30)))


def test_examples_in_the_spectral_docstrings_hold():
    result = doctest.testmod(jax_spectral)
    assert result.attempted > 5
    assert result.failed == 0
