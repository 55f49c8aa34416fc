"""What a step asks of a device: its operations, and the words that they move per parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# What only makes a view of memory launches nothing.
VIEWS = {"view", "split_with_sizes", "split", "select", "slice", "unbind", "expand", "detach", "alias", "unsqueeze"}
VIEWS |= {"_unsafe_view", "as_strided", "t", "transpose", "view_as_real"}


class CountOperations(TorchDispatchMode):
    """Counts torch's operations, but for views; and the bytes of the tensors that they read and write.

    A tensor of fewer entries than ``least_entries`` counts no bytes: it is a scalar, or one number per tensor.
    """

    def __init__(self, least_entries: int = 2) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        self.least_entries = least_entries

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        namespace, name = function.name().split("::")
        if namespace == "aten" and name.split(".")[0] not in VIEWS:
            self.counts[name] += 1
            self.bytes += self.count_bytes(function._schema, args, kwargs or {}, result)
        return result

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def count_bytes(self, schema: Any, args: Any, kwargs: Any, result: Any) -> int:
        """What is read (``copy_`` and ``out=`` only write their target), and what is written."""
        given = [*args, *(kwargs.get(x.name) for x in schema.arguments[len(args) :])]
        read, written = 0, 0
        for argument, value in zip(schema.arguments, given, strict=True):
            size = sum(x.nbytes for x in list_tensors(value) if x.numel() >= self.least_entries)
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            written += size if is_written else 0
            only_written = argument.is_out or (is_written and schema.name in ("aten::copy_", "aten::_foreach_copy_"))
            read += 0 if only_written else size
        if not any(x.alias_info is not None for x in schema.returns):
            written += sum(x.nbytes for x in list_tensors(result) if x.numel() >= self.least_entries)
        return read + written


def list_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for x in value:
            yield from list_tensors(x)


def trace_step(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], n: int, shape: tuple[int, ...], device: str = "meta"
) -> CountOperations:
    """Return the operations of the third step of n tensors, when state and caches are made."""
    params = [torch.ones(shape, device=device, requires_grad=True) for _ in range(n)]
    optimizer = make(params)
    for t in range(3):
        for p in params:
            p.grad = torch.full_like(p, t + 1.0)
        with CountOperations(least_entries=params[0].numel()) as operations:
            optimizer.step()
    return operations
