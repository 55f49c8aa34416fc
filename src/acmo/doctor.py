"""``python -m acmo.doctor``: which backend is used on which device, and why; ``--self-test`` checks each of them."""

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy
import torch
from torch import Tensor

import acmo
from acmo import native
from acmo.backends.triton import availability
from acmo.gpu_test import gpu_test

LR = 0.05
# How far one step may be from the reference's, in units in the last place of the largest number that goes into an
# entry. Half precision is stored, and computed in float32: a rounding of m and one of θ may fall the other way. float32
# and float64 are also summed in, and a sum rounds once a level of its tree: 10 in foreach's rows of 1,024 entries, 14
# for the 12,000 here; twice that, for there are two norms in β̂.
ULPS = {torch.float64: 28.0, torch.float32: 20.0, torch.bfloat16: 2.0, torch.float16: 2.0}


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
    yield "triton", find_triton_version()
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
        yield str(device), "fused (the C kernel)" if fused else describe_gpu(device)
        if device.type == "cuda":
            yield "", describe_hardware(device)


def find_triton_version() -> str:
    """Return the version of Triton, without importing it."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return f"not installed ({availability.INSTALL})"


def describe_hardware(device: torch.device) -> str:
    """Return what a GPU is, and with what torch runs on it."""
    properties = torch.cuda.get_device_properties(device)
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return (
        f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, capability {properties.major}."
        f"{properties.minor}, {properties.multi_processor_count} multiprocessors, {runtime}"
    )


def describe_gpu(device: torch.device) -> str:
    """Return which backend is used on a device that is not the CPU, and why."""
    if device.type not in availability.DEVICE_TYPES:
        return "foreach"
    why = availability.explain_unusable(device)
    return "fused (the Triton kernels)" if why is None else f"foreach: {why}"


def backends(device: torch.device) -> dict[str, dict[str, Any]]:
    """What to compare with the reference on a device: name → constructor arguments."""
    found: dict[str, dict[str, Any]] = {"foreach": {"foreach": True}}
    if device.type == "cpu" and native.kernel() is not None:
        found["fused"] = {"fused": True}
    if availability.is_usable(device):
        found["triton"] = {"fused": True}
    return found


def dtypes(device: torch.device) -> list[torch.dtype]:
    return [dtype for dtype in ULPS if not (device.type == "mps" and dtype == torch.float64)]


def self_test() -> Iterator[tuple[str, bool, str]]:
    """(case, passed, detail) of every backend on every device, against the reference on the CPU in the same dtype."""
    settings: list[dict[str, Any]] = [
        {},
        {"norm_scope": "group", "psi": "sqrt", "max_grad_norm": 5.0, "weight_decay": 0.05},
        {"norm_scope": "tensor", "weight_decay": 0.05, "decoupled_weight_decay": True, "maximize": True},
        {"norm_scope": "row", "weight_decay": 0.05},
    ]
    for device in devices():
        for name, flags in backends(device).items():
            for dtype in dtypes(device):
                try:
                    worst = max(run(device, dtype, flags, setting) for setting in settings)
                except Exception as problem:  # whatever it is, its owner wants to see it in the table
                    yield f"{device} {name} {dtype}", False, f"{type(problem).__name__}: {problem}"
                    continue
                yield f"{device} {name} {dtype}", worst <= ULPS[dtype], f"{worst:.1f} of {ULPS[dtype]:.0f} ulps"


def run(device: torch.device, dtype: torch.dtype, flags: dict[str, Any], setting: dict[str, Any]) -> float:
    """Ten steps, a NaN among them, each taken by the reference too, from where the backend was: the worst ulps."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(100, 120), (7,), (), (0,), (3, 5, 2)]

    def draw() -> list[Tensor]:
        return [torch.randn(s, generator=generator).to(dtype) for s in shapes]

    start = draw()
    params, opt = optimizer([x.to(device, copy=True) for x in start], {**flags, **setting})
    truth, reference = optimizer(start, {"foreach": False, "fused": False, **setting})
    worst = 0.0
    for t in range(10):
        grads = draw()
        if t == 7:
            grads[1][3] = torch.nan
        # What goes into m: g, m and, by a small factor, θ. What goes into θ: θ, and by the factor α what goes into m.
        before = [(p.detach().clone(), moment(reference, p), g.nan_to_num()) for p, g in zip(truth, grads, strict=True)]
        for p, q, g in zip(params, truth, grads, strict=True):
            p.grad, q.grad = g.to(device), g
        opt.step()
        reference.step()
        for p, q, (theta, m, g) in zip(params, truth, before, strict=True):
            mine, theirs = opt.state[p], reference.state[q]
            worst = max(worst, ulps(p, q, theta, LR * m, LR * g))
            worst = max(worst, ulps(mine["momentum_buffer"], theirs["momentum_buffer"], m, g, theta))
            if mine["step"] != theirs["step"]:
                raise RuntimeError(f"step should be {theirs['step']}, is {mine['step']}")
            if "beta_hat" in mine:
                worst = max(worst, ulps(mine["beta_hat"].to(dtype), theirs["beta_hat"].to(dtype)))
            q.data.copy_(p)
        follow(reference, opt)
    if (opt.skipped_steps, reference.skipped_steps) != (1, 1):
        raise RuntimeError(f"one step should have been skipped, {opt.skipped_steps} were")
    return worst


def optimizer(values: list[Tensor], options: dict[str, Any]) -> tuple[list[Tensor], acmo.ACMo]:
    """Two groups of parameters that start at these values, and ACMo on them."""
    params = [x.requires_grad_() for x in values]
    groups: list[dict[str, Any]] = [{"params": params[:2]}, {"params": params[2:], "lr": 0.02, "momentum": 0.5}]
    return params, acmo.ACMo(groups, lr=LR, **options)


def moment(opt: acmo.ACMo, p: Tensor) -> Tensor:
    m = opt.state[p].get("momentum_buffer")
    return torch.zeros_like(p) if m is None else m.detach().clone()


def follow(reference: acmo.ACMo, opt: acmo.ACMo) -> None:
    """Give the reference the state of the optimizer, but none of its options: what is compared is one step."""
    options = reference.state_dict()["param_groups"]
    reference.load_state_dict({"state": opt.state_dict()["state"], "param_groups": options})


def ulps(x: Tensor, truth: Tensor, *operands: Tensor) -> float:
    """The largest distance from the truth, in units in the last place of the largest of it and what went into it."""
    if not x.numel():
        return 0.0
    size = torch.stack([y.detach().double().abs() for y in (truth, *operands)]).amax(0)
    _, exponent = torch.frexp(size.clamp(min=torch.finfo(truth.dtype).tiny))
    unit = torch.finfo(truth.dtype).eps * torch.exp2((exponent - 1).double())
    x, truth = x.detach().cpu().double(), truth.detach().double()
    distance = torch.where(x == truth, 0.0, (x - truth).abs() / unit)  # ∞ may equal ∞
    return float(distance.max().nan_to_num(nan=torch.inf))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="python -m acmo.doctor", description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="compare every backend with the reference (seconds)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Print the diagnosis; with ``--self-test`` check the backends too. Returns the exit code."""
    options = build_parser().parse_args(arguments)
    lines: list[str] = []

    def show(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    for what, answer in diagnosis():
        show(f"{what:8} {answer}")
    if not options.self_test:
        return 0
    failed = 0
    for case, passed, detail in self_test():
        failed += not passed
        show(f"{'ok  ' if passed else 'FAIL'} {case}: {detail}")
    gpus = [device for device in devices() if device.type == "cuda"]
    for device in gpus:
        for case, passed, detail in gpu_test(device):
            failed += not passed
            show(f"{'ok  ' if passed else 'FAIL'} {device} {case}: {detail}")
    if not gpus:
        show("no GPU here: launches, equal bits, CUDA graphs and speed on a GPU were not tested")
    show("all backends agree with the reference" if not failed else f"{failed} cases failed: please report them")
    print(format_report(lines))
    return 1 if failed else 0


def format_report(lines: Sequence[str]) -> str:
    """Return a block of Markdown to paste into an issue."""
    body = "\n".join(lines)
    return f"\nTo report this, paste everything below the line into an issue.\n{'-' * 60}\n```text\n{body}\n```"


if __name__ == "__main__":
    sys.exit(main())
