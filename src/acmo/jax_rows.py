"""RowACMo for JAX: every row is calibrated by itself, with unit steps. `acmo.jax` has the public names.

Rows are scaled by their largest entry before anything is squared, so float32 has no range to leave.
"""

from collections.abc import Callable, Sequence
from math import prod, sqrt
from operator import index
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from acmo import options
from acmo.jax_angles import RowAngles, join_angles, make_angles, measure_rows
from acmo.jax_arrays import check_number, find_largest, find_limit, find_norms, widen
from acmo.scopes import ROW_SCOPES, resolve_scope

Axis = int | tuple[int, ...]
FindAxes = Callable[[Any], tuple[int, ...]]


class ScaleByRowACMoState(NamedTuple):
    """Hold the state of `scale_by_row_acmo` and `scale_by_spectral_acmo`, where a matrix counts as one row."""

    count: Array  # type: ignore[assignment]  # t, the steps taken; a tuple has a method of that name
    mu: optax.Updates  # m
    skipped_steps: Array  # steps in which a row was skipped
    skipped_rows: Array  # rows that were skipped in the last step
    angles: RowAngles


def scale_by_row_acmo(
    momentum: ArrayLike = 0.9,
    delta: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    axis: Axis = (-1,),
    norm_scope: str = "auto",
    unit_step: bool | str = True,
    nonfinite: str = "skip",
) -> optax.GradientTransformation:
    """Turn gradients into RowACMo's step before the learning rate: the moment of every row, at unit length.

    See `acmo.jax.row_acmo` for the arguments, and for the whole optimizer. A decay that is chained before this
    transformation makes rows without a gradient take part.
    """
    check_axis(axis)
    options.check_one_of("norm_scope", norm_scope, ROW_SCOPES)
    options.check_one_of("unit_step", unit_step, (True, False, "rms"))

    def find_axes(x: Any) -> tuple[int, ...]:
        return find_norm_axes(jnp.shape(x), axis, norm_scope)

    return build_transformation(momentum, delta, mu_dtype, find_axes, nonfinite, unit_step=bool(unit_step))


def row_acmo(
    learning_rate: optax.ScalarOrSchedule,
    momentum: ArrayLike = 0.9,
    delta: ArrayLike = 0.0,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mu_dtype: DTypeLike | None = None,
    mask: Any | Callable[[optax.Params], Any] | None = None,
    *,
    axis: Axis = (-1,),
    norm_scope: str = "auto",
    unit_step: bool | str = True,
    nonfinite: str = "skip",
) -> optax.GradientTransformationExtraArgs:
    r"""Apply ACMo to every row of a matrix, with unit steps: one moment, and the angle rule in each row.

    .. math::
      m_r = g_r + \beta \|g_r\| \frac{m_r}{\|m_r\| + \delta}, \qquad
      \theta_r \leftarrow (1 - \alpha \lambda) \theta_r - \alpha \sqrt{n} \frac{m_r}{\|m_r\|}

    A row has the n entries that share an index along ``axis``, by default the last one: an output neuron of a kernel
    (in, out), a filter of a kernel (height, width, in, out), a feature of an embedding table (vocabulary, features). A
    matrix with more than 8 indices along ``axis`` per index of the other axis is taken for the head of a vocabulary,
    (features, vocabulary), and goes by the other axis, also by feature. An array with fewer than two axes, or whose
    rows would have one entry, is one row. A row whose gradient is 0 takes no part, but decays. Every step has a root
    mean square of ``learning_rate`` per entry, whatever the length of the gradient, so give it a schedule that decays.

    On transposed matrices this is `acmo.RowACMo`, and with ``axis=0`` on the same ones. Rows that are cut over devices
    need nothing further under `jax.jit`; `jax.shard_map` sees one shard only. The angles of the last step are in the
    state, one entry per leaf: ``optax.tree_utils.tree_get(state, "cos_min")``, ``"cos_mean"``, ``"turned_share"``.

    Args:
      learning_rate: the step size α, a number or a schedule.
      momentum: the paper's β, in [0, 1].
      delta: δ in the denominator, >= 0. With 0 the steps do not depend on the scale of the gradients.
      weight_decay: λ, a number or a schedule; decoupled: θ shrinks by (1 − αλ).
      mu_dtype: dtype of the stored moment; by default the parameter's own, float32 for float16.
      mask: a tree of bools like the parameters (or a prefix of it), or a callable that makes one of them: which decay.
      axis: rows share an index along this axis, or along each of these: (-2, -1) suits a kernel (in, heads, size). It
        holds for all parameters; where they differ, use `optax.partition`. `optax.inject_hyperparams` would trace an
        int: give it a tuple.
      norm_scope: ``"auto"`` as said above; ``"row"``: by ``axis``, whatever the shape; ``"column"``: matrices by the
        other axis, other arrays by ``axis``.
      unit_step: False for the step α m by row.
      nonfinite: what to do about rows that are not finite: ``"skip"`` each by itself (its update is 0, it does not even
        decay, and ``skipped_rows`` and ``skipped_steps`` count it) or ``"propagate"``.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from acmo.jax import row_acmo
      >>> def f(x): return jnp.sum(x ** 2)  # simple quadratic function
      >>> solver = row_acmo(optax.linear_schedule(0.5, 0.0, 10))
      >>> params = jnp.array([[1., 2.], [3., 1.]])  # two rows: the last axis has two indices
      >>> opt_state = solver.init(params)
      >>> for _ in range(10):
      ...  updates, opt_state = solver.update(jax.grad(f)(params), opt_state, params)
      ...  params = optax.apply_updates(params, updates)
      >>> print('Objective function: {:.2E}'.format(f(params)))
      Objective function: 2.33E-03
    """
    moment = scale_by_row_acmo(
        momentum, delta, mu_dtype, axis=axis, norm_scope=norm_scope, unit_step=unit_step, nonfinite=nonfinite
    )

    def find_axes(x: Any) -> tuple[int, ...]:
        return find_norm_axes(jnp.shape(x), axis, norm_scope)

    return chain_decay(moment, find_axes, learning_rate, weight_decay, mask, nonfinite)


def build_transformation(
    momentum: ArrayLike,
    delta: ArrayLike,
    mu_dtype: DTypeLike | None,
    find_axes: FindAxes,
    nonfinite: str,
    *,
    unit_step: bool = True,
    finish: Callable[[Array], Array] = lambda u: u,
) -> optax.GradientTransformation:
    """Return the transformation of gradients to steps by row; arguments as in `row_acmo`, and two more.

    Args:
      find_axes: returns the axes that the norms of an array are taken over.
      finish: makes the step of a whole array from that of its rows.
    """
    check_number(options.check_between, "momentum", momentum, 0.0, 1.0)
    check_number(options.check_at_least, "delta", delta)
    options.check_one_of("nonfinite", nonfinite, ("skip", "propagate"))
    if mu_dtype is not None:  # in float16 the moments of small gradients would vanish
        options.check_one_of("mu_dtype", jnp.dtype(mu_dtype).name, ("bfloat16", "float32", "float64"))
        mu_dtype = jax.dtypes.canonicalize_dtype(mu_dtype)

    def init_moment(p: Any) -> Array:
        if mu_dtype is not None and jnp.iscomplexobj(p):
            raise ValueError(f"mu_dtype={mu_dtype} needs real parameters, got complex ones")
        find_axes(p)  # an axis out of range is an error here already
        return jnp.zeros_like(p, dtype=jnp.float32 if mu_dtype is None and p.dtype == jnp.float16 else mu_dtype)

    def init(params: optax.Params) -> ScaleByRowACMoState:
        # Nothing stands here twice: the same array could not be donated to a jitted step.
        count, steps, rows = (jnp.zeros((), jnp.int32) for _ in range(3))
        angles = make_angles(len(jax.tree.leaves(params)))
        return ScaleByRowACMoState(count, jax.tree.map(init_moment, params), steps, rows, angles)

    def update(updates: Any, state: ScaleByRowACMoState, params: Any = None) -> tuple[Any, ScaleByRowACMoState]:
        gs, tree = jax.tree.flatten(updates)
        ms = jax.tree.leaves(state.mu)
        skipped, steps, moments, angles = jnp.zeros((), jnp.int32), [], [], []
        for g, m in zip(gs, ms, strict=True):
            axes = find_axes(g)
            finite = find_finite_rows(g, axes) if nonfinite == "skip" else jnp.array(True)
            kept = jnp.where(finite, g, 0)
            u, new = step_rows(kept, m, momentum, delta, axes, unit_step)
            u = finish(u)
            angles.append(measure_rows(kept, m, u, axes))
            steps.append(u.astype(jnp.result_type(g)))
            moments.append(saturate(new, m.dtype))
            skipped += jnp.sum(~finite, dtype=jnp.int32)
        count, skipped_steps = optax.safe_increment(state.count), optax.safe_increment(state.skipped_steps)
        skipped_steps = jnp.where(skipped > 0, skipped_steps, state.skipped_steps)
        us, mu = jax.tree.unflatten(tree, steps), jax.tree.unflatten(tree, moments)
        return us, ScaleByRowACMoState(count, mu, skipped_steps, skipped, join_angles(angles, state.angles))

    return optax.GradientTransformation(init, update)


def chain_decay(
    moment: optax.GradientTransformation,
    find_axes: FindAxes,
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: optax.ScalarOrSchedule,
    mask: Any,
    nonfinite: str,
) -> optax.GradientTransformationExtraArgs:
    """Return the transformation with decoupled decay and the learning rate; rows that were skipped do not decay."""
    check_number(options.check_at_least, "learning_rate", learning_rate)
    check_number(options.check_at_least, "weight_decay", weight_decay)
    rate = optax.scale_by_learning_rate(learning_rate)
    if mask is None and isinstance(weight_decay, int | float) and weight_decay == 0:  # then no update needs params
        return optax.chain(moment, rate)
    chain = optax.chain(moment, optax.add_decayed_weights(weight_decay, mask), rate)
    if nonfinite == "propagate":
        return chain

    def keep_finite(g: Any, u: Array) -> Array:
        return jnp.where(find_finite_rows(g, find_axes(g)), u, 0)

    def update(updates: optax.Updates, state: Any, params: Any = None, **extra: Any) -> tuple[optax.Updates, Any]:
        decayed, state = chain.update(updates, state, params, **extra)
        return jax.tree.map(keep_finite, updates, decayed), state

    return optax.GradientTransformationExtraArgs(chain.init, update)


def check_axis(axis: Any) -> None:
    """Raise unless ``axis`` is an int or a tuple of ints, known before tracing."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    if not all(hasattr(a, "__index__") and not isinstance(a, bool | jax.Array) for a in axes):
        raise TypeError(
            f"axis must be an int or a tuple of ints, got {axis!r}; with optax.inject_hyperparams use a tuple, as (0,)"
        )


def find_norm_axes(shape: Sequence[int], axis: Axis, norm_scope: str) -> tuple[int, ...]:
    """Return the axes that the norms of an array are taken over: torch's rule on the array with ``axis`` in front.

    Example:
      >>> shapes = [(64, 512), (64, 513), (513, 64), (3, 3, 16, 999), (64,), (1, 64)]
      >>> [find_norm_axes(shape, -1, "auto") for shape in shapes]
      [(0,), (1,), (0,), (0, 1, 2), (0,), (0, 1)]
    """
    ndim = len(shape)
    if ndim < 2:
        return tuple(range(ndim))
    shared, others = split_axes(shape, axis)
    kind = resolve_scope(norm_scope, (prod(shape[a] for a in shared), *(shape[a] for a in others)))
    return tuple({"row": others, "column": shared, "whole": range(ndim)}[kind])


def split_axes(shape: Sequence[int], axis: Axis) -> tuple[list[int], list[int]]:
    """Return the axes that the entries of a row share an index along, and the others."""
    ndim = len(shape)
    axes = [index(a) for a in (axis if isinstance(axis, tuple) else (axis,))]
    if not all(-ndim <= a < ndim for a in axes):
        raise ValueError(f"axis must be in [{-ndim}, {ndim - 1}] for an array of shape {tuple(shape)}, got {axis}")
    shared = [a for a in range(ndim) if a in axes or a - ndim in axes]
    return shared, [a for a in range(ndim) if a not in shared]


def find_finite_rows(g: ArrayLike, axes: tuple[int, ...]) -> Array:
    """Return which rows of an array have finite entries only, with the reduced axes kept."""
    return jnp.isfinite(g).all(axes, keepdims=True)


def step_rows(
    g: ArrayLike, m: Array, momentum: ArrayLike, delta: ArrayLike, axes: tuple[int, ...], unit_step: bool
) -> tuple[Array, Array]:
    """Return u and m_t of every row; the norms are taken over ``axes``.

    With g = a ĝ and m = c m̂, whose largest entries are about 1, line 6 is m_t = g + a β‖ĝ‖ · m̂ / (‖m̂‖ + δ/c).
    """
    wide = jnp.promote_types(widen(g).dtype, m.dtype)
    g, m = jnp.asarray(g, wide), jnp.asarray(m, wide)
    real = g.real.dtype
    largest_g, largest_m = find_largest(g, axes), find_largest(m, axes)
    moves, has_moment = largest_g != 0, largest_m != 0
    a, c = jnp.where(moves, largest_g, 1), jnp.where(has_moment, largest_m, 1)
    G, M = find_norms(g / a, axes), find_norms(m / c, axes)
    # 4, 6  m = g + βG · m / (M + δ)
    divisor = jnp.where(has_moment, M + jnp.asarray(delta, real) / c, 1)
    kept = jnp.asarray(momentum, real) * G / divisor * (m / c)
    new = g + a * kept
    if not unit_step:
        return jnp.where(moves, new, 0), jnp.where(moves, new, m)
    # 8  u = √n m / N, from m/a, which is finite where m is not; where N is rounding, there is no step and no moment
    hat = g / a + kept
    N = find_norms(hat, axes)
    vanishes = (1e-14 if real == jnp.float64 else 1e-6) * G >= N
    n = prod(g.shape[i] for i in axes)
    u = sqrt(n) * (hat / jnp.where(vanishes, 1, N))
    keeps = moves & ~vanishes
    return jnp.where(keeps, u, 0), jnp.where(keeps, new, jnp.where(moves, 0, m))


def saturate(x: Array, dtype: Any) -> Array:
    """Convert to a dtype; what lies beyond its range becomes its largest number: an infinite moment has no angle."""
    if jnp.iscomplexobj(x):
        return x.astype(dtype)
    limit = find_limit(dtype)
    return jnp.clip(x, -limit, limit).astype(dtype)
