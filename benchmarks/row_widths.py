"""A step by row or by column beside fused SGD-momentum, for matrices of one width.

Only the kernel's call is timed; calls are interleaved, and ratios are medians of those within rounds. A shared
machine's memory is faster at one time than at another, and the ratio depends on it, so the bandwidth of SGD-momentum
stands beside each.
Run it as ``python benchmarks/row_widths.py [MILLIONS [WIDTH ...]]``, alone on the machine.
"""

import random
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from acmo import native
from acmo.backends.row_kernel import COLUMN, ROW, TABLE_ROWS, RowNumbers, RowTensor, pack

ROUNDS = 25
NUMBERS = RowNumbers(s=1.0, coupled_decay=0.0, beta=0.9, delta=0.0, alpha=1e-6, kappa=1.0)


def time_interleaved(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the seconds of each call in each of so many rounds; two more rounds come first and do not count.

    The order is another one in each round: the caches are what the last call left.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds + 2):
        random.shuffle(order)
        for name in order:
            begin = perf_counter()
            calls[name]()
            times[name].append(perf_counter() - begin)
    return {name: t[2:] for name, t in times.items()}


def compare(columns: int, entries: int) -> dict[str, list[float]]:
    rows = entries // columns
    p, m, g = (torch.randn(rows, columns) for _ in range(3))
    q, scale = torch.randint(-127, 128, (rows, columns), dtype=torch.int8), torch.full((rows,), 0.01)
    table, kernel = torch.empty(TABLE_ROWS, 1, dtype=torch.float64), native.required()

    def step(m: torch.Tensor, scope: int, scale: torch.Tensor | None = None) -> Callable[[], object]:
        entries = columns if scope == ROW else rows
        packed = pack([RowTensor(p, m, g, rows, columns, scope, NUMBERS, entries, scale=scale)])
        return lambda: kernel.rows(*packed, table.data_ptr(), torch.get_num_threads())

    theta = torch.nn.Parameter(p)
    theta.grad = g
    sgd = torch.optim.SGD([theta], lr=1e-6, momentum=0.9, fused=True)
    return time_interleaved(
        {
            "SGD": sgd.step,
            "row": step(m, ROW),
            "row int8": step(q, ROW, scale),
            "column": step(m, COLUMN),
            "column int8": step(q, COLUMN, scale),
        }
    )


def main(millions: int = 40, *widths: int) -> None:
    torch.set_num_threads(2)
    print("| columns | SGD-momentum, GB/s | row / SGD | row, int8 / SGD | column / SGD | column, int8 / SGD |")
    print("|---:|---:|---:|---:|---:|---:|")
    for columns in widths or (64, 256, 768, 3072, 10_000):
        times = compare(columns, millions * 1_000_000)
        sgd = times.pop("SGD")
        ratios = [median(a / b for a, b in zip(own, sgd, strict=True)) for own in times.values()]
        print(f"| {columns:,} | {20e-3 * millions / median(sgd):.0f} | {' | '.join(f'{r:.2f}' for r in ratios)} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
