"""What ``acmo.doctor --self-test`` does on a GPU beside the parity of backends: launches, bits, a graph, speed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from acmo.optimizer import ACMo
from acmo.row_acmo import RowACMo
from acmo.spectral_acmo import SpectralACMo

SHAPES = ((512, 768), (768,), (31, 33), (4000, 64))
MATRICES = ((512, 768), (768, 512), (64, 64))
SPEED_SHAPES: tuple[tuple[int, ...], ...] = ((4096, 4096),) * 6
SMALL_SHAPES: tuple[tuple[int, ...], ...] = ((40, 25),) * 1000
SPEED_STEPS = 50


def gpu_test(device: torch.device) -> Iterator[tuple[str, bool, str]]:
    """Yield (case, passed, detail) of every test on one GPU."""
    tests: dict[str, Callable[[torch.device], tuple[bool, str]]] = {
        "launches": count_launches,
        "equal bits": compare_bits,
        "stochastic rounding": compare_rounding,
        "spectral steps": compare_spectral,
        "captured graph": replay_graph,
        "speed": measure_speed,
    }
    for name, test in tests.items():
        try:
            yield name, *test(device)
        except Exception as problem:  # whatever it is, its owner wants to see it in the table
            yield name, False, f"{type(problem).__name__}: {problem}"


def make_params(device: torch.device, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Tensor]:
    """Return parameters with gradients, always the same."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(s, generator=generator).to(device).requires_grad_() for s in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(device)
    return params


def take_steps(device: torch.device, kind: type[ACMo], steps: int) -> list[Tensor]:
    """Return the parameters after some steps."""
    params = make_params(device)
    opt = kind(params, lr=0.01)
    for _ in range(steps):
        opt.step()
    return params


def count_launches(device: torch.device) -> tuple[bool, str]:
    """Count the kernels of a later step, torch's included: at most 4, and 2 by row."""
    found = {}
    for kind, shapes, limit in ((ACMo, SHAPES, 4), (RowACMo, MATRICES, 2)):
        opt = kind(make_params(device, shapes), lr=0.01)
        for _ in range(3):
            opt.step()
        torch.cuda.synchronize(device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            opt.step()
            torch.cuda.synchronize(device)
        events = [e.name for e in profiler.events() or [] if str(e.device_type).endswith("CUDA")]
        found[kind.__name__] = (list_kernels(events), limit)
    passed = all(0 < len(names) <= limit for names, limit in found.values())
    return passed, ", ".join(f"{kind} {len(names)} ({' '.join(names)})" for kind, (names, _) in found.items())


def list_kernels(events: Sequence[str]) -> list[str]:
    """Return the names of kernels among a profiler's events on the device: not copies, and without their arguments."""
    return [name.split("(")[0] for name in events if not name.lower().startswith(("memcpy", "memset"))]


def compare_rounding(device: torch.device) -> tuple[bool, str]:
    """Round bfloat16 stochastically on the GPU and on the CPU: steps that float32 has exactly have the same bits."""
    ends = []
    for where in (device, torch.device("cpu")):
        params = [p.detach().mul(4).round().to(where, torch.bfloat16).requires_grad_() for p in make_params(device)]
        for p, q in zip(params, make_params(device), strict=True):
            assert q.grad is not None
            p.grad = q.grad.mul(4).round().to(where, torch.bfloat16)
        ACMo(params, lr=2.0**-10, stochastic_rounding=True).step()
        ends.append([p.detach().cpu() for p in params])
    same = all(torch.equal(p, q) for p, q in zip(*ends, strict=True))
    return same, "the CPU's bits" if same else "the bits are not the CPU's"


def compare_spectral(device: torch.device) -> tuple[bool, str]:
    """Compare spectral steps with foreach's on the same device: both multiply matrices in bfloat16."""
    ends = []
    for foreach in (None, True):
        params = make_params(device)
        opt = SpectralACMo(params, lr=0.01, foreach=foreach)
        for _ in range(3):
            opt.step()
        ends.append(torch.cat([p.detach().flatten() for p in params]))
    moved = ends[1] - torch.cat([p.detach().flatten() for p in make_params(device)])
    distance = float((ends[0] - ends[1]).norm() / moved.norm())
    return distance < 0.02, f"{distance:.1e} of the way from foreach"


def compare_bits(device: torch.device) -> tuple[bool, str]:
    """Compare two runs, by scope global and by row."""
    for kind in (ACMo, RowACMo):
        one, other = take_steps(device, kind, 5), take_steps(device, kind, 5)
        if not all(torch.equal(p, q) for p, q in zip(one, other, strict=True)):
            return False, f"two runs of {kind.__name__} differ"
    return True, "two runs of ACMo and of RowACMo"


def replay_graph(device: torch.device) -> tuple[bool, str]:
    """Capture a step, replay it, and compare with as many eager steps."""
    warm, replays = 3, 4
    for kind in (ACMo, RowACMo):
        params = make_params(device)
        opt = kind(params, lr=torch.tensor(0.01, device=device))
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(warm):
                opt.step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            opt.step()
        for _ in range(replays):
            graph.replay()
        truth = take_steps(device, kind, warm + replays)
        if not all(torch.allclose(p, q, rtol=1e-5, atol=1e-6) for p, q in zip(params, truth, strict=True)):
            return False, f"{replays} replays of {kind.__name__} differ from {replays} eager steps"
    return True, f"{replays} replays equal {replays} eager steps"


def time_steps(step: Callable[[], Any], device: torch.device, steps: int = SPEED_STEPS) -> float:
    """Return the milliseconds of one step, by CUDA events."""
    for _ in range(3):
        step()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record(torch.cuda.current_stream(device))
    for _ in range(steps):
        step()
    end.record(torch.cuda.current_stream(device))
    end.synchronize()
    return float(begin.elapsed_time(end)) / steps


def build_contenders(params: list[Tensor]) -> dict[str, torch.optim.Optimizer]:
    """Return what is timed, on the same parameters."""
    return {
        "SGD fused": torch.optim.SGD(params, lr=1e-4, momentum=0.9, fused=True),
        "AdamW fused": torch.optim.AdamW(params, lr=1e-4, fused=True),
        "ACMo": ACMo(params, lr=1e-4),
        "ACMo foreach": ACMo(params, lr=1e-4, foreach=True),
        "RowACMo": RowACMo(params, lr=1e-4),
    }


def measure_speed(device: torch.device) -> tuple[bool, str]:
    """Time steps on 100 M parameters in matrices, and on 1,000 small tensors."""
    tables = []
    for label, shapes in (("100 M in 6 matrices", SPEED_SHAPES), ("1,000 tensors of 1,000", SMALL_SHAPES)):
        contenders = build_contenders(make_params(device, shapes))
        times = {name: time_steps(opt.step, device) for name, opt in contenders.items()}
        tables.append(format_times(label, times, sum(torch.Size(shape).numel() for shape in shapes)))
    return True, "\n" + "\n".join(tables)


def format_times(label: str, times: dict[str, float], entries: int) -> str:
    """Return a table: milliseconds, the ratio to the first row, and words per parameter and second."""
    first = next(iter(times.values()))
    lines = [f"     {label:24} {'ms':>9} {'ratio':>6} {'Gparam/s':>9}"]
    lines += [f"     {name:24} {ms:9.3f} {ms / first:6.2f} {entries / ms / 1e6:9.1f}" for name, ms in times.items()]
    return "\n".join(lines)
