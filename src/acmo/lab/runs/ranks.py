"""Data-parallel training under torchrun: the rank of this process, and what ranks exchange.

The model is not wrapped: gradients are summed over the ranks after backward, in one flat tensor.
"""

import atexit
import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from acmo.lab.errors import LabError


class Ranks:
    """The ranks that train together, and the number of this one; a single rank without torchrun.

    Args:
      device: where this rank's tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.world = _env("RANK", 0), _env("WORLD_SIZE", 1)
        if self.world > 1 and not dist.is_initialized():
            # The other ranks wait while rank 0 evaluates.
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=2))
            atexit.register(_leave)

    @property
    def first(self) -> bool:
        """Return whether this is the rank that evaluates and writes."""
        return self.rank == 0

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers

    def broadcast(self, content: bytes | None) -> bytes | None:
        """Return rank 0's content on every rank."""
        if self.world == 1:
            return content
        size = torch.tensor([-1 if content is None else len(content)], device=self.device)
        dist.broadcast(size, 0)
        if size.item() < 0:
            return None
        if self.first:
            assert content is not None
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.device)
        else:
            data = torch.empty(int(size.item()), dtype=torch.uint8, device=self.device)
        if len(data):
            dist.broadcast(data, 0)
        return data.cpu().numpy().tobytes()

    def broadcast_flag(self, flag: bool) -> bool:
        """Return rank 0's flag on every rank."""
        return flag if self.world == 1 else self.broadcast(b"yes" if flag else None) is not None

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Copy rank 0's values to every rank."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def gather(self, states: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return every rank's tensors, in the order of the ranks; their first dimensions may differ."""
        if self.world == 1:
            return [states]
        everyone: list[dict[str, Tensor]] = [{} for _ in range(self.world)]
        for key, mine in states.items():
            sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world)]
            dist.all_gather(sizes, torch.tensor([len(mine)], device=self.device))
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=mine.dtype, device=self.device)
            padded[: len(mine)] = mine.to(self.device)
            parts = [torch.empty_like(padded) for _ in range(self.world)]
            dist.all_gather(parts, padded)
            for state, part, size in zip(everyone, parts, sizes, strict=True):
                state[key] = part[: int(size)].cpu()
        return everyone

    def sum_gradients(self, params: Sequence[Tensor], count: Tensor) -> Tensor:
        """Sum gradients and the count of loss terms over the ranks; return the global count.

        A parameter that no rank has a gradient of keeps none, as on one rank.
        """
        if self.world == 1:
            return count
        has = torch.tensor([p.grad is not None for p in params], device=self.device)
        small = self.sum(torch.cat([count.reshape(1).float(), has.float()]))
        for p, anyone in zip(params, small[1:].tolist(), strict=True):
            if p.grad is None and anyone:
                p.grad = torch.zeros_like(p)
        for dtype in dict.fromkeys(p.dtype for p in params):
            same = [p for p in params if p.dtype == dtype and p.grad is not None]
            flat = self.sum(torch.cat([_grad(p).reshape(-1) for p in same]))
            for p, total in zip(same, torch.split(flat, [p.numel() for p in same]), strict=True):
                _grad(p).copy_(total.view(p.shape))
        return small[0]


def _grad(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


def _env(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        raise LabError(f"{name} in the environment is {os.environ[name]!r}, not a number") from None


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
