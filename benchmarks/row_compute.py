"""What a step by row computes, without memory: matrices that stay in the second-level cache, one thread, minima.

Compared with the time that memory takes per entry (`python -m acmo.bench`), it shows which of the two bounds a step.
Run it as ``python benchmarks/row_compute.py [ROWS COLUMNS]``.
"""

import sys
from collections.abc import Callable
from time import perf_counter

import torch

from acmo import native
from acmo.backends.row_kernel import ROW, TABLE_ROWS, RowNumbers, RowTensor, pack

REPEATS, CALLS = 300, 50


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds of one call: the least mean of CALLS calls."""
    best = float("inf")
    for _ in range(REPEATS):
        begin = perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (perf_counter() - begin) / CALLS)
    return best


def main(rows: int = 20, columns: int = 2000) -> None:
    torch.set_num_threads(1)
    kernel, n = native.required(), rows * columns
    table = torch.empty(TABLE_ROWS, 1, dtype=torch.float64)
    numbers = RowNumbers(s=1.0, coupled_decay=0.0, beta=0.9, delta=0.0, alpha=1e-3, kappa=1.0)
    p, g, m = (torch.randn(rows, columns) for _ in range(3))
    q, scale = torch.randint(-127, 128, (rows, columns), dtype=torch.int8), torch.full((rows,), 0.01)
    empty = [torch.empty(0, columns) for _ in range(3)]

    def step(p: torch.Tensor, m: torch.Tensor, g: torch.Tensor, scale: torch.Tensor | None = None) -> float:
        tensor = RowTensor(p, m, g, len(p), columns, ROW, numbers, columns, scale=scale)
        packed = pack([tensor])
        return time_call(lambda: kernel.rows(*packed, table.data_ptr(), torch.get_num_threads()))

    overhead = step(*empty)  # of the call
    print(f"{rows} x {columns} on {kernel.isa}, ns per entry, one thread")
    for name, seconds in (("float32 moments", step(p, m, g)), ("int8 moments", step(p, q, g, scale))):
        print(f"  {name:16} {1e9 * (seconds - overhead) / n:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
