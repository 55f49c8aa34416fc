"""What ``acmo.doctor --self-test`` does on a GPU beside the parity of backends: equal bits, a captured graph, speed."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from acmo.optimizer import ACMo
from acmo.row_acmo import RowACMo

SHAPES = ((512, 768), (768,), (31, 33), (4000, 64))
SPEED_SHAPES = ((4096, 4096),) * 6
SPEED_STEPS = 50


def gpu_test(device: torch.device) -> Iterator[tuple[str, bool, str]]:
    """Yield (case, passed, detail) of every test on one GPU."""
    tests: dict[str, Callable[[torch.device], tuple[bool, str]]] = {
        "equal bits": compare_bits,
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
    """Time steps on 100 M parameters."""
    contenders = build_contenders(make_params(device, SPEED_SHAPES))
    return True, ", ".join(f"{name} {time_steps(opt.step, device):.3f} ms" for name, opt in contenders.items())
