"""A step by rows in the C kernel beside torch's fused SGD-momentum and AdamW and ACMo's global scope.

Interleaved rounds in one process, medians; run it on a machine that does nothing else:
    python benchmarks/rows.py [sets, by comma] [rounds]
"""

import math
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter

import acmo
from acmo.backends import row_kernel
from acmo.backends.row_kernel import RowNumbers, RowTensor, step_rows
from acmo.bench.sets import SETS

Shape = tuple[int, ...]
NUMBERS = RowNumbers(s=1.0, coupled_decay=0.0, beta=0.9, delta=0.0, alpha=1e-5, kappa=1.0)
SHAPES: dict[str, tuple[Shape, ...]] = {
    "10,000 x 10,000": ((10_000, 10_000),),
    "transformer": SETS["transformer"].shapes,
    "resnet50": SETS["resnet50"].shapes,
    "1,000 of 1,000": ((1_000,),) * 1_000,
    "100,000 x 27": ((100_000, 27),),
}


def describe(param: Tensor, grad: Tensor, by_column: bool, int8: bool) -> RowTensor:
    """Return a parameter with a moment of zeros: by column for a table, as scope "auto" decides, else by row."""
    shape = param.shape
    matrix = param.dim() > 1 and param.numel() > shape[0]
    rows, cols = (shape[0], param.numel() // shape[0]) if matrix else (1, param.numel())
    column = by_column and param.dim() == 2 and rows > 8 * cols
    scope, n = (row_kernel.COLUMN, rows) if column else (row_kernel.ROW, cols)
    small = int8 and matrix
    moment = torch.zeros(shape, dtype=torch.int8 if small else torch.float32)
    scale = torch.zeros(rows) if small else None
    return RowTensor(param, moment, grad, rows, cols, scope, NUMBERS, math.sqrt(n), scale=scale)


def contenders(shapes: tuple[Shape, ...]) -> dict[str, Callable[[], object]]:
    """Return a call per contender; they share gradients and have parameters and state of their own."""
    grads = [torch.randn(shape) for shape in shapes]

    def copies() -> list[Parameter]:
        made = [Parameter(torch.full(shape, 0.01)) for shape in shapes]
        for param, grad in zip(made, grads, strict=True):
            param.grad = grad
        return made

    def rows(by_column: bool, int8: bool) -> Callable[[], object]:
        tensors = [describe(p.detach(), g, by_column, int8) for p, g in zip(copies(), grads, strict=True)]
        return lambda: step_rows(tensors)

    return {
        "SGD-momentum": torch.optim.SGD(copies(), lr=1e-5, momentum=0.9, fused=True).step,
        "AdamW": torch.optim.AdamW(copies(), lr=1e-5, fused=True).step,
        "ACMo": acmo.ACMo(copies(), lr=1e-5, fused=True).step,
        "rows": rows(False, False),
        "rows, int8": rows(False, True),
        "auto": rows(True, False),
        "auto, int8": rows(True, True),
    }


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median of each call in ms."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order, names = random.Random(0), list(calls)
    for _ in range(rounds + 2):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            calls[name]()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def main(keys: str = ",".join(key.replace(",", "") for key in SHAPES), rounds: int = 15) -> None:
    """Print a table per set."""
    known = {key.replace(",", ""): key for key in SHAPES}
    print(f"{torch.get_num_threads()} threads, {rounds} rounds, torch {torch.__version__}")
    for key in keys.split(","):
        medians = measure(contenders(SHAPES[known[key]]), rounds)
        print(f"\n{known[key]}\n\n| | ms | / SGD | / AdamW | / ACMo |\n|---|---:|---:|---:|---:|")
        for name, ms in medians.items():
            ratios = [ms / medians[other] for other in ("SGD-momentum", "AdamW", "ACMo")]
            print(f"| {name} | {ms:.2f} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main(*(kind(x) for kind, x in zip((str, int), sys.argv[1:], strict=False)))
