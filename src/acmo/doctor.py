"""``python -m acmo.doctor``: which backend serves which device here, and why; ``--self-test`` checks each of them."""

import argparse
import platform
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor

import acmo
from acmo import native

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def devices() -> list[torch.device]:
    """Every device that torch can use here."""
    found = [torch.device("cpu")]
    if torch.cuda.is_available():
        found += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append(torch.device("mps"))
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        found += [torch.device("xpu", i) for i in range(torch.xpu.device_count())]
    return found


def diagnosis() -> Iterator[tuple[str, str]]:
    """What a person would ask first, as (what, answer)."""
    yield "acmo", acmo.__version__
    yield "torch", torch.__version__
    yield "numpy", numpy.__version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "threads", f"{torch.get_num_threads()} (torch.set_num_threads changes it)"
    kernel = native.kernel()
    if kernel is None:
        yield "kernel", f"not there. {native.why_missing()}"
        yield "", "To get it, install a C compiler (Debian: apt-get install gcc libc6-dev) and reinstall acmo."
    else:
        yield "kernel", f"{kernel.isa}, {'OpenMP' if kernel.openmp else 'one thread: built without OpenMP'}"
    for device in devices():
        fused = device.type == "cpu" and kernel is not None
        yield str(device), "fused (the C kernel)" if fused else "foreach"


def backends(device: torch.device) -> dict[str, dict[str, Any]]:
    """What to compare with the reference on a device: name → constructor arguments."""
    found: dict[str, dict[str, Any]] = {"foreach": {"foreach": True}}
    if device.type == "cpu" and native.kernel() is not None:
        found["fused"] = {"fused": True}
    return found


def dtypes(device: torch.device) -> list[torch.dtype]:
    return [dtype for dtype in TOLERANCE if not (device.type == "mps" and dtype == torch.float64)]


def self_test() -> Iterator[tuple[str, bool, str]]:
    """(case, passed, detail) of every backend on every device, against the reference on the CPU in float64."""
    settings: list[dict[str, Any]] = [
        {},
        {"norm_scope": "group", "psi": "sqrt", "max_grad_norm": 5.0, "weight_decay": 0.05},
        {"norm_scope": "tensor", "weight_decay": 0.05, "decoupled_weight_decay": True, "maximize": True},
    ]
    for device in devices():
        for name, flags in backends(device).items():
            for dtype in dtypes(device):
                worst = 0.0
                try:
                    for setting in settings:
                        truth = run(torch.device("cpu"), dtype, {"foreach": False, **setting}, torch.float64)
                        got = run(device, dtype, {**flags, **setting}, dtype)
                        error = sum(float((a - b).square().sum()) for a, b in zip(got, truth, strict=True))
                        worst = max(worst, (error / sum(float(b.square().sum()) for b in truth)) ** 0.5)
                except Exception as problem:  # whatever it is, its owner wants to see it in the table
                    yield f"{device} {name} {dtype}", False, f"{type(problem).__name__}: {problem}"
                    continue
                yield f"{device} {name} {dtype}", worst < TOLERANCE[dtype], f"relative error {worst:.1e}"


def run(device: torch.device, data: torch.dtype, options: dict[str, Any], dtype: torch.dtype) -> list[Tensor]:
    """Twenty steps on given gradients, a NaN among them; the parameters at the end, as float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(300, 300), (7,), (), (0,), (3, 5, 2)]

    def draw() -> list[Tensor]:  # rounded to the dtype under test, so that both runs get the same numbers
        return [torch.randn(s, generator=generator).to(data).to(dtype).to(device) for s in shapes]

    params = [x.requires_grad_() for x in draw()]
    groups: list[dict[str, Any]] = [{"params": params[:2]}, {"params": params[2:], "lr": 0.02, "momentum": 0.5}]
    opt = acmo.ACMo(groups, lr=0.05, **options)
    for t in range(20):
        for p, g in zip(params, draw(), strict=True):
            p.grad = g
        if t == 7:
            params[1].grad[3] = torch.nan  # type: ignore[index]
        opt.step()
    if opt.skipped_steps != 1:
        raise RuntimeError(f"one step should have been skipped, {opt.skipped_steps} were")
    return [p.detach().double().cpu() for p in params]


def main(arguments: list[str] | None = None) -> int:
    """Print the diagnosis; with ``--self-test`` check the backends too. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m acmo.doctor", description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="compare every backend with the reference (seconds)")
    options = parser.parse_args(arguments)
    for what, answer in diagnosis():
        print(f"{what:8} {answer}")
    if not options.self_test:
        return 0
    failed = 0
    for case, passed, detail in self_test():
        failed += not passed
        print(f"{'ok  ' if passed else 'FAIL'} {case}: {detail}", flush=True)
    print("all backends agree with the reference" if not failed else f"{failed} cases failed: please report the table")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
