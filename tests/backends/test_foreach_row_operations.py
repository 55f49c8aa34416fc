"""How many operations a step by row takes on foreach: the number that a GPU must launch for n tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from acmo import RowACMo

# What only makes a view of memory launches nothing.
VIEWS = {"view", "split_with_sizes", "select", "slice", "unbind", "expand", "detach", "alias"}
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "row": ((6, 5), {"norm_scope": "row"}),
    "kernel": ((6, 5, 2, 2), {"norm_scope": "row"}),
    "column": ((60, 5), {"norm_scope": "column"}),
    "whole": ((5,), {}),
    "no unit step": ((6, 5), {"unit_step": False}),
    "decay": ((6, 5), {"weight_decay": 0.1}),
    "coupled decay": ((6, 5), {"weight_decay": 0.1, "decoupled_weight_decay": False}),
    "int8": ((6, 5), {"momentum_dtype": torch.int8}),
    "int8 by column": ((60, 5), {"momentum_dtype": torch.int8, "norm_scope": "column", "weight_decay": 0.1}),
}


class CountOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = function.name().split("::")
        if namespace == "aten" and name.split(".")[0] not in VIEWS:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def count(n: int, shape: tuple[int, ...], options: dict[str, Any], device: str = "cpu") -> int:
    """The operations of a whole step, after the first ones have made state and caches."""
    params = [nn.Parameter(torch.ones(shape, device=device)) for _ in range(n)]
    opt = RowACMo(params, foreach=True, **options)
    for t in range(3):
        for p in params:
            p.grad = torch.full_like(p, t + 1.0)
        with CountOperations() as operations:
            opt.step()
    return sum(operations.counts.values())


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("case", CASES)
def test_many_tensors_take_at_most_8_operations_each_and_40(case: str, device: str):
    shape, options = CASES[case]
    assert count(40, shape, options, device) <= 8 * 40 + 40


@pytest.mark.parametrize("case", CASES)
def test_operations_grow_by_7_per_tensor_and_few_take_few(case: str):
    shape, options = CASES[case]
    one, three = (count(n, shape, options) for n in (1, 3))
    assert three - one <= 2 * 7
    assert one <= (76 if "int8" in case else 60)
