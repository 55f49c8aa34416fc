"""Where a fused step's time goes: each pass of the kernel alone, beside torch's fused SGD-momentum and AdamW.

Interleaved rounds in one process, medians; run it on a machine that does nothing else:
    python benchmarks/passes.py [millions of parameters] [rounds]
"""

import random
import statistics
import sys
import time

import torch

import acmo
from acmo import native

COLUMNS = 512  # of the table


def main(millions: float = 63.0, rounds: int = 31) -> None:
    """Print ms, GB/s and the ratio to fused SGD-momentum of every contender."""
    n = int(millions * 1e6)
    parameter = torch.nn.Parameter(torch.randn(n) * 0.01)
    parameter.grad = torch.randn(n)

    def twin() -> torch.nn.Parameter:
        other = torch.nn.Parameter(parameter.detach().clone())
        other.grad = parameter.grad
        return other

    sgd = torch.optim.SGD([twin()], lr=1e-5, momentum=0.9, fused=True)
    adamw = torch.optim.AdamW([twin()], lr=1e-5, fused=True)
    opt = acmo.ACMo([parameter], lr=1e-5, fused=True)
    by_column = torch.nn.Parameter(torch.full((n // COLUMNS, COLUMNS), 0.01))
    by_column.grad = parameter.grad[: by_column.numel()].view_as(by_column)
    table = acmo.RowACMo([by_column], lr=1e-5, norm_scope="column", fused=True)
    for optimizer in (sgd, adamw, opt, table):
        optimizer.step()
    kernel, threads = native.required(), torch.get_num_threads()
    numel, code = [n], [native.DTYPE_CODES[torch.float32]]
    moment, grad = opt.state[parameter]["momentum_buffer"], parameter.grad
    addresses = [parameter.data_ptr()], [moment.data_ptr()], [grad.data_ptr()]
    plain = [1.0, 0.0, 0.9, 1.0, 1e-5]  # the factor of g, λ, β̂, the factor of θ, α
    contenders = {  # name: (call, words per parameter)
        "fused SGD-momentum": (sgd.step, 5),
        "fused AdamW": (adamw.step, 7),
        "ACMo": (opt.step, 6),
        "ACMo, pass 1 alone (reads g)": (lambda: kernel.squares(numel, code, [grad.data_ptr()], threads), 1),
        "reading g and m alone": (
            lambda: kernel.sums(numel, code, [grad.data_ptr()], [moment.data_ptr()], threads),
            2,
        ),
        "RowACMo, a table by column": (table.step, 7),
        "ACMo, pass 2 alone": (lambda: kernel.update(numel, code, code, *addresses, plain, threads), 5),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order, names = random.Random(0), list(contenders)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            contenders[name][0]()
            times[name].append(time.perf_counter() - start)
    sgd_time = statistics.median(times["fused SGD-momentum"])
    print(f"{n:,} float32 parameters, {torch.get_num_threads()} threads, {rounds} rounds")
    for name, (_, words) in contenders.items():
        median = statistics.median(times[name])
        print(f"{name:30} {median * 1e3:7.2f} ms {4e-9 * words * n / median:6.1f} GB/s {median / sgd_time:6.2f} x SGD")


if __name__ == "__main__":
    main(*(kind(x) for kind, x in zip((float, int), sys.argv[1:], strict=False)))
