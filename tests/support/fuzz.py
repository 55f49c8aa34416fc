"""Random optimizer cases: draw one from a seed, run it on a backend, compare two runs, and shrink one that fails.

A case is plain data, so that it can be printed and run again: `replay` takes what a failing test prints.
"""

from __future__ import annotations

import copy
import io
import pprint
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import acmo
from tests.support.backends import FOREACH, REFERENCE, Backend

SHAPES = [
    (),
    (1,),
    (7,),
    (300,),
    (0,),
    (1, 1),
    (5, 1),
    (1, 9),
    (3, 4),
    (40, 3),
    (12, 20),
    (9, 33),
    (4, 3, 3, 3),
    (2, 3, 2, 2, 2),
]
DTYPES = ["float32"] * 4 + ["float64"] * 2 + ["bfloat16", "float16", "complex64"]
LAYOUTS = ["contiguous"] * 4 + ["transposed", "strided", "channels_last"]
GRADS = ["normal"] * 12 + ["zero", "zero_row", "opposite", "tiny", "huge", "expanded", "missing", "nan", "inf"]
EVENTS = [None] * 8 + ["reload", "add_group", "copy", "change_lr"]


# By default the C kernel is used for all tensors that it can step, and foreach for the others.
RUNS: dict[str, Backend] = {"the reference": REFERENCE, "foreach": FOREACH, "the default": {}}


NUDGE = {"float64": 1e-15, "bfloat16": 2**-7, "float16": 2**-10}  # about one rounding error
NUDGE |= dict.fromkeys(("float32", "complex64"), 2**-22)


@dataclass(frozen=True)
class Case:
    """One run of an optimizer; every name is that of an attribute of torch, acmo or this module."""

    seed: int
    optimizer: str
    options: dict[str, Any]  # dtypes by name
    dtype: str
    params: tuple[tuple[tuple[int, ...], str], ...]  # shape and layout of each
    steps: tuple[tuple[str | None, tuple[str, ...]], ...]  # per step: an event before it, and the kind of each gradient

    def __str__(self) -> str:
        """Return code that runs the case again."""
        fields = pprint.pformat(asdict(self), width=110, sort_dicts=False)
        return f"from tests.support.fuzz import replay\nreplay({fields})"


def draw_case(seed: int) -> Case:
    """Return the case of a seed; its options may contradict each other, which every backend must refuse alike."""
    rng = np.random.default_rng(seed)

    def choose(values: list[Any]) -> Any:
        return values[int(rng.integers(len(values)))]

    names = ["ACMo", "ACMo", "RowACMo", "RowACMo"] + ["SpectralACMo"] * hasattr(acmo, "SpectralACMo")
    name, dtype = choose(names), choose(DTYPES)
    options: dict[str, Any] = {
        "lr": choose([0.0, 1e-3, 0.1, 1.0]),
        "momentum": choose([0.0, 0.5, 0.9, 0.99]),  # at 1, m may cancel to rounding that points anywhere
        "delta": choose([0.0, 0.0, 1e-8, 0.1]),
        "weight_decay": choose([0.0, 0.0, 0.01]),
        "decoupled_weight_decay": choose([True, False]),
        "maximize": choose([False, False, True]),
        "nonfinite": choose(["skip", "skip", "skip", "raise", "propagate"]),
    }
    if name == "ACMo":
        options["norm_scope"] = choose(["global", "group", "tensor", "row", "column", "auto"])
        options["unit_step"] = choose([False, False, "rms"])
        options["psi"] = choose(["identity", "identity", "sqrt"])
    if rng.random() < 0.2:
        options["max_grad_norm"] = choose([0.1, 10.0])
    if rng.random() < 0.25:
        options["momentum_dtype"] = choose(["float32", "bfloat16", "float64", "int8"])
    params = tuple((choose(SHAPES), choose(LAYOUTS)) for _ in range(rng.integers(1, 5)))
    steps = tuple((choose(EVENTS), tuple(choose(GRADS) for _ in params)) for _ in range(rng.integers(1, 7)))
    return Case(seed, name, options, dtype, params, steps)


def lay_out(values: Tensor, layout: str) -> Tensor:
    """Return a copy that lies in memory as asked."""
    if layout == "transposed" and values.ndim > 1:
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and values.ndim:
        wide = values.new_zeros((*values.shape[:-1], 2 * values.shape[-1]))
        view = wide[..., ::2]
        view.copy_(values)
        return view
    if layout == "channels_last" and values.ndim == 4:
        return values.contiguous(memory_format=torch.channels_last)
    return values.clone()


def draw_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return normal numbers; complex ones where the dtype is."""
    values = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype.is_complex else 0.0)
    return torch.as_tensor(values).to(dtype)


def draw_grad(rng: np.random.Generator, p: Tensor, kind: str, last: Tensor | None) -> Tensor | None:
    """Return a gradient of one of the kinds of `GRADS`."""
    g = draw_values(rng, tuple(p.shape), p.dtype)
    extreme = 4.0 if p.dtype == torch.float16 else 30.0
    entry = (0,) * g.ndim
    if kind == "missing":
        return None
    if kind == "zero":
        return torch.zeros_like(g)
    if kind == "opposite":
        return g if last is None else -last.clone()
    if kind in ("tiny", "huge"):
        return g * 10.0 ** (-extreme if kind == "tiny" else extreme)
    if kind == "expanded":
        return g.sum().reshape(()).expand(p.shape)
    if g.numel() and kind == "zero_row" and g.ndim:
        g[0] = 0
    if g.numel() and kind in ("nan", "inf"):
        g[entry] = float(kind)
    return g


@dataclass
class Outcome:
    """What a run left behind, or the error that ended it, with the step."""

    params: list[Tensor]
    moments: list[Tensor]
    counts: list[float]
    skipped: int
    moved: list[float]  # how far each parameter could have moved: the scale of its rounding
    sizes: list[float]  # of the terms that its moment was added up from
    error: str | None = None


def read_options(case: Case) -> dict[str, Any]:
    """Return the options with dtypes instead of their names."""
    options = dict(case.options)
    if "momentum_dtype" in options:
        options["momentum_dtype"] = getattr(torch, options["momentum_dtype"])
    return options


def run(case: Case, backend: Backend, *, nudge: bool = False) -> Outcome:
    """Run a case; an error is an outcome too. ``nudge`` changes every gradient by a rounding error."""
    rng = np.random.default_rng(case.seed)
    dtype = getattr(torch, case.dtype)
    params = [lay_out(draw_values(rng, shape, dtype), layout).requires_grad_() for shape, layout in case.params]
    first = params[: max(1, len(params) - 1)] if any(event == "add_group" for event, _ in case.steps) else params
    moved = [float(p.detach().abs().max()) if p.numel() else 0.0 for p in params]
    try:
        opt = getattr(acmo, case.optimizer)(first, **read_options(case), **backend)
    except (ValueError, TypeError, RuntimeError) as error:
        return Outcome([], [], [], 0, [], [], f"constructor: {type(error).__name__}: {error}")
    last: list[Tensor | None] = [None] * len(params)
    sizes = [0.0] * len(params)
    error = None
    for t, (event, kinds) in enumerate(case.steps):
        for i, (p, kind) in enumerate(zip(params, kinds, strict=True)):
            g = draw_grad(rng, p, kind, last[i])
            last[i] = g
            p.grad = g * (1 + NUDGE[case.dtype] * (-1) ** i) if nudge and g is not None else g
            if g is not None and g.numel() and torch.isfinite(g).all():
                size = 1.0 if case.options.get("unit_step", case.optimizer != "ACMo") else float(g.abs().max())
                sizes[i] = max(sizes[i], float(g.abs().max()) + case.options.get("weight_decay", 0.0) * moved[i])
                moved[i] += case.options.get("lr", 0.3) * size * max(1.0, p.numel() ** 0.5) * (t + 1)
        try:
            opt = take_event(opt, event, params, first)
            opt.step()
        except (ValueError, TypeError, RuntimeError, FloatingPointError) as caught:
            error = f"step {t}: {type(caught).__name__}: {caught}"
            break
    states = [opt.state.get(p, {}) for p in params]
    moments = [state.get("momentum_buffer", torch.zeros(())) for state in states]
    scales = [state.get("momentum_scale") for state in states]
    moments = [m if s is None else m * s.reshape(-1, *[1] * (m.ndim - 1)) for m, s in zip(moments, scales, strict=True)]
    counts = [float(state.get("step", 0)) for state in states]
    return Outcome([p.detach() for p in params], moments, counts, opt.skipped_steps, moved, sizes, error)


def take_event(opt: torch.optim.Optimizer, event: str | None, params: list[Tensor], first: list[Tensor]) -> Any:
    """Do what users do between steps: reload the state, add a group, copy the optimizer, change the learning rate."""
    if event == "reload":
        buffer = io.BytesIO()
        torch.save(opt.state_dict(), buffer)
        buffer.seek(0)
        opt.load_state_dict(torch.load(buffer, weights_only=True))
    elif event == "add_group" and len(first) < len(params) and len(opt.param_groups) == 1:
        opt.add_param_group({"params": params[len(first) :], "lr": opt.param_groups[0]["lr"] / 2})
    elif event == "copy":
        return copy.copy(opt)
    elif event == "change_lr":
        for group in opt.param_groups:
            group["lr"] = group["lr"] * 0.5
    return opt


def explain_difference(case: Case, one: Outcome, other: Outcome, nudged: Outcome) -> str | None:
    """Return what differs between two backends' outcomes beyond rounding; None if nothing does.

    ``nudged`` shows how far the case amplifies rounding: a moment that cancels to nothing points anywhere.
    """
    if one.error != other.error:
        return f"errors differ: {one.error!r} and {other.error!r}"
    if one.counts != other.counts or one.skipped != other.skipped:
        return f"counts differ: {one.counts}, {one.skipped} skipped and {other.counts}, {other.skipped} skipped"
    precision = {"float64": 1e-9, "float32": 1e-4, "complex64": 1e-4}.get(case.dtype, 0.05)
    stored = case.options.get("momentum_dtype")
    if stored in ("bfloat16", "int8"):
        precision = 0.05  # a rounding that falls the other way is a step of the stored moment
    triples = (("θ", one.params, other.params, nudged.params), ("m", one.moments, other.moments, nudged.moments))
    for what, xs, ys, zs in triples:
        for i, (x, y, z) in enumerate(zip(xs, ys, zs, strict=True)):
            if not torch.equal(torch.isfinite(x), torch.isfinite(y)):
                return f"{what} of parameter {i}: other entries are not finite"
            finite = torch.isfinite(x)
            if not finite.any():
                continue
            a, b, c = (v[finite].to(torch.complex128 if v.is_complex() else torch.float64) for v in (x, y, z))
            size = max(float(a.abs().max()), float(b.abs().max()), (one.moved if what == "θ" else one.sizes)[i])
            apart, rounding = float((a - b).abs().max()), precision * size + 30 * float((a - c).abs().max())
            if apart > rounding:
                return f"{what} of parameter {i}: {apart:.3g} apart, where {rounding:.3g} would be rounding"
    return None


def find_difference(case: Case) -> str | None:
    """Run a case on every backend; return what differs from the first one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = {name: run(case, backend) for name, backend in RUNS.items()}
        nudged = run(case, REFERENCE, nudge=True)
    (first, reference), *others = outcomes.items()
    for name, outcome in others:
        if (difference := explain_difference(case, reference, outcome, nudged)) is not None:
            return f"{first} and {name}: {difference}"
    return None


def list_smaller(case: Case) -> Iterator[Case]:
    """Yield simpler cases: fewer steps, parameters and options, plainer gradients and layouts."""
    for t in range(len(case.steps)):
        if len(case.steps) > 1:
            yield replace(case, steps=case.steps[:t] + case.steps[t + 1 :])
    for i in range(len(case.params)):
        if len(case.params) > 1:
            steps = tuple((event, kinds[:i] + kinds[i + 1 :]) for event, kinds in case.steps)
            yield replace(case, params=case.params[:i] + case.params[i + 1 :], steps=steps)
    for key in case.options:
        yield replace(case, options={k: v for k, v in case.options.items() if k != key})
    for t, (event, kinds) in enumerate(case.steps):
        simpler = [(None, kinds)] * (event is not None)
        simpler += [
            (event, (*kinds[:i], "normal", *kinds[i + 1 :])) for i, kind in enumerate(kinds) if kind != "normal"
        ]
        for step in simpler:
            yield replace(case, steps=(*case.steps[:t], step, *case.steps[t + 1 :]))
    for i, (shape, layout) in enumerate(case.params):
        if layout != "contiguous":
            yield replace(case, params=(*case.params[:i], (shape, "contiguous"), *case.params[i + 1 :]))


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return a case that still fails, and of which no simpler one that was tried does."""
    while (smaller := next((c for c in list_smaller(case) if fails(c)), None)) is not None:
        case = smaller
    return case


def check(case: Case) -> None:
    """Raise AssertionError with a minimal case unless the backends agree."""
    if find_difference(case) is None:
        return
    least = shrink(case, lambda smaller: find_difference(smaller) is not None)
    raise AssertionError(f"{find_difference(least)}\nThe least case that shows it (of seed {case.seed}):\n{least}")


def replay(fields: dict[str, Any]) -> None:
    """Run a printed case again; raise unless the backends agree."""
    difference = find_difference(Case(**fields))
    assert difference is None, difference
