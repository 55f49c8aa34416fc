"""How many operations a step by row takes on foreach: the number that a GPU must launch for n tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acmo import RowACMo
from tests.support.operations import trace_step

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "row": ((6, 5), {"norm_scope": "row"}),
    "kernel": ((6, 5, 2, 2), {"norm_scope": "row"}),
    "column": ((60, 5), {"norm_scope": "column"}),
    "whole": ((5,), {}),
    "no unit step": ((6, 5), {"unit_step": False}),
    "decay": ((6, 5), {"weight_decay": 0.1}),
    "coupled decay": ((6, 5), {"weight_decay": 0.1, "decoupled_weight_decay": False}),
}
INT8_CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "int8": ((6, 5), {"momentum_dtype": torch.int8}),
    "int8 by column": ((60, 5), {"momentum_dtype": torch.int8, "norm_scope": "column", "weight_decay": 0.1}),
}


def count(n: int, shape: tuple[int, ...], options: dict[str, Any], device: str = "cpu") -> int:
    return trace_step(lambda params: RowACMo(params, foreach=True, **options), n, shape, device).total


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("n", [1, 2, 3, 40])
@pytest.mark.parametrize("case", CASES)
def test_n_tensors_take_at_most_8n_and_40_operations(case: str, n: int, device: str):
    shape, options = CASES[case]
    reads = int(device == "cpu")  # whether the step was skipped, for a warning: no launch, and never read of a GPU
    assert count(n, shape, options, device) <= 8 * n + 40 + reads


@pytest.mark.parametrize("case", INT8_CASES)
def test_int8_takes_as_few_operations_of_many_tensors(case: str):
    shape, options = INT8_CASES[case]
    assert count(40, shape, options) <= 8 * 40 + 40
    assert count(1, shape, options) <= 8 + 56  # bytes must be read, scaled, rounded, clamped and written
