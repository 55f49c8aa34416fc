"""What a foreach step asks of a device, counted on meta tensors: its operations, and the words that they move."""

import pytest

from acmo import ACMo
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
