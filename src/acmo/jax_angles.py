"""Telemetry of the JAX twin by row: angles of steps with gradients and moments. `acmo.jax` has the public names."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from acmo.jax_arrays import find_largest, find_norms


class RowAngles(NamedTuple):
    """Hold angles of the last step, one entry per leaf of the parameters; 0 where no row took part.

    As ``telemetry()["tensors"]`` in PyTorch: over the rows that took part. A matrix that is orthogonalised is one row.
    """

    cos_min: Array  # the least cosine between step and gradient
    cos_mean: Array
    turned_share: Array  # the share of rows with ⟨g, m_{t−1}⟩ < 0


def make_angles(leaves: int) -> RowAngles:
    """Return the angles before the first step."""
    return RowAngles(*(jnp.zeros(leaves, float) for _ in RowAngles._fields))


def join_angles(found: Sequence[tuple[Array, Array, Array]], like: RowAngles) -> RowAngles:
    """Return the angles of all leaves, from those of each; ``like`` are those of the step before."""
    if not found:
        return like
    return RowAngles(*(jnp.stack(x).astype(y.dtype) for x, y in zip(zip(*found, strict=True), like, strict=True)))


def measure_rows(g: ArrayLike, m: Array, u: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return ``cos_min``, ``cos_mean`` and ``turned_share`` of one array, as constants; norms are over ``axes``."""
    g, m, u = (scale_rows(jax.lax.stop_gradient(jnp.asarray(x, u.dtype)), axes) for x in (g, m, u))
    took_part = jnp.any(g != 0, axes, keepdims=True)
    lengths = find_norms(g, axes) * find_norms(u, axes)
    cos = jnp.clip(multiply_rows(g, u, axes) / jnp.where(lengths == 0, 1, lengths), -1, 1)
    rows = jnp.sum(took_part)
    least = jnp.min(jnp.where(took_part, cos, 1), initial=1)
    turned = jnp.sum(took_part & (multiply_rows(g, m, axes) < 0))
    share = 1 / jnp.maximum(rows, 1)
    return jnp.where(rows > 0, least, 0), jnp.sum(jnp.where(took_part, cos, 0)) * share, turned * share


def scale_rows(x: Array, axes: tuple[int, ...]) -> Array:
    """Return every row with a largest entry of about 1, so that float32 has no range to leave; 0 stays 0."""
    largest = find_largest(x, axes)
    return x / jnp.where(largest == 0, 1, largest)


def multiply_rows(x: Array, y: Array, axes: tuple[int, ...]) -> Array:
    """Return the inner product of every row."""
    return jnp.sum((x.conj() * y).real, axes, keepdims=True)
