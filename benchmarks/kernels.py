"""Builds of the C kernel beside each other: a step by row or by column over fused SGD-momentum's.

For whoever changes a loop: keep the library that is installed, install again, and compare the two.

    cp "$(python -c 'from acmo import native; print(native.required().path)')" old.so
    python benchmarks/kernels.py row old.so new.so --widths 64 768 10000

``new.so+`` merges the sweeps of all rows, ``new.so-`` those of none. Both libraries need this version's ABI. All calls
step the same arrays, in a random order in each round; ratios are medians of those within rounds. Run it alone on the
machine.
"""

import argparse
from pathlib import Path
from statistics import median

import torch
from row_widths import NUMBERS, time_interleaved

from acmo import native
from acmo.backends.row_kernel import COLUMN, ROW, TABLE_ROWS, RowTensor, pack

MERGE_WIDTH = {"+": 0, "-": 2**62}


def load(library: str) -> native.Kernel:
    kernel = native.Kernel(str(Path(library.rstrip("+-")).resolve()))
    if library[-1] in MERGE_WIDTH:
        kernel.set_merge_width(MERGE_WIDTH[library[-1]])
    return kernel


def compare(kernels: dict[str, native.Kernel], scope: int, columns: int, entries: int, rounds: int) -> str:
    """Return a line of the table for matrices with so many columns."""
    rows = entries // columns
    p, m, g, theta = (torch.randn(rows, columns) for _ in range(4))
    table = torch.empty(TABLE_ROWS, 1, dtype=torch.float64)
    packed = pack([RowTensor(p, m, g, rows, columns, scope, NUMBERS, columns if scope == ROW else rows)])
    theta.requires_grad_().grad = g
    steps = {name: lambda k=kernel: k.rows(*packed, table.data_ptr(), 2) for name, kernel in kernels.items()}
    times = time_interleaved({"SGD": torch.optim.SGD([theta], lr=1e-6, momentum=0.9, fused=True).step, **steps}, rounds)
    sgd = times.pop("SGD")
    ratios = [f"{median(a / b for a, b in zip(own, sgd, strict=True)):.2f}" for own in times.values()]
    return f"| {columns:,} | {20e-9 * entries / median(sgd):.0f} | {' | '.join(ratios)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scope", choices=["row", "column"])
    parser.add_argument("library", nargs="+")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 768, 3072, 10_000])
    parser.add_argument("--millions", type=int, default=40, help="entries of a matrix")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(2)
    native.required()  # for OpenMP
    kernels = {library: load(library) for library in options.library}
    print(f"| columns | SGD-momentum, GB/s | {' | '.join(kernels)} |")
    print("|---:" * (2 + len(kernels)) + "|")
    scope = ROW if options.scope == "row" else COLUMN
    for columns in options.widths:
        print(compare(kernels, scope, columns, options.millions * 1_000_000, options.rounds), flush=True)


if __name__ == "__main__":
    main()
