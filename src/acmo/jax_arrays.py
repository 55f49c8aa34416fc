"""Helpers of the JAX twin: checks of hyper-parameters, the precision of the arithmetic, roots, norms of rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def check_number(check: Callable[..., None], name: str, value: Any, *bounds: float, **options: bool) -> None:
    """Check a hyper-parameter that is a number; a schedule, or a tracer of inject_hyperparams, has no value yet."""
    if isinstance(value, int | float):
        check(name, value, *bounds, **options)


def widen(x: ArrayLike) -> Array:
    """Return an array in the precision of the arithmetic: float32 for the half precisions."""
    return jnp.asarray(x, jnp.promote_types(jnp.result_type(x), jnp.float32))


def root(x: Array) -> Array:
    """Return √x, with derivative 0 at 0: such a norm only selects a branch."""
    return jnp.where(x == 0, 0, jnp.sqrt(jnp.where(x == 0, 1, x)))


def find_largest(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the largest real or imaginary part of every row, as a constant: norms do not depend on the scale."""
    parts = jnp.maximum(abs(x.real), abs(x.imag)) if jnp.iscomplexobj(x) else abs(x)
    largest = jnp.max(parts, axes, keepdims=True, initial=0)
    # XLA divides by multiplying with the reciprocal, and sets one that is subnormal to 0.
    return jax.lax.stop_gradient(jnp.minimum(largest, find_limit(parts.dtype) / 8))


def find_limit(dtype: Any) -> float:
    """Return the largest number of a dtype."""
    return float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]


def find_norms(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the norm of every row. No reshape: that would gather a sharded array."""
    return root(jnp.sum((x.conj() * x).real, axes, keepdims=True))
