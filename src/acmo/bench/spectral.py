"""Spectral steps beside torch's Muon with AdamW, and what orthogonalising adds to forward and backward.

``python -m acmo.bench --spectral [--sets transformer] [--tokens 2048]``
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from acmo.bench.contenders import LR, Instance, of
from acmo.bench.measure import interleave
from acmo.bench.sets import ParameterSet, Shape
from acmo.newton_schulz import DEFAULT_STEPS
from acmo.row_acmo import RowACMo
from acmo.scopes import is_spectral
from acmo.spectral_acmo import SpectralACMo

MUON, SPECTRAL, ROWS = "Muon + AdamW fused", "SpectralACMo", "RowACMo"
BFLOAT16, INT8 = "SpectralACMo, bfloat16 products", "SpectralACMo, int8 moments"
LAYERS = "forward and backward of the matrices"


@dataclass(frozen=True)
class Row:
    """One optimizer: milliseconds per step, the ratios to Muon and to the layers, bytes of state per parameter."""

    name: str
    ms: float
    to_muon: float | None
    to_layers: float
    state_bytes: float


@dataclass(frozen=True)
class SpectralResult:
    """A set's rows, with the ratio that the number of operations gives."""

    label: str
    matrices: int
    tokens: int
    layers_ms: float
    operations_ratio: float
    rows: list[Row]


def count_operations(shapes: Sequence[Shape], steps: int = DEFAULT_STEPS) -> int:
    """Return the operations that orthogonalise matrices: 4 s² l + 2 s³ per iteration, s the smaller side, l the larger.

    Example:
      >>> count_operations([(512, 2048)])
      12079595520
    """
    sides = [sorted((shape[0], prod(shape[1:]))) for shape in shapes]
    return steps * sum(4 * s * s * longer + 2 * s**3 for s, longer in sides)


def measure_spectral(which: ParameterSet, tokens: int, rounds: int) -> SpectralResult:
    """Measure the optimizers on one set, interleaved with a forward and backward of its matrices for some tokens."""
    shapes = [shape for shape in which.shapes if is_spectral("auto", shape)]
    gradients = which.gradients()
    made: dict[str, Instance] = {}
    if hasattr(torch.optim, "Muon"):  # since torch 2.9
        made[MUON] = muon_and_adamw(which.params(gradients))
    made[SPECTRAL] = of(SpectralACMo(which.params(gradients), lr=LR, weight_decay=0.0))
    made[BFLOAT16] = of(SpectralACMo(which.params(gradients), lr=LR, weight_decay=0.0, ns_dtype=torch.bfloat16))
    made[INT8] = of(SpectralACMo(which.params(gradients), lr=LR, weight_decay=0.0, momentum_dtype=torch.int8))
    made[ROWS] = of(RowACMo(which.params(gradients), lr=LR))
    weights = [torch.randn(shape[0], prod(shape[1:]), requires_grad=True) for shape in shapes]
    inputs = {c: torch.randn(tokens, c, requires_grad=True) for c in {w.shape[1] for w in weights}}

    def run_layers() -> None:
        for w in weights:
            x = inputs[w.shape[1]]
            x.grad = w.grad = None
            y = torch.nn.functional.linear(x, w)
            y.backward(y.detach())  # type: ignore[no-untyped-call]

    steps = {name: instance.step for name, instance in made.items()}
    times = interleave({**steps, LAYERS: run_layers}, rounds)
    layers, muon = times[LAYERS].ms, times[MUON].ms if MUON in times else None
    rows = [
        Row(
            name,
            times[name].ms,
            None if muon is None else times[name].ms / muon,
            times[name].ms / layers,
            sum(x.numel() * x.element_size() for x in instance.state()) / which.parameters,
        )
        for name, instance in made.items()
    ]
    ratio = count_operations(shapes) / (6 * tokens * sum(map(prod, shapes)))
    return SpectralResult(which.label, len(shapes), tokens, layers, ratio, rows)


def muon_and_adamw(params: list[Tensor]) -> Instance:
    """Muon for what SpectralACMo orthogonalises (kernels flattened), fused AdamW for the rest."""
    matrices = [p for p in params if is_spectral("auto", p.shape)]
    flat = []
    for p in matrices:
        assert p.grad is not None
        flat.append(p.detach().flatten(1).requires_grad_())
        flat[-1].grad = p.grad.flatten(1)
    known = set(map(id, matrices))
    muon = torch.optim.Muon(flat, lr=LR, weight_decay=0.0)
    adamw = torch.optim.AdamW([p for p in params if id(p) not in known], lr=LR, fused=True)

    def step() -> None:
        muon.step()  # type: ignore[no-untyped-call]
        adamw.step()

    def state() -> list[Tensor]:
        states = [*muon.state.values(), *adamw.state.values()]
        return [x for own in states for x in own.values() if isinstance(x, Tensor)]

    return Instance(params, step, state)


def report_spectral(result: SpectralResult) -> list[str]:
    """Return a Markdown table and the formula's ratio."""
    lines = [
        f"{result.label}: {result.matrices} spectral matrices; {LAYERS} for {result.tokens:,} tokens: "
        f"{result.layers_ms:.0f} ms",
        "",
        "| | ms | / Muon + AdamW | / forward and backward | bytes of state per parameter |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in result.rows:
        to_muon = "" if row.to_muon is None else f"{row.to_muon:.2f}"
        lines.append(f"| {row.name} | {row.ms:.1f} | {to_muon} | {row.to_layers:.3f} | {row.state_bytes:.2f} |")
    lines += [
        "",
        f"By the number of operations, orthogonalising adds {result.operations_ratio:.3f} of forward and backward: "
        f"Σ 5 (4 s² l + 2 s³) / (6 · tokens · Σ s l), s the smaller and l the larger side, about 20 s / (6 · tokens).",
    ]
    return lines
