"""ACMo, RowACMo and SpectralACMo for JAX: Algorithm 1 as optax gradient transformations (``pip install acmo[jax]``).

Norms are of whole arrays, so sharded ones need nothing further under `jax.jit`; `jax.shard_map` sees one shard only.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from acmo import options

try:
    import jax
    import jax.numpy as jnp
    import optax
    from jax import Array
    from jax.typing import ArrayLike, DTypeLike
except ImportError as error:
    raise ImportError("acmo.jax needs jax and optax, which are not both installed: pip install acmo[jax]") from error

from acmo.jax_angles import RowAngles
from acmo.jax_arrays import check_number, root, widen
from acmo.jax_rows import ScaleByRowACMoState, row_acmo, scale_by_row_acmo
from acmo.jax_spectral import scale_by_spectral_acmo, spectral_acmo

__all__ = [
    "Angles",
    "ClipByGradNormState",
    "RowAngles",
    "ScaleByACMoState",
    "ScaleByRowACMoState",
    "acmo",
    "clip_by_grad_norm",
    "row_acmo",
    "scale_by_acmo",
    "scale_by_row_acmo",
    "scale_by_spectral_acmo",
    "spectral_acmo",
]


class Angles(NamedTuple):
    """Hold norms and angles of the last step; 0 where undefined (NaN would set off `jax.debug_nans`)."""

    beta_hat: Array  # β̂, as applied
    moment_norm: Array  # ‖m_t‖
    cos_grad_moment: Array  # cos(g, m_{t-1})
    cos_update_grad: Array  # cos(m_t, g)
    cos_update_moment: Array  # cos(m_t, m_{t-1})


class ScaleByACMoState(NamedTuple):
    """Hold the state of `scale_by_acmo`; for scope "tensor" β̂ and the angles have one entry per leaf."""

    count: Array  # type: ignore[assignment]  # t, the steps taken; a tuple has a method of that name
    mu: optax.Updates  # m
    beta_hat_prev: Array  # what Ψ compares with
    angles: Angles
    skipped_steps: Array


class ClipByGradNormState(NamedTuple):
    """Hold the state of `clip_by_grad_norm`."""

    grad_norm: Array  # of the last gradient, before it was clipped; finite or not
    clip_scale: Array  # c of Algorithm 1


def scale_by_acmo(
    momentum: ArrayLike = 0.9,
    delta: ArrayLike = 1e-8,
    mu_dtype: DTypeLike | None = None,
    *,
    norm_scope: str = "global",
    psi: str = "identity",
    nonfinite: str = "skip",
) -> optax.GradientTransformation:
    """Turn gradients into ACMo's moment, which is at every step scaled to the length of the gradient.

    See `acmo.jax.acmo` for the arguments, and for the whole optimizer. Chain `optax.add_decayed_weights` before this
    transformation for the paper's coupled weight decay, after it for decoupled decay.
    """
    check_number(options.check_between, "momentum", momentum, 0.0, 1.0)
    check_number(options.check_at_least, "delta", delta)
    options.check_one_of("norm_scope", norm_scope, ("global", "tensor"))
    options.check_one_of("psi", psi, ("identity", "sqrt"))
    options.check_one_of("nonfinite", nonfinite, ("skip", "propagate"))
    if mu_dtype is not None:
        options.check_one_of("mu_dtype", jnp.dtype(mu_dtype).name, ("float16", "bfloat16", "float32", "float64"))
        mu_dtype = jax.dtypes.canonicalize_dtype(mu_dtype)

    def init(params: optax.Params) -> ScaleByACMoState:
        if mu_dtype is not None and any(jnp.iscomplexobj(p) for p in jax.tree.leaves(params)):
            raise ValueError(f"mu_dtype={mu_dtype} needs real parameters, got complex ones")
        shape = () if norm_scope == "global" else (len(jax.tree.leaves(params)),)
        prev, *zeros = (jnp.full(shape, x, _scalar_dtype(params)) for x in (jnp.inf, 0, 0, 0, 0, 0))
        mu = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=mu_dtype), params)
        # Nothing stands here twice: the same array could not be donated to a jitted step.
        return ScaleByACMoState(jnp.zeros((), jnp.int32), mu, prev, Angles(*zeros), jnp.zeros((), jnp.int32))

    def update(updates: Any, state: ScaleByACMoState, params: Any = None) -> tuple[Any, ScaleByACMoState]:
        gs, tree = jax.tree.flatten(updates)
        ms = jax.tree.leaves(state.mu)
        prev, dtype = state.beta_hat_prev, state.beta_hat_prev.dtype
        beta, d = jnp.asarray(momentum, dtype), jnp.asarray(delta, dtype)
        gg, gm, mm = _products(gs, gs, dtype), _products(gs, ms, dtype), _products(ms, ms, dtype)
        go = jnp.isfinite(gg.sum()) if nonfinite == "skip" else jnp.array(True)
        if norm_scope == "global":
            gg, gm, mm = gg.sum(), gm.sum(), mm.sum()
        norm_g, norm_m, t = root(gg), root(mm), optax.safe_increment(state.count)
        # 4  β̂ = β ‖g‖ / (‖m‖ + δ), applied as 0 where m = 0
        beta_hat = beta * norm_g / jnp.where(norm_m == 0, 1, norm_m + d)
        fresh = jnp.where(d == 0, jnp.inf, beta * norm_g / jnp.where(d == 0, 1, d))
        # 5  β̂ = Ψ(β̂, β̂_prev); a step with g = 0 keeps what was kept, or momentum would stay 0 forever
        if psi == "sqrt":
            beta_hat = jnp.minimum(beta_hat, jnp.sqrt(t.astype(dtype) / jnp.maximum(t - 1, 1)) * prev)
        kept = jnp.where(norm_g == 0, prev, jnp.where(norm_m == 0, fresh, beta_hat))
        beta_hat = jnp.where(norm_m == 0, 0, beta_hat)
        # 6  m = g + β̂ m
        hats = [beta_hat] * len(gs) if norm_scope == "global" else [beta_hat[i] for i in range(len(gs))]
        news = [widen(g) + hat * widen(m) for g, m, hat in zip(gs, ms, hats, strict=True)]
        us = [jnp.where(go, new, 0).astype(jnp.result_type(g)) for g, new in zip(gs, news, strict=True)]
        # In float16 it saturates: an infinite moment would be NaN after the next step.
        news = [jnp.clip(x, -65504, 65504) if m.dtype == jnp.float16 else x for m, x in zip(ms, news, strict=True)]
        ms = [jnp.where(go, new, m).astype(m.dtype) for m, new in zip(ms, news, strict=True)]
        after = (t, kept, _angles(*jax.lax.stop_gradient((gg, gm, mm, beta_hat))))
        count, kept, angles = jax.tree.map(partial(jnp.where, go), after, (state.count, prev, state.angles))
        skipped = jnp.where(go, state.skipped_steps, optax.safe_increment(state.skipped_steps))
        us, ms = jax.tree.unflatten(tree, us), jax.tree.unflatten(tree, ms)
        return us, ScaleByACMoState(count, ms, kept, angles, skipped)

    return optax.GradientTransformation(init, update)


def clip_by_grad_norm(max_grad_norm: ArrayLike | None = None) -> optax.GradientTransformation:
    """Clip gradients to a norm over all parameters (None: do not), and keep their norm in the state.

    As `torch.nn.utils.clip_grad_norm_`: c = min(1, C / (‖g‖ + 1e-6)). `optax.clip_by_global_norm` lacks the 1e-6.
    """
    check_number(options.check_at_least, "max_grad_norm", max_grad_norm, strict=True, finite=False)

    def init(params: optax.Params) -> ClipByGradNormState:
        return ClipByGradNormState(*(jnp.full((), x, _scalar_dtype(params)) for x in (0, 1)))

    def update(updates: Any, state: ClipByGradNormState, params: Any = None) -> tuple[Any, ClipByGradNormState]:
        gs = jax.tree.leaves(updates)
        norm = root(_products(gs, gs, state.grad_norm.dtype).sum())
        c = jnp.ones_like(norm)
        if max_grad_norm is not None:
            c = jnp.minimum(1, jnp.asarray(max_grad_norm, norm.dtype) / (norm + 1e-6))
            c = jnp.where(jnp.isfinite(norm), c, 1)  # squares that overflow must be seen further down, not g = 0
            updates = jax.tree.map(lambda g: (c * widen(g)).astype(jnp.result_type(g)), updates)
        return updates, ClipByGradNormState(norm, c)

    return optax.GradientTransformation(init, update)


def acmo(
    learning_rate: optax.ScalarOrSchedule,
    momentum: ArrayLike = 0.9,
    delta: ArrayLike = 1e-8,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mu_dtype: DTypeLike | None = None,
    mask: Any | Callable[[optax.Params], Any] | None = None,
    *,
    decoupled_weight_decay: bool = False,
    norm_scope: str = "global",
    psi: str = "identity",
    max_grad_norm: ArrayLike | None = None,
    nonfinite: str = "skip",
) -> optax.GradientTransformationExtraArgs:
    r"""Implement the angle-calibrated moment method: one moment, scaled to the length of the gradient.

    .. math::
      m_t = g_t + \beta \frac{\|g_t\|}{\|m_{t-1}\| + \delta} m_{t-1}, \qquad \theta_{t+1} = \theta_t - \alpha m_t

    A chain of `clip_by_grad_norm`, `scale_by_acmo`, `optax.scale_by_learning_rate`, and `optax.add_decayed_weights`
    before (coupled) or after (decoupled) the second. A skipped step leaves the parameters as they are, while a
    schedule's own count advances. Norms and angles are in the state: ``optax.tree_utils.tree_get(state, "angles")``.

    Args:
      learning_rate: the step size α, a number or a schedule.
      momentum: the paper's β, in [0, 1].
      delta: δ in the denominator, >= 0.
      weight_decay: λ, a number or a schedule; added to the gradient as λθ, unless decoupled.
      mu_dtype: dtype of the stored moment; the parameter's own by default.
      mask: a tree of bools like the parameters (or a prefix of it), or a callable that makes one of them: which decay.
      decoupled_weight_decay: shrink θ by (1 − αλ) instead.
      norm_scope: what the norms are of: ``"global"`` (all parameters together) or ``"tensor"`` (each by itself). For
        one norm a group of parameters, give each group an optimizer of its own with `optax.partition`.
      psi: Ψ of Algorithm 1: ``"identity"``, or ``"sqrt"`` as Theorem 4.1 asks.
      max_grad_norm: clip the gradient to this norm, over all parameters.
      nonfinite: what to do about gradients whose norm is not finite: ``"skip"`` them (the updates are 0, and only
        ``skipped_steps`` grows) or ``"propagate"``. Nothing waits for the device; derivatives of a skip may be NaN.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from acmo.jax import acmo
      >>> def f(x): return jnp.sum(x ** 2)  # simple quadratic function
      >>> solver = acmo(learning_rate=0.1)
      >>> params = jnp.array([1., 2., 3.])
      >>> opt_state = solver.init(params)
      >>> for _ in range(5):
      ...  updates, opt_state = solver.update(jax.grad(f)(params), opt_state, params)
      ...  params = optax.apply_updates(params, updates)
      >>> print('Objective function: {:.2E}'.format(f(params)))
      Objective function: 1.96E-01
      >>> print('cos(g, m): {:.2f}'.format(optax.tree_utils.tree_get(opt_state, 'cos_grad_moment')))
      cos(g, m): 1.00

    References:
      Huang et al., `ACMo: Angle-Calibrated Moment Methods for Stochastic Optimization
      <https://arxiv.org/abs/2006.07065>`_, AAAI 2021
    """
    options.check_flag("decoupled_weight_decay", decoupled_weight_decay)
    check_number(options.check_at_least, "learning_rate", learning_rate)
    check_number(options.check_at_least, "weight_decay", weight_decay)
    off = mask is None and isinstance(weight_decay, int | float) and weight_decay == 0  # then no update needs params
    decay = optax.identity() if off else optax.add_decayed_weights(weight_decay, mask)
    moment = scale_by_acmo(momentum, delta, mu_dtype, norm_scope=norm_scope, psi=psi, nonfinite=nonfinite)
    middle = (moment, decay) if decoupled_weight_decay else (decay, moment)
    chain = optax.chain(clip_by_grad_norm(max_grad_norm), *middle, optax.scale_by_learning_rate(learning_rate))
    if off or not decoupled_weight_decay or nonfinite == "propagate":
        return chain

    def update(updates: optax.Updates, state: Any, params: Any = None, **extra: Any) -> tuple[optax.Updates, Any]:
        updates, new = chain.update(updates, state, params, **extra)
        taken = new[1].skipped_steps == state[1].skipped_steps
        return jax.tree.map(lambda u: jnp.where(taken, u, jnp.zeros_like(u)), updates), new

    return optax.GradientTransformationExtraArgs(chain.init, update)


def _scalar_dtype(params: optax.Params) -> Any:
    """At least float32, and at least as precise as any parameter."""
    return jnp.result_type(jnp.float32, *(np.empty(0, jnp.result_type(p)).real.dtype for p in jax.tree.leaves(params)))


def _products(xs: Sequence[Any], ys: Sequence[Any], dtype: Any) -> Array:
    """⟨x, y⟩ of each pair of leaves. No reshape: that would gather a sharded array."""
    sums = [jnp.sum((widen(x).conj() * widen(y)).real, dtype=dtype) for x, y in zip(xs, ys, strict=True)]
    return jnp.stack(sums) if sums else jnp.zeros(0, dtype)  # none, where all is masked


def _angles(gg: Array, gm: Array, mm: Array, b: Array) -> Angles:
    """Norms and angles from ‖g‖², ⟨g, m⟩, ‖m‖² and β̂: ‖m_t‖² = ‖g‖² + 2β̂⟨g, m⟩ + β̂²‖m‖²."""
    new = jnp.maximum(gg + 2 * b * gm + b * b * mm, 0)

    def cosine(inner: Array, x_sq: Array, y_sq: Array) -> Array:
        lengths = jnp.sqrt(x_sq) * jnp.sqrt(y_sq)
        return jnp.clip(inner / jnp.where(lengths == 0, 1, lengths), -1, 1)

    return Angles(b, jnp.sqrt(new), cosine(gm, gg, mm), cosine(gg + b * gm, new, gg), cosine(gm + b * mm, new, mm))
