"""A CUDA graph as far as a CPU can have one: torch's operations and kernel launches are recorded, and run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import acmo

READ_BACK = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
ALLOCATES = {"aten::empty.memory_format", "aten::empty_like", "aten::empty_strided"}


class Graph(TorchDispatchMode):
    """What happens between the beginning and the end of a capture. Nothing may be read back, as in a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[Callable[[], Any]] = []
        self.launches = 0
        self.in_kernel = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.in_kernel:
            return out
        assert func.name() not in READ_BACK, f"{func.name()} waits for the device"
        if func._schema.is_mutable:
            self.actions.append(lambda: func(*args, **kwargs))
        elif isinstance(out, Tensor) and not func.is_view and func.name() not in ALLOCATES:
            self.actions.append(lambda: out.copy_(func(*args, **kwargs)))
        elif isinstance(out, list | tuple) and not func.is_view:
            self.actions.append(lambda: [x.copy_(y) for x, y in zip(out, func(*args, **kwargs), strict=True)])
        return out

    def replay(self) -> None:
        """Do everything again, at the same addresses."""
        with torch.no_grad():
            for action in self.actions:
                action()


@contextmanager
def capture(opt: acmo.ACMo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Graph]:
    """Record a step as a graph would: kernels think that a capture is under way."""
    from triton.runtime.interpreter import GridExecutor

    from acmo.backends.triton import tables

    graph, run = Graph(), GridExecutor.__call__

    def record(self: Any, *args: Any, **kwargs: Any) -> Any:
        def launch() -> Any:
            graph.in_kernel = True
            try:
                return run(self, *args, **kwargs)
            finally:
                graph.in_kernel = False

        graph.launches += 1
        graph.actions.append(launch)
        return launch()

    def refuse(out: Tensor) -> Tensor:
        raise AssertionError("memory of the host is allocated during a capture")

    with monkeypatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", record)
        patch.setattr(tables, "is_capturing", lambda device: True)
        patch.setattr(tables, "allocate_staging", refuse)
        # Whether a step by row was taken is read at once where it is on the CPU; on a GPU it stays a tensor.
        patch.setattr("acmo.backends.rows.bool", lambda x: x, raising=False)
        patch.setattr(opt._step_log, "warns", False)  # a skipped step is not known at once either
        with graph:
            yield graph
