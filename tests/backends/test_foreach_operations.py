"""What a foreach step asks of a device, counted on meta tensors: its operations, and the words that they move."""

import pytest
import torch

from acmo import ACMo
from acmo.backends.foreach import write_moments
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
