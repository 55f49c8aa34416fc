"""The optax twin is ACMo: step by step that of PyTorch, and an optimizer by optax's own common tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import acmo  # noqa: E402
import acmo.jax as twin  # noqa: E402
from tests.support.jax_suites import stepper  # noqa: E402

pytestmark = pytest.mark.slow  # jax is not among the packages of the quick tier
Tree = dict[str, Any]
SHAPES = {"bias": (5,), "kernel": (3, 4, 5), "scale": ()}  # in the order of jax.tree.leaves


def draw(seed: int = 0, dtype: type = np.float64) -> Iterator[Tree]:
    """Trees of deviates, of a size that changes from one to the next."""
    rng = np.random.default_rng(seed)
    while True:
        size = np.exp(rng.normal())
        deviates = {k: rng.standard_normal(s) for k, s in SHAPES.items()}
        if np.issubdtype(dtype, np.complexfloating):
            deviates = {k: x + 1j * rng.standard_normal(x.shape) for k, x in deviates.items()}
        yield {k: np.asarray(size * x, dtype) for k, x in deviates.items()}


class Pair:
    """PyTorch's ACMo and the twin, from the same start, given the same gradients."""

    def __init__(self, twin_: Any, dtype: type = np.float64, groups: Any = None, **options: Any) -> None:
        self.grads = draw(1, dtype)
        start = next(draw(0, dtype))
        self.torch = {k: torch.tensor(x, requires_grad=True) for k, x in start.items()}
        names = groups or [{"params": list(SHAPES)}]
        self.opt = acmo.ACMo([g | {"params": [self.torch[k] for k in g["params"]]} for g in names], **options)
        self.params = jax.tree.map(jnp.asarray, start)
        self.state = twin_.init(self.params)
        self.step_twin = stepper(twin_)

    def step(self, grads: Tree | None = None) -> None:
        grads = next(self.grads) if grads is None else grads
        for k, p in self.torch.items():
            p.grad = torch.tensor(grads[k])
        self.opt.step()
        self.params, self.state = self.step_twin(self.params, self.state, grads)

    def assert_alike(self, tolerance: float = 1e-10) -> None:
        for k, p in self.torch.items():
            np.testing.assert_allclose(self.params[k], p.detach().numpy(), tolerance, tolerance, err_msg=k)


@pytest.mark.combinations
@pytest.mark.parametrize("clip", [None, 8.0])
@pytest.mark.parametrize("decay", ["none", "coupled", "decoupled"])
@pytest.mark.parametrize("psi", ["identity", "sqrt"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_60_steps_are_those_of_pytorch(scope: str, psi: str, decay: str, clip: float | None, x64: None):
    options = {
        "momentum": 0.9 if clip else 0.99, "delta": 0.0 if decay == "none" else 1e-8, "norm_scope": scope, "psi": psi,
        "weight_decay": 0.0 if decay == "none" else 0.1, "decoupled_weight_decay": decay == "decoupled",
        "max_grad_norm": clip,
    }  # fmt: skip
    pair = Pair(twin.acmo(0.03, **options), lr=0.03, **options)
    clipped = set()
    for t in range(60):
        grads = next(pair.grads)
        if t in (0, 7):  # a first gradient of 0, and one in mid-way
            grads = jax.tree.map(np.zeros_like, grads)
        if t == 20:
            grads["kernel"][1, 2, 3] = np.nan
        pair.step(grads)
        pair.assert_alike()
        if t < 3 or t in (7, 8, 20, 59):
            assert_tells(pair.state, pair.opt.telemetry(), skipped=t == 20)
        clipped.add(float(optax.tree.get(pair.state, "clip_scale")) < 1)
    assert clipped == ({False, True} if clip else {False})
    state = optax.tree.get(pair.state, "ScaleByACMoState")
    for k, p in pair.torch.items():
        np.testing.assert_allclose(state.mu[k], pair.opt.state[p]["momentum_buffer"], 1e-10, 1e-10)
    assert state.count.max() == 59
    assert state.skipped_steps == 1


def assert_tells(state: Any, told: dict[str, Any], skipped: bool) -> None:
    """The state tells of the last applied step what `telemetry` does, scope by scope."""
    ours = jax.tree.map(np.atleast_1d, optax.tree.get(state, "angles"))
    assert optax.tree.get(state, "skipped_steps") == told["skipped_steps"]
    for i, figures in enumerate(told.get("scopes", [told])):
        for name in twin.Angles._fields:
            expected = np.nan_to_num(figures[name])  # 0, where PyTorch's twin has NaN
            np.testing.assert_allclose(getattr(ours, name)[i], expected, 1e-7, 1e-7, err_msg=name)
    if not skipped:
        np.testing.assert_allclose(optax.tree.get(state, "grad_norm"), told["grad_norm"], 1e-10)
        np.testing.assert_allclose(optax.tree.get(state, "clip_scale"), told["clip_scale"], 1e-10)


def test_complex_steps_are_those_of_pytorch(x64: None):
    options = {"weight_decay": 0.1, "psi": "sqrt", "max_grad_norm": 8.0}
    pair = Pair(twin.acmo(0.03, **options), np.complex128, lr=0.03, **options)
    for _ in range(20):
        pair.step()
        pair.assert_alike()


def test_decay_by_chaining_is_decay_by_option(x64: None):
    link, rate = twin.scale_by_acmo(psi="sqrt"), optax.scale_by_learning_rate(0.03)
    chains = {
        False: optax.chain(optax.add_decayed_weights(0.1), link, rate),
        True: optax.chain(link, optax.add_decayed_weights(0.1), rate),
    }
    for decoupled, chain in chains.items():
        pair = Pair(chain, lr=0.03, psi="sqrt", weight_decay=0.1, decoupled_weight_decay=decoupled)
        for _ in range(10):
            pair.step()
            pair.assert_alike()


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_mask_says_which_parameters_decay(decoupled: bool, x64: None):
    ours = twin.acmo(0.03, weight_decay=0.1, decoupled_weight_decay=decoupled,
                     mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params))  # fmt: skip
    groups = [{"params": ["kernel"], "weight_decay": 0.1}, {"params": ["bias", "scale"]}]
    pair = Pair(ours, groups=groups, lr=0.03, decoupled_weight_decay=decoupled)
    for _ in range(10):
        pair.step()
        pair.assert_alike()


def test_masked_parameters_are_in_no_norm(x64: None):
    part = {"bias": False, "kernel": True, "scale": True}
    masked, alone = optax.masked(twin.acmo(0.03, norm_scope="tensor"), part), twin.acmo(0.03, norm_scope="tensor")
    params = jax.tree.map(jnp.asarray, next(draw()))
    few = {k: x for k, x in params.items() if part[k]}
    state, state_alone = masked.init(params), alone.init(few)
    for grads in itertools.islice(draw(1), 3):
        updates, state = jax.jit(masked.update)(grads, state, params)
        expected, state_alone = jax.jit(alone.update)({k: grads[k] for k in few}, state_alone, few)
        assert (updates["bias"] == grads["bias"]).all()
        assert all((updates[k] == expected[k]).all() for k in few)
    nothing = optax.masked(twin.acmo(0.03, max_grad_norm=1.0), False)
    updates, _ = jax.jit(nothing.update)(params, nothing.init(params), params)
    assert all((updates[k] == params[k]).all() for k in params)


def test_a_group_with_a_norm_of_its_own_is_a_partition(x64: None):
    parts = {"a": twin.acmo(0.03, psi="sqrt"), "b": twin.acmo(0.1, momentum=0.5, psi="sqrt")}
    groups = [{"params": ["bias", "scale"], "lr": 0.03}, {"params": ["kernel"], "lr": 0.1, "momentum": 0.5}]
    ours = optax.partition(parts, {"bias": "a", "scale": "a", "kernel": "b"})
    pair = Pair(ours, groups=groups, norm_scope="group", psi="sqrt")
    for _ in range(10):
        pair.step()
        pair.assert_alike()


def test_schedules_drive_rate_decay_and_by_injection_momentum(x64: None):
    def falling(start: float) -> Callable[[Any], Any]:
        return lambda count: start / (1 + count)

    ours = optax.inject_hyperparams(twin.acmo)(
        falling(0.1), momentum=falling(1.0), delta=0.0, weight_decay=falling(0.2), psi="sqrt", max_grad_norm=8.0
    )
    plain = twin.acmo(falling(0.1), 0.9, weight_decay=falling(0.2), decoupled_weight_decay=True)
    pair = Pair(ours, lr=0.1, delta=0.0, psi="sqrt", max_grad_norm=8.0)
    other = Pair(plain, lr=0.1, decoupled_weight_decay=True)
    for t in range(10):
        for each, changes in ((pair, {"momentum": 1 / (1 + t)}), (other, {})):
            each.opt.param_groups[0].update(lr=0.1 / (1 + t), weight_decay=0.2 / (1 + t), **changes)
            each.step()
            each.assert_alike()


def test_an_injected_value_can_be_set_between_steps(x64: None):
    pair = Pair(optax.inject_hyperparams(twin.acmo)(0.1), lr=0.1)
    pair.step()
    pair.state.hyperparams.update(learning_rate=jnp.float64(0.01), momentum=jnp.float64(0.3))
    pair.opt.param_groups[0].update(lr=0.01, momentum=0.3)
    pair.step()
    pair.assert_alike()
    assert pair.step_twin._cache_size() == 1


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_nothing_is_compiled_again_over_steps(scope: str):
    ours = twin.acmo(
        optax.cosine_decay_schedule(0.1, 9), weight_decay=0.1, norm_scope=scope, psi="sqrt", max_grad_norm=8.0
    )
    params = jax.tree.map(jnp.asarray, next(draw(0, np.float32)))
    step, state = stepper(ours), ours.init(params)
    for t, grads in enumerate(itertools.islice(draw(1, np.float32), 6)):
        params, state = step(params, state, jax.tree.map(lambda g, t=t: g * (np.nan if t == 3 else 1), grads))
    assert step._cache_size() == 1
    assert optax.tree.get(state, "skipped_steps") == 1


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_vmap_steps_each_member_of_an_ensemble_by_itself(scope: str, x64: None):
    ours = twin.acmo(0.03, weight_decay=0.1, norm_scope=scope, psi="sqrt", max_grad_norm=8.0)
    members = list(itertools.islice(draw(), 3))
    batch = jax.tree.map(lambda *x: jnp.stack(x), *members)
    states, state_of_batch = [ours.init(m) for m in members], jax.vmap(ours.init)(batch)
    step = stepper(ours)
    for t in range(5):
        grads = list(itertools.islice(draw(t + 1), 3))
        grads[1]["scale"] *= np.nan if t == 2 else 1  # one member skips, the others step
        many = jax.tree.map(lambda *x: jnp.stack(x), *grads)
        batch, state_of_batch = jax.vmap(step)(batch, state_of_batch, many)
        pairs = [step(m, s, g) for m, s, g in zip(members, states, grads, strict=True)]
        members, states = [m for m, _ in pairs], [s for _, s in pairs]
    assert optax.tree.get(state_of_batch, "skipped_steps").tolist() == [0, 1, 0]
    for k in SHAPES:
        np.testing.assert_allclose(batch[k], np.stack([m[k] for m in members]), 1e-12)


@pytest.mark.parametrize(
    ("delta", "psi", "scope"), [(0.0, "sqrt", "global"), (0.5, "identity", "global"), (0.5, "sqrt", "tensor")]
)
def test_derivatives_through_steps_equal_finite_differences(delta: float, psi: str, scope: str, x64: None):
    start = jax.tree.map(jnp.asarray, next(draw()))
    noise = jax.tree.map(lambda *x: jnp.stack(x), *itertools.islice(draw(1), 5))

    def loss(hyper: Any) -> Any:
        ours = twin.acmo(hyper[0], hyper[1], delta, hyper[2], psi=psi, norm_scope=scope, max_grad_norm=8.0)

        def step(carry: Any, noise: Any) -> Any:
            params, state = carry
            updates, state = ours.update(jax.tree.map(jnp.add, params, noise), state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(step, (start, ours.init(start)), noise)
        return sum(jnp.sum(p**4) for p in params.values())

    hyper = jnp.array([0.1, 0.7, 0.05])
    found = jax.jit(jax.grad(loss))(hyper)
    value = jax.jit(loss)
    h = 1e-6
    expected = [(value(hyper.at[i].add(h)) - value(hyper.at[i].add(-h))) / (2 * h) for i in range(3)]
    np.testing.assert_allclose(found, expected, 1e-6)
    assert (np.abs(expected) > 1e-3).all()


@pytest.mark.parametrize("options", [{"max_grad_norm": 1.0}, {"norm_scope": "tensor"}], ids=str)
@pytest.mark.parametrize("decoupled", [False, True])
def test_skip_leaves_everything_as_it_was(decoupled: bool, options: dict[str, Any]):
    ours = twin.acmo(0.1, weight_decay=0.1, psi="sqrt", decoupled_weight_decay=decoupled, **options)
    params, grads = (jax.tree.map(jnp.asarray, x) for x in itertools.islice(draw(0, np.float32), 2))
    step = stepper(ours)
    params, state = step(params, ours.init(params), grads)
    core = optax.tree.get(state, "ScaleByACMoState")
    for bad in (np.nan, np.inf, 1e30):  # the last is finite, its square is not
        after, later = step(params, state, grads | {"bias": grads["bias"].at[2].set(bad)})
        core_later = optax.tree.get(later, "ScaleByACMoState")
        assert core_later.skipped_steps == 1
        core_later = core_later._replace(skipped_steps=core.skipped_steps)
        same = jax.tree.map(lambda a, b: bool((a == b).all()), (params, core), (after, core_later))
        assert all(jax.tree.leaves(same))
    onward, _ = step(after, later, grads)
    assert all(bool((onward[k] != after[k]).all() & jnp.isfinite(onward[k]).all()) for k in onward)


def test_propagate_lets_a_bad_value_through():
    ours = twin.acmo(0.1, nonfinite="propagate")
    params, grads = (jax.tree.map(jnp.asarray, x) for x in itertools.islice(draw(0, np.float32), 2))
    step = stepper(ours)
    params, state = step(params, ours.init(params), grads)
    params, state = step(params, state, grads | {"scale": jnp.float32(jnp.nan)})
    assert jnp.isnan(params["kernel"]).all()
    assert optax.tree.get(state, "skipped_steps") == 0


@pytest.mark.parametrize("options", [{"delta": 0.0, "psi": "sqrt"}, {"max_grad_norm": 1.0, "weight_decay": 0.1}])
def test_finite_gradients_do_not_set_off_debug_nans(options: dict[str, Any]):
    with jax.debug_nans(True):
        ours = twin.acmo(0.1, **options)
        params = jax.tree.map(jnp.asarray, next(draw(0, np.float32)))
        state = ours.init(params)
        for scale in (0.0, 1.0, 0.0, 1.0):
            _, state = ours.update(jax.tree.map(lambda p, s=scale: s * p, params), state, params)
        assert optax.tree.get(state, "moment_norm") > 0


def test_mu_dtype_rounds_what_is_stored_and_not_the_update():
    link = twin.scale_by_acmo(1.0, 0.0, mu_dtype="bfloat16")
    g = [jnp.asarray(x["kernel"]) for x in itertools.islice(draw(0, np.float32), 3)]
    state = link.init(g[0])
    for k in range(2):
        before = state.mu.astype(jnp.float32)
        m, state = link.update(g[k], state)
        assert state.mu.dtype == jnp.bfloat16
        assert m.dtype == jnp.float32
        assert (state.mu == m.astype(jnp.bfloat16)).all()
    beta_hat = jnp.linalg.norm(g[1]) / jnp.linalg.norm(before)
    np.testing.assert_allclose(m, g[1] + beta_hat * before, 1e-5, 1e-6)
    assert (m != state.mu).any()


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_a_fresh_state_can_be_donated(scope: str):
    ours = twin.acmo(0.1, norm_scope=scope)
    params = jax.tree.map(jnp.asarray, next(draw(0, np.float32)))
    state = ours.init(params)
    for _ in range(2):
        updates, state = jax.jit(ours.update, donate_argnums=1)(params, state)
    assert jnp.isfinite(updates["kernel"]).all()
