"""Suites for the optax twin that need a process of their own: ``python -m tests.support.jax_suites sharded``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import acmo.jax as twin

UNDER_TEST = [  # a name in acmo.jax, and options
    ("acmo", {"learning_rate": 1e-3, "norm_scope": "tensor", "psi": "sqrt"}),
    ("acmo", {"learning_rate": 1e-3, "max_grad_norm": 100.0, "weight_decay": 1e-5, "decoupled_weight_decay": True}),
    ("row_acmo", {"learning_rate": 1e-3, "weight_decay": 1e-5}),
    ("spectral_acmo", {"learning_rate": 1e-3, "weight_decay": 1e-5}),
]


def stepper(optimizer: Any) -> Callable[..., Any]:
    @jax.jit
    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step  # type: ignore[no-any-return]


def sharded() -> None:
    """30 steps on shards, and on one device."""
    jax.config.update("jax_enable_x64", True)
    n = len(jax.devices())
    mesh = jax.make_mesh((n,), ("x",))
    specs = {"a": jax.P("x"), "b": jax.P(None, "x"), "c": jax.P("x", None), "d": jax.P(), "e": jax.P("x", None)}
    shapes = {"a": (8 * n,), "b": (3, 4 * n), "c": (4 * n, 5), "d": (), "e": (8 * n, 10)}
    rng = np.random.default_rng(0)
    options = {"weight_decay": 0.1, "max_grad_norm": 9.0}
    spectral = twin.spectral_acmo(0.03, weight_decay=0.1)  # orthogonalises e
    for ours in (
        twin.acmo(0.03, **options),
        twin.acmo(0.03, **options, decoupled_weight_decay=True, norm_scope="tensor", psi="sqrt"),
        twin.row_acmo(0.03, weight_decay=0.1),
        spectral,
    ):
        params = {k: jnp.asarray(rng.standard_normal(s)) for k, s in shapes.items()}
        step, state = stepper(ours), ours.init(params)
        places = {k: jax.NamedSharding(mesh, s) for k, s in specs.items()}
        shards = jax.device_put(params, places)
        state_of_shards = ours.init(shards)
        for t in range(30):
            grads = {k: rng.standard_normal(s) * (np.nan if t == 9 and k == "b" else 1) for k, s in shapes.items()}
            params, state = step(params, state, grads)
            shards, state_of_shards = step(shards, state_of_shards, jax.device_put(grads, places))
        mu = optax.tree.get(state_of_shards, "mu")
        for k in shapes:
            np.testing.assert_allclose(shards[k], params[k], 1e-12, 1e-12)
            assert shards[k].sharding.is_equivalent_to(places[k], shards[k].ndim), k
            assert mu[k].sharding.is_equivalent_to(places[k], mu[k].ndim), k
        program = step.lower(shards, state_of_shards, jax.device_put(grads, places)).compile().as_text()
        assert "all-reduce" in program
        assert ("all-gather" in program) == (ours is spectral)  # of the others only sums travel
    print(f"ok on {n} devices")


def optax_suite() -> None:
    """Optax's test classes with ACMo in the place of optax's optimizers; prints how many tests passed."""
    import importlib
    import unittest

    from absl.testing import parameterized

    for name in ("optax._src.alias", "optax.contrib"):
        for own in ("acmo", "row_acmo", "spectral_acmo"):
            setattr(importlib.import_module(name), own, getattr(twin, own))
    product, named = parameterized.product, parameterized.named_parameters

    def ours_in_product(*sequences: Any, **grid: Any) -> Any:
        if sequences:
            others = dict.fromkeys(sequences[0][0])
            sequences = (tuple(others | {"opt_name": own, "opt_kwargs": kwargs} for own, kwargs in UNDER_TEST),)
        return product(*sequences, **grid)

    def ours_named(*cases: Any) -> Any:
        if len(cases) > 1:  # not a list of optimizers
            return named(*cases)
        pairs = len(next(iter(cases[0]))) == 2  # a name and an optimizer; else a name, a factory and its options
        made = [(f"{own}{i}", getattr(twin, own), kwargs) for i, (own, kwargs) in enumerate(UNDER_TEST)]
        return named([(name, make(**kwargs)) for name, make, kwargs in made] if pairs else made)

    parameterized.product, parameterized.named_parameters = ours_in_product, ours_named
    passed = 0
    for module, case in (
        ("optax._src.alias_test", "AliasTest"), ("optax.contrib._common_test", "ContribTest"),
        ("optax._src.sharding_test", "ShardingTest"), ("optax._src.float64_test", "Float64Test"),
    ):  # fmt: skip
        tests = unittest.defaultTestLoader.loadTestsFromTestCase(getattr(importlib.import_module(module), case))
        suite = unittest.TestSuite(t for t in tests if "microbatch" not in str(t) and "explicit_dtype" not in str(t))
        result = unittest.TextTestRunner(sys.stderr).run(suite)
        assert result.wasSuccessful(), module
        passed += result.testsRun - len(result.skipped)
    print(passed)


if __name__ == "__main__":
    {"sharded": sharded, "optax": optax_suite}[sys.argv[1]]()
