"""Why the foreach backend sums squares in float64 and in pieces on the CPU: precision and speed of the ways there are.

python benchmarks/norms.py [millions of entries]
"""

import math
import statistics
import sys
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from acmo.backends.foreach import sum_squares

Way = Callable[[Tensor], Tensor]


def views(x: Tensor) -> Tensor:
    """float32 norms of views of 2^18 entries, their squares added in float64."""
    return torch.stack(torch._foreach_norm(torch.split(x, 2**18))).double().square().sum()


def rows(x: Tensor) -> Tensor:
    """float32 norms of rows of 1,024, their squares added in float64."""
    cut = x.numel() // 1024 * 1024
    whole = torch.linalg.vector_norm(x[:cut].view(-1, 1024), dim=1).double().square().sum()
    return whole + torch.linalg.vector_norm(x[cut:]).double().square()


WAYS: dict[str, Way] = {
    "_foreach_norm, the whole tensor": lambda x: torch._foreach_norm([x])[0].double().square(),
    "_foreach_norm, views of 2^18": views,
    "_foreach_norm, dtype=float64": lambda x: torch._foreach_norm([x], 2, torch.float64)[0].square(),
    "vector_norm, rows of 1,024": rows,
    "vector_norm, dtype=float64": lambda x: torch.linalg.vector_norm(x, dtype=torch.float64).square(),
    "foreach.sum_squares": lambda x: sum_squares([x])[0],
}


def milliseconds(way: Way, x: Tensor) -> float:
    times = []
    for _ in range(7):
        begin = perf_counter()
        way(x)
        times.append(1e3 * (perf_counter() - begin))
    return statistics.median(times)


def main() -> None:
    """Print a table: the relative error of the norm for two kinds of entries, and the time."""
    n = int(1e6 * float(sys.argv[1] if len(sys.argv) > 1 else 20))
    normal = torch.randn(n, generator=torch.Generator().manual_seed(0))
    equal = torch.full((n,), 1.1)
    truths = [
        math.sqrt(sum(float(part.double().square().sum()) for part in torch.split(x, 2**20))) for x in (normal, equal)
    ]
    print(f"{n:,} float32 entries, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| way | error, normal deviates | error, all 1.1 | ms |\n|---|---:|---:|---:|")
    for name, way in WAYS.items():
        errors = [abs(float(way(x)) ** 0.5 / truth - 1) for x, truth in zip((normal, equal), truths, strict=True)]
        print(f"| {name} | {errors[0]:.0e} | {errors[1]:.0e} | {milliseconds(way, normal):.1f} |")


if __name__ == "__main__":
    main()
