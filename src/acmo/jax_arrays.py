"""Helpers of the JAX twin: checks of hyper-parameters, the precision of the arithmetic, roots with derivatives."""

from collections.abc import Callable
from typing import Any

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
