"""How many operations a foreach step takes, counted on meta tensors: what a GPU would have to launch."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import acmo

VIEWS = (
    "view",
    "reshape",
    "unbind",
    "expand",
    "select",
    "slice",
    "detach",
    "alias",
    "profiler",
    "unsqueeze",
    "lift",
    "t.",
)


class Operations(TorchDispatchMode):
    """Counts torch's operations, but for views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not any(view in func.name() for view in VIEWS)
        return func(*args, **(kwargs or {}))


def count_operations(n, **options):
    params = [torch.ones(4, 3, device="meta", requires_grad=True) for _ in range(n)]
    opt = acmo.ACMo(params, lr=0.1, foreach=True, **options)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    opt.step()
    with Operations() as operations:
        opt.step()
    return operations.count


@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
def test_foreach_takes_one_operation_per_tensor_and_few_others(scope):
    few, many = (count_operations(n, norm_scope=scope) for n in (10, 60))
    assert many - few <= 50
    assert few - 10 <= 80
