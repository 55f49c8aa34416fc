"""A GPU that does nothing: kernels are compiled for sm_90, launches are counted, and no kernel runs.

Run in a process of its own, without ``TRITON_INTERPRET``: ``python -m tests.support.triton_fake_driver launches``
prints JSON. The tensors are on the CPU; only their addresses are used.
"""

import json
import statistics
import sys
import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

launched: list[str] = []
compiled: list[str] = []


def install() -> None:
    """Make Triton launch on a GPU that does nothing, and let ACMo take CPU tensors for that GPU's."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    from acmo.backends.triton import availability

    class Launcher:
        def __init__(self, source: Any, metadata: Any) -> None:
            self.name = metadata.name

        def __call__(self, *_: Any) -> None:
            launched.append(self.name)

    class Utils:
        def load_binary(self, *_: Any) -> tuple[int, ...]:
            return 1, 1, 32, 0, 1024

        def get_device_properties(self, _: int) -> dict[str, int]:
            return {"max_shared_mem": 232448}

    class Driver(DriverBase):
        launcher_cls = Launcher
        utils = Utils()

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_active_torch_device(self) -> Any:
            return torch.device("cpu")

        def get_benchmarker(self) -> Any:
            return None

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _: int) -> int:
            return 0

    triton.runtime.driver.set_active(Driver())
    knobs.runtime.jit_post_compile_hook = lambda **values: compiled.append(values["repr"])
    availability.DEVICE_TYPES[:] = ["cpu"]


class Ops(TorchDispatchMode):
    """Lists the names of torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def build(shapes: list[tuple[int, ...]], kind: str = "ACMo", **options: Any) -> tuple[list[torch.Tensor], Any]:
    """Return parameters with gradients, and an optimizer on them; bfloat16 where it is rounded stochastically."""
    import acmo

    dtype = torch.bfloat16 if options.get("stochastic_rounding") else torch.float32
    params = [torch.ones(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    for p in params:
        p.grad = torch.ones_like(p)
    opt = getattr(acmo, kind)(params, fused=True, **options)
    opt._step_log.warns = False  # it would read a flag of the CPU, which these tensors are on; of a GPU it reads none
    return params, opt


def observe(opt: Any, steps: int = 1) -> dict[str, Any]:
    """Take steps; return what was launched and compiled, and torch's operations."""
    launched.clear()
    compiled.clear()
    with Ops() as ops:
        for _ in range(steps):
            opt.step()
    return {"launched": list(launched), "compiled": len(compiled), "ops": ops.names}


def count_launches() -> dict[str, Any]:
    """Return the launches of one later step, by model and options."""
    found: dict[str, Any] = {}
    matrices, table = [(8, 16)] * 3 + [(16,)], [(400, 16)]
    mixed = [torch.ones(5, requires_grad=True), torch.ones(5, dtype=torch.bfloat16, requires_grad=True)]
    cases: dict[str, tuple[list[tuple[int, ...]], str, dict[str, Any]]] = {
        "global": (matrices, "ACMo", {}),
        "group": (matrices, "ACMo", {"norm_scope": "group", "weight_decay": 0.1, "max_grad_norm": 1.0}),
        "tensor": (matrices, "ACMo", {"norm_scope": "tensor", "unit_step": True, "psi": "sqrt"}),
        "row": (matrices, "RowACMo", {}),
        "row and column": (matrices + table, "RowACMo", {"weight_decay": 0.1}),
        "stochastic rounding": (matrices, "ACMo", {"stochastic_rounding": True}),
        "stochastic rounding by row": (matrices, "RowACMo", {"stochastic_rounding": True}),
        "spectral": ([(16, 16)] * 3, "SpectralACMo", {}),
        "int8": (matrices + table, "RowACMo", {"momentum_dtype": torch.int8, "norm_scope": "row"}),
    }
    for name, (shapes, kind, options) in cases.items():
        _, opt = build(shapes, kind, **options)
        opt.step()
        opt.step()
        found[name] = observe(opt)
    import acmo

    for p in mixed:
        p.grad = torch.ones_like(p)
    opt = acmo.ACMo(mixed, fused=True)
    opt.step()
    opt.step()
    found["two dtypes"] = observe(opt)
    return found


def look_for_recompiling() -> dict[str, Any]:
    """Return what was compiled after other numbers of tensors, sizes, learning rates and options of groups."""
    _, first = build([(8, 16)] * 3)
    first.step()
    first.step()
    compiled.clear()
    for n in (1, 2, 5, 16, 33, 100):
        params, opt = build([(3, 7)] * n, lr=0.1 * n, momentum=0.5, delta=0.1)
        for lr in (0.1, 0.2):
            opt.param_groups[0]["lr"] = lr
            for p in params:
                p.grad = torch.ones_like(p)
            opt.step()
    rows_params, rows = build([(8, 16)] * 3, "RowACMo")
    rows.step()
    seen = list(compiled)
    for n in (1, 2, 5, 33):
        rows_params, rows = build([(16, 16 * n)] * n, "RowACMo", lr=0.1 * n)
        rows.step()
        rows_params[0].grad = torch.ones_like(rows_params[0])
        rows.step()
    later = compiled[len(seen) :]
    return {"passes": [x for x in seen if "step_rows" not in x and "finish_rows" not in x], "rows": later}


def measure_host_time(n: int = 1000, rounds: int = 40) -> dict[str, float]:
    """Return medians in ms of a step on n tensors of one entry: ACMo without the GPU's work, and torch's fused SGD.

    The time is the thread's own, in which nothing is counted that other processes do.
    """
    torch.set_num_threads(1)
    built = {"acmo": build([(1,)] * n), "rows": build([(1,)] * n, "RowACMo")}
    twins = [torch.ones(1, requires_grad=True) for _ in range(n)]
    for p in twins:
        p.grad = torch.ones_like(p)
    built["sgd"] = (twins, torch.optim.SGD(twins, lr=0.1, momentum=0.9, fused=True))
    spare = {name: [torch.ones(1) for _ in range(n)] for name in built}
    times: dict[str, list[float]] = {}
    for r in range(rounds + 3):
        for fresh in (False, True):
            for name, (params, opt) in built.items():
                if fresh:
                    for k, p in enumerate(params):
                        p.grad, spare[name][k] = spare[name][k], p.grad
                begin = time.thread_time()
                opt.step()
                if r >= 3:
                    own = times.setdefault(name + ", new gradients" * fresh, [])
                    own.append(1e3 * (time.thread_time() - begin))
    for name, (_, opt) in built.items():  # one optimizer after the other: what a step reads is in the caches
        for _ in range(rounds):
            begin = time.thread_time()
            opt.step()
            times.setdefault(name + ", alone", []).append(1e3 * (time.thread_time() - begin))
    return {name: statistics.median(own) for name, own in times.items()}


if __name__ == "__main__":
    install()
    actions = {"launches": count_launches, "recompiling": look_for_recompiling, "host": measure_host_time}
    print(json.dumps({name: actions[name]() for name in sys.argv[1:]}))
