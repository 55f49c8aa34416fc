"""SpectralACMo for JAX: matrices step by their orthogonalised moment. `acmo.jax` has the public names."""

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from acmo import options
from acmo.jax_rows import Axis, build_transformation, chain_decay, check_axis, find_norm_axes, split_axes
from acmo.newton_schulz import COEFFICIENTS, DEFAULT_STEPS
from acmo.scopes import ROW_SCOPES, TABLE_RATIO, is_spectral


def scale_by_spectral_acmo(
    momentum: ArrayLike = 0.9,
    delta: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    axis: Axis = (-1,),
    norm_scope: str = "auto",
    spectral: bool | None = None,
    ns_steps: int = DEFAULT_STEPS,
    nonfinite: str = "skip",
) -> optax.GradientTransformation:
    """Turn gradients into SpectralACMo's step before the learning rate: the orthogonalised moment of every matrix.

    See `acmo.jax.spectral_acmo` for the arguments, and for the whole optimizer.
    """
    check_axis(axis)
    options.check_one_of("norm_scope", norm_scope, ROW_SCOPES)
    options.check_flag("spectral", spectral, optional=True)
    check_steps(ns_steps)

    def find_axes(x: Any) -> tuple[int, ...]:
        return find_spectral_axes(x, axis, norm_scope, spectral)

    def finish(u: Array) -> Array:
        return orthogonalise(u, axis, ns_steps) if is_matrix(u, axis, norm_scope, spectral) else u

    return build_transformation(momentum, delta, mu_dtype, find_axes, nonfinite, finish=finish)


def spectral_acmo(
    learning_rate: optax.ScalarOrSchedule,
    momentum: ArrayLike = 0.9,
    delta: ArrayLike = 0.0,
    weight_decay: optax.ScalarOrSchedule = 0.5,
    mu_dtype: DTypeLike | None = None,
    mask: Any | Callable[[optax.Params], Any] | None = None,
    *,
    axis: Axis = (-1,),
    norm_scope: str = "auto",
    spectral: bool | None = None,
    ns_steps: int = DEFAULT_STEPS,
    nonfinite: str = "skip",
) -> optax.GradientTransformationExtraArgs:
    r"""Apply ACMo with orthogonalised steps for matrices: one moment per parameter, one learning rate.

    .. math::
      M = G + \beta \|G\| \frac{M}{\|M\| + \delta}, \qquad
      \theta \leftarrow (1 - \alpha \lambda) \theta - \alpha \sqrt{\max(r, c)} \; \mathrm{NS}(M / \|M\|)

    NS brings singular values near 1 by Newton–Schulz iterations, as Muon does; norms are over the whole matrix, r × c.
    An array is orthogonalised if it has at least two axes and both sides are longer than 8, seen as (everything else,
    ``axis``): a kernel (height, width, in, out) has out columns. A matrix with one side more than 8 times the other
    is taken for a vocabulary's table (vocabulary, features) or head (features, vocabulary); it steps as in
    `acmo.jax.row_acmo`, as does everything else. Shapes do not show every table and head: give the others
    `acmo.jax.row_acmo` by `optax.partition`. Every step has a root mean square of about ``learning_rate`` per entry, so
    one schedule that decays is right for all.

    On transposed matrices this is `acmo.SpectralACMo`, but for matrices with more than 8 inputs per output, which torch
    orthogonalises by default. Products are in float32 (float64 for arrays of that dtype), as precise as
    ``jax_default_matmul_precision`` makes them. Sharded arrays need nothing further under `jax.jit`, which sends what
    products need; `jax.shard_map` sees one shard only. The angles of the last step are in the state, as in
    `acmo.jax.row_acmo`.

    Args:
      learning_rate: the step size α, a number or a schedule.
      momentum: the paper's β, in [0, 1].
      delta: δ in the denominator, >= 0. With 0 the steps do not depend on the scale of the gradients.
      weight_decay: λ, a number or a schedule; decoupled: θ shrinks by (1 − αλ). Unless it is 0, ``update`` needs the
        parameters. The runs that chose 0.5 spared biases and norms: give a ``mask`` such as
        ``lambda params: jax.tree.map(lambda x: x.ndim > 1, params)``.
      mu_dtype: dtype of the stored moment; by default the parameter's own, float32 for float16.
      mask: a tree of bools like the parameters (or a prefix of it), or a callable that makes one of them: which decay.
      axis: the columns of a matrix are indices along this axis, or along each of these, as in `acmo.jax.row_acmo`.
      norm_scope: what norms are taken over where nothing is orthogonalised, as in `acmo.jax.row_acmo`. With
        ``"column"`` matrices are orthogonalised only where ``spectral`` is True.
      spectral: None: by shape, as said above; True: every array with both sides longer than 8; False: none.
      ns_steps: iterations of Newton–Schulz.
      nonfinite: what to do about rows and matrices that are not finite, as in `acmo.jax.row_acmo`.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from acmo.jax import spectral_acmo
      >>> def f(x): return jnp.sum(x ** 2)  # simple quadratic function
      >>> solver = spectral_acmo(optax.linear_schedule(0.5, 0.0, 20))
      >>> params = jnp.eye(9) + 1
      >>> opt_state = solver.init(params)
      >>> for _ in range(20):
      ...  updates, opt_state = solver.update(jax.grad(f)(params), opt_state, params)
      ...  params = optax.apply_updates(params, updates)
      >>> bool(f(params) < 1)
      True

    References:
      Jordan et al., `Muon: An optimizer for hidden layers in neural networks
      <https://kellerjordan.github.io/posts/muon/>`_, 2024: the orthogonalised step
    """
    moment = scale_by_spectral_acmo(
        momentum,
        delta,
        mu_dtype,
        axis=axis,
        norm_scope=norm_scope,
        spectral=spectral,
        ns_steps=ns_steps,
        nonfinite=nonfinite,
    )

    def find_axes(x: Any) -> tuple[int, ...]:
        return find_spectral_axes(x, axis, norm_scope, spectral)

    return chain_decay(moment, find_axes, learning_rate, weight_decay, mask, nonfinite)


def check_steps(ns_steps: Any) -> None:
    """Raise unless the number of iterations is a whole number >= 1; a tracer of inject_hyperparams has no value yet."""
    if isinstance(ns_steps, jax.Array):
        return
    if not isinstance(ns_steps, int) or isinstance(ns_steps, bool):
        raise TypeError(f"ns_steps must be a whole number, got {ns_steps!r}")
    options.check_at_least("ns_steps", ns_steps, 1)


def is_matrix(x: Any, axis: Axis, norm_scope: str, spectral: bool | None) -> bool:
    """Return whether an array is orthogonalised: torch's rule on the array with ``axis`` in front, and tables are out.

    Example:
      >>> shapes = [(64, 64), (3, 3, 16, 32), (64, 8), (64,), (64, 1000), (1000, 64)]
      >>> [is_matrix(jnp.zeros(shape), -1, "auto", None) for shape in shapes]
      [True, True, False, False, False, False]
    """
    shape = jnp.shape(x)
    if len(shape) < 2 or jnp.iscomplexobj(x):
        return False
    shared, others = split_axes(shape, axis)
    rows, rest = prod(shape[a] for a in shared), [shape[a] for a in others]
    is_table = len(rest) == 1 and rest[0] > TABLE_RATIO * rows  # as Flax stores it: (vocabulary, features)
    return is_spectral(norm_scope, (rows, *rest), spectral) and (spectral is True or not is_table)


def find_spectral_axes(x: Any, axis: Axis, norm_scope: str, spectral: bool | None) -> tuple[int, ...]:
    """Return the axes that the norms of an array are taken over: all of them where it is orthogonalised."""
    if is_matrix(x, axis, norm_scope, spectral):
        return tuple(range(jnp.ndim(x)))
    return find_norm_axes(jnp.shape(x), axis, norm_scope)


def orthogonalise(u: Array, axis: Axis, steps: int) -> Array:
    """Return √max(r, c) · NS(u / ‖u‖) of a unit step, in its shape; 0 of 0.

    Args:
      u: with a root mean square of 1 over all entries, or 0.
      axis: as in `spectral_acmo`.
      steps: iterations of Newton–Schulz.
    """
    place = jax.typeof(u).sharding
    is_cut = any(part is not None for part in place.spec)  # only where the type says so: the mesh's axes are explicit
    if is_cut:  # products of cut arrays would be an error
        u = jax.sharding.reshard(u, jax.NamedSharding(place.mesh, jax.P()))
    shared, others = split_axes(u.shape, axis)
    order = (*others, *shared)
    columns = prod(u.shape[a] for a in shared)
    matrix = (u / sqrt(u.size)).transpose(order).reshape(-1, columns)
    found = sqrt(max(matrix.shape)) * iterate(matrix, steps)
    found = found.reshape([u.shape[a] for a in order]).transpose(invert(order))
    return jax.sharding.reshard(found, place) if is_cut else found


def iterate(x: Array, steps: int) -> Array:
    """Return a matrix of norm 1 with its singular values near 1: the polynomial of `acmo.newton_schulz`."""
    a, b, c = COEFFICIENTS
    tall = x.shape[0] > x.shape[1]

    def body(_: Any, x: Array) -> Array:
        gram = x.T @ x if tall else x @ x.T
        factor = b * gram + c * (gram @ gram)
        return a * x + (x @ factor if tall else factor @ x)

    result: Array = jax.lax.fori_loop(0, steps, body, x)
    return result


def invert(order: Sequence[int]) -> list[int]:
    """Return the permutation that undoes another."""
    return sorted(range(len(order)), key=order.__getitem__)
