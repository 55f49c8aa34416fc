"""The optax twin by row is RowACMo: on transposed arrays step by step that of PyTorch, angles included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import acmo  # noqa: E402
import acmo.jax as twin  # noqa: E402
from acmo import jax_rows  # noqa: E402
from tests.support.jax_pairs import Tree, make_row_pair  # noqa: E402

pytestmark = pytest.mark.slow  # jax is not among the packages of the quick tier


@pytest.mark.combinations
@pytest.mark.parametrize("scope", ["auto", "row", "column"])
@pytest.mark.parametrize("unit_step", [True, False])
@pytest.mark.parametrize(("momentum", "delta", "decay"), [(0.9, 0.0, 0.1), (0.99, 0.3, 0.0)])
def test_30_row_steps_are_those_of_pytorch(
    scope: str, unit_step: bool, momentum: float, delta: float, decay: float, x64: None
):
    options: Tree = {"momentum": momentum, "delta": delta, "weight_decay": decay}
    options |= {"norm_scope": scope, "unit_step": unit_step}
    pair = make_row_pair(twin.row_acmo(0.03, **options), lr=0.03, **options)
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
    pair = make_row_pair(twin.row_acmo(0.03, weight_decay=0.1, axis=0), turned=False, lr=0.03, weight_decay=0.1)
    for _ in range(10):
        pair.step()
        pair.assert_equal()


def test_complex_row_steps_are_those_of_pytorch(x64: None):
    pair = make_row_pair(twin.row_acmo(0.03, weight_decay=0.1), np.complex128, lr=0.03, weight_decay=0.1)
    for _ in range(10):
        pair.step()
        pair.assert_equal()


def test_float32_row_steps_are_those_of_pytorch():
    pair = make_row_pair(twin.row_acmo(0.03), np.float32, lr=0.03)
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
