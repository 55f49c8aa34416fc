"""The Triton kernels in Triton's interpreter, on CPU tensors: small blocks, and bfloat16 that rounds.

``TRITON_INTERPRET`` must be set before Triton is imported: `tests/conftest.py` does it for the whole process.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
import torch

HAS_TRITON = find_spec("triton") is not None
COMMAND = "pip install --no-deps triton==3.7.1"
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason=f"Triton is not installed: {COMMAND}")


def truncates_bfloat16() -> bool:
    """Return whether the interpreter drops bits where a GPU rounds: so do all versions up to 3.9."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    nearest_up = TensorHandle(np.array([1.0 + 3 / 256], dtype=np.float32), tl.float32)
    bits = interpreter_builder.cast_impl(nearest_up, tl.bfloat16).data
    return int(bits[0]) == 0x3F81


@contextmanager
def rounding_bfloat16() -> Iterator[None]:
    """Let the interpreter round to bfloat16 as a GPU does: to nearest, ties to even; of float64 it copies integers."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = InterpreterBuilder.cast_impl

    def cast(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar in (tl.float32, tl.float64) and target.scalar == tl.bfloat16:
            numbers = torch.from_numpy(source.data.reshape(-1).copy()).to(torch.bfloat16)
            return TensorHandle(numbers.view(torch.uint16).numpy().reshape(source.data.shape), tl.bfloat16)
        return original(self, source, target)

    names = ("cast_impl", "create_fp_trunc")
    kept = {name: getattr(InterpreterBuilder, name) for name in names}
    for name in names:
        setattr(InterpreterBuilder, name, cast)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(InterpreterBuilder, name, value)


@contextmanager
def use_interpreter() -> Iterator[None]:
    """Step CPU parameters by the Triton kernels, in the interpreter, with blocks of 256 entries."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    from acmo.backends.triton import availability, steps

    with pytest.MonkeyPatch.context() as patch, rounding_bfloat16(), warnings.catch_warnings():
        patch.setattr(availability, "DEVICE_TYPES", ["cpu"])
        patch.setattr(steps, "BLOCK", 256)
        patch.setattr(steps, "TILE", 8)
        patch.setattr(steps, "LANES", 64)
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy warns of inf − inf, by which kernels test for it
        yield


@pytest.fixture
def interpreter() -> Iterator[None]:
    """Use the interpreter during a test."""
    with use_interpreter():
        yield


@contextmanager
def count_launches() -> Iterator[list[str]]:
    """List the names of the kernels that the interpreter runs."""
    from triton.runtime.interpreter import GridExecutor

    names: list[str] = []
    run = GridExecutor.__call__

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(self.fn.__name__)
        return run(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", count)
        yield names
