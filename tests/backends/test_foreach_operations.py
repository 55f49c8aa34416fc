"""What a foreach step asks of a device: its operations and the words that they move, counted on meta tensors."""

import warnings
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from acmo import ACMo
from acmo.backends.foreach import PIECE, write_moments
from tests.support.operations import CountOperations, trace_step

SHAPE = (40, 30)
SCOPES = ["global", "group", "tensor"]


def trace(n: int, **options) -> CountOperations:
    return trace_step(lambda params: ACMo(params, foreach=True, **options), n, SHAPE)


def count_words(operations: CountOperations, n: int) -> float:
    """Words of 4 bytes per parameter."""
    return operations.bytes / (4 * n * SHAPE[0] * SHAPE[1])


@pytest.mark.parametrize("n", [1, 10, 60])
@pytest.mark.parametrize("scope", SCOPES)
def test_n_tensors_take_at_most_n_and_40_operations(scope: str, n: int):
    assert trace(n, norm_scope=scope).total <= n + 40


@pytest.mark.parametrize("scope", SCOPES)
def test_step_moves_10_words_per_parameter_2_for_the_skip(scope: str):
    assert count_words(trace(5, norm_scope=scope), 5) == 10
    assert count_words(trace(5, norm_scope=scope, nonfinite="propagate"), 5) == 8


def test_decay_moves_at_most_14_words_per_parameter():
    assert count_words(trace(5, weight_decay=0.1, decoupled_weight_decay=True), 5) == 12
    assert count_words(trace(5, weight_decay=0.1), 5) <= 17


@pytest.mark.parametrize("in_float64", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("m", "beta_hat"), [(1e-40, 1e39), (1e-30, 1e61), (1e30, 1e-50), (2.0, 0.5), (2.0, 0.0)])
def test_moments_are_scaled_beyond_the_range_of_float32(m: float, beta_hat: float, in_float64: bool):
    g = [torch.full(shape, 0.25) for shape in [(3, 2), (5,), ()]]
    moments = [torch.full_like(x, m) for x in g]
    want = [x.double() + beta_hat * y.double() for x, y in zip(g, moments, strict=True)]
    write_moments(moments, g, torch.tensor(beta_hat, dtype=torch.float64), in_float64=in_float64)
    for got, x in zip(moments, want, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), x, rtol=1e-6, atol=0.0)


class LargestResult(TorchDispatchMode):
    """Remember the bytes of the largest tensor that an operation made, other than views of those given."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in known}
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in self.known:
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("is_bad", [False, True])
def test_cpu_step_copies_no_gradient(is_bad: bool):
    p = torch.nn.Parameter(torch.ones(4 * PIECE))
    opt = ACMo([p], lr=0.1, foreach=True)
    p.grad = torch.ones_like(p)
    opt.step()
    if is_bad:
        p.grad[7] = torch.nan
    moment = opt.state[p]["momentum_buffer"]
    before = p.detach().clone(), moment.clone()
    with LargestResult([p, p.grad, moment]) as largest, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the step that is skipped
        opt.step()
    assert largest.bytes <= 8 * PIECE < 4 * p.numel()
    assert (torch.equal(p, before[0]) and torch.equal(moment, before[1])) is is_bad
