"""foreach and fused do what the loop does: parameters and state, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from .problems import LeastSquares, TinyNet, seven_steps
from .registry import BACKENDS, FLAGS, Case, optimizers

# A step rounds what it stores once; over seven steps that is a few units in the last place, more where numbers cancel.
CLOSE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
    torch.float32: {"rtol": 1.3e-6, "atol": 1e-5},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 5e-3},
    torch.float16: {"rtol": 5e-3, "atol": 5e-3},
}


def assert_alike(of: Optimizer, to: Optimizer, shared: torch.dtype = torch.float64) -> None:
    """Parameters and state of two optimizers, tensor by tensor, with their dtypes.

    `shared` is what the norms that all parameters share are precise to.
    """
    pairs = zip(parameters(of), parameters(to), strict=True)
    for index, (p, q) in enumerate(pairs):
        close = {key: max(CLOSE[p.dtype][key], CLOSE[shared][key]) for key in ("rtol", "atol")}
        torch.testing.assert_close(p, q, **close, msg=lambda text, i=index: f"parameter {i}: {text}")
        state, other = of.state.get(p, {}), to.state.get(q, {})
        assert state.keys() == other.keys()
        for name, value in state.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(
                    value, other[name], **close, msg=lambda text, i=index, n=name: f"{n} of parameter {i}: {text}"
                )
            else:
                assert value == other[name], name


def parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (p for group in optimizer.param_groups for p in group["params"])


def assert_seven_steps_alike(case: Case, dtype: torch.dtype) -> None:
    nets = TinyNet(dtype), TinyNet(dtype)
    loop, fast = case.build(nets[0].parameters(), "reference", dtype), case.build(nets[1].parameters(), dtype=dtype)
    for _ in zip(seven_steps(nets[0], loop), seven_steps(nets[1], fast), strict=True):
        assert_alike(loop, fast)


@optimizers("foreach")
def test_foreach_matches_the_loop(case: Case):
    assert_seven_steps_alike(case, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@optimizers("fused")
def test_fused_matches_the_loop(case: Case, dtype: torch.dtype):
    assert_seven_steps_alike(case, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@optimizers("fused")
def test_fused_matches_the_loop_in_half_precision(case: Case, dtype: torch.dtype):
    assert_seven_steps_alike(case, dtype)


@pytest.mark.parametrize("default", [torch.float64, torch.float16], ids=str)
@optimizers("foreach", "fused", configurations=1)
def test_they_match_whatever_the_default_dtype_is(case: Case, default: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        assert_seven_steps_alike(case, torch.float64)
    finally:
        torch.set_default_dtype(before)


def assert_mixed_dtypes_alike(case: Case, *shape: int) -> None:
    """The second float16 parameter misses every other gradient."""
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float16]
    params = [torch.rand(shape, dtype=torch.float64).to(dtype) for dtype in dtypes]
    twins = [[nn.Parameter(p.clone()) for p in params] for _ in range(2)]
    narrow = torch.float16  # an epsilon must not vanish in the narrowest
    loop, fast = case.build(twins[0], "reference", narrow), case.build(twins[1], dtype=narrow)
    for step in range(7):
        for index, (p, q) in enumerate(zip(*twins, strict=True)):
            p.grad = None if index == 4 and step % 2 else torch.rand(shape, dtype=torch.float64).to(p.dtype)
            q.grad = None if p.grad is None else p.grad.clone()
        loop.step()
        fast.step()
        assert_alike(loop, fast, shared=torch.float32)


@optimizers("foreach", "fused")
def test_they_match_with_parameters_of_mixed_dtypes(case: Case):
    assert_mixed_dtypes_alike(case, 2, 3)


@optimizers("foreach", "fused")
def test_they_match_with_matrices_of_mixed_dtypes(case: Case):
    """Both sides are long enough for a spectral step."""
    assert_mixed_dtypes_alike(case, 10, 9)


class Writes(TorchDispatchMode):
    """The names of torch's operations that write to an optimizer's moments (to its parameters, if it has none)."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        moments = [
            value
            for p in parameters(optimizer)
            for value in optimizer.state[p].values()
            if isinstance(value, Tensor) and value.shape == p.shape
        ]
        self.addresses = {t.untyped_storage().data_ptr() for t in moments or parameters(optimizer)}
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = value if isinstance(value, list) else [value]
                if any(t.untyped_storage().data_ptr() in self.addresses for t in written):
                    self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))

    @property
    def backend(self) -> str:
        """A kernel that is called through ctypes writes without any operation of torch."""
        if all("_fused_" in name for name in self.names):
            return "fused"
        return "foreach" if any("_foreach_" in name for name in self.names) else "reference"


def backend_of(optimizer: Optimizer, problem: LeastSquares) -> str:
    problem.train(optimizer, 1)  # which makes the state
    before = problem.clone()
    problem.closure()
    with Writes(optimizer) as writes:
        optimizer.step()
    assert not torch.equal(problem.weight, before.weight)
    return writes.backend


@optimizers(*BACKENDS)
def test_the_backend_that_was_asked_for_is_the_one_that_runs(case: Case):
    problem = LeastSquares()
    assert backend_of(case.build(problem.params), problem) == case.backend


@optimizers("reference")
def test_the_default_backend_is_the_one_that_is_documented(case: Case):
    problem = LeastSquares()
    undecided = dict.fromkeys(FLAGS["reference"].keys() & set(case.info.supported_impls))
    assert backend_of(case.build(problem.params, **undecided), problem) == case.entry.default_backend
