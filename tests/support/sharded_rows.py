"""Tensors of every scope by row, laid out over ranks, and runs of RowACMo on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import acmo.sharding
from acmo import RowACMo
from tests.support import sharded

STEPS = 6
# Sizes that no number of ranks divides: some ranks hold nothing of some tensors.
UNEVEN = {
    "matrix": (7, 5),
    "short": (2, 6),
    "table": (33, 4),  # by column under "auto"
    "conv": (5, 3, 2, 2),
    "thin": (9, 1),  # rows of one entry: one row
    "flat": (1, 7),
    "bias": (6,),
    "gain": (1,),
}
# torch cuts a tensor over two mesh dimensions at once only evenly.
EVEN = {"matrix": (8, 4), "table": (36, 4), "conv": (4, 4, 2, 2), "bias": (8,)}
# Of spectral steps: square, thin and fat matrices and a kernel that are cut unevenly, and what steps by row.
MATRICES = {"square": (13, 13), "thin": (33, 9), "fat": (9, 30), "conv": (11, 3, 2, 2), "table": (90, 10), "bias": (6,)}
EVEN_MATRICES = {"square": (16, 16), "thin": (48, 12), "fat": (12, 32), "conv": (12, 4, 2, 2), "bias": (8,)}
BARE = {"matrix": (7, 5), "short": (2, 6), "conv": (5, 3, 2, 2)}  # neither a bias nor a table


class Tensors(nn.Module):
    """Parameters without a forward."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in shapes.items():
            value = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            self.register_parameter(name, nn.Parameter(value))


def lay_out(net: Tensors, layout: str) -> None:
    """Shard a net in place: fsdp, hsdp, tp0 and tp1 (the dimension), fsdp+tp0, fsdp+tp1, mixed or plain."""
    world = dist.get_world_size()
    if layout == "fsdp":
        fully_shard(net, mesh=sharded.mesh_of((world,)))
    elif layout == "hsdp":
        fully_shard(net, mesh=sharded.mesh_of((2, world // 2), ("replicate", "shard")))
    elif layout in ("tp0", "tp1", "mixed"):
        names = [name for k, name in enumerate(dict(net.named_parameters())) if layout != "mixed" or k % 2]
        distribute(net, sharded.mesh_of((world,)), int(layout == "tp1"), names)
    elif layout.startswith("fsdp+tp"):
        mesh = sharded.mesh_of((world // 2, 2), ("dp", "tp"))
        distribute(net, mesh["tp"], int(layout[-1]), list(dict(net.named_parameters())))
        fully_shard(net, mesh=mesh["dp"])
    else:
        assert layout == "plain", layout


def distribute(net: Tensors, mesh: Any, dim: int, names: list[str]) -> None:
    for name in names:
        p = getattr(net, name)
        placement = Shard(dim) if dim < p.ndim else Replicate()
        net.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, [placement])))


def groups_of(net: Tensors) -> list[dict[str, Any]]:
    """Two groups: short tensors with other numbers, one of them at tensor scope beside the rows."""
    vectors = [p for p in net.parameters() if p.ndim < 2]
    rest = [p for p in net.parameters() if p.ndim >= 2]
    return [{"params": rest}, {"params": vectors, "lr": 0.03, "momentum": 0.5, "norm_scope": "tensor"}]


def make(
    layout: str,
    options: dict[str, Any],
    dtype: torch.dtype,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> tuple[Tensors, RowACMo]:
    """A net laid out over the ranks, and its optimizer."""
    net = Tensors(shapes or (EVEN if "+" in layout else UNEVEN), dtype)
    lay_out(net, layout)
    groups = [group for group in groups_of(net) if group["params"]]
    if "momentum_dtype" in options:  # int8 is not for a group at tensor scope
        groups = [{"params": list(net.parameters())}]
    return net, RowACMo(groups, **{"lr": 0.1, "weight_decay": 0.1, **options})


def gradients(net: Tensors, steps: int = STEPS) -> Iterator[list[Tensor | None]]:
    """The same on every rank and for every layout, with rows of zeros, NaN in one entry and gradients that are None."""
    generator = torch.Generator().manual_seed(1)
    for t in range(steps):
        grads: list[Tensor | None] = []
        for k, p in enumerate(net.parameters()):
            g = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
            if t == 1:
                g[0] = 0.0
            if t == 3:
                g.view(-1)[-1] = torch.nan
            grads.append(None if (t + k) % 7 == 6 else g)
        yield grads


def advance(net: Tensors, opt: Any, first: int = 0, last: int = STEPS) -> None:
    """Take steps first to last of the one training that all tests are about."""
    for t, grads in enumerate(gradients(net, last)):
        if t >= first:
            sharded.give(net, grads)
            opt.step()


def whole_state(net: Tensors, opt: Any) -> list[Tensor]:
    """Parameters and moments, whole: int8 as the numbers that it stands for."""
    found = [sharded.full(p) for p in net.parameters()]
    for p in net.parameters():
        state = opt.state[p]
        m = sharded.full(state["momentum_buffer"])
        if "momentum_scale" in state:
            scale = sharded.full(state["momentum_scale"])
            m = m.double() * scale.double().view(-1, *[1] * (m.ndim - 1))
        found.append(m)
    return found


def limit_growth(beta_hat: Tensor, previous: Tensor, t: Tensor) -> Tensor:
    """Ψ: a β̂ grows by a tenth at most."""
    return torch.minimum(beta_hat, 1.1 * previous)


class Tap:
    """torch.distributed as `acmo.sharding` sees it, with what a rank gives to each collective: (group size, bytes).

    A mute one sends nothing.
    """

    def __init__(self, *, mute: bool = False) -> None:
        self.sent: list[tuple[int, int]] = []
        self.mute = mute

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, message: Tensor, group: Any = None) -> None:
        self.sent.append((dist.get_world_size(group), message.nbytes))
        if not self.mute:
            dist.all_reduce(message, group=group)

    def all_to_all_single(self, arrived: Tensor, message: Tensor, received: Any, sent: Any, group: Any = None) -> None:
        self.sent.append((dist.get_world_size(group), message.nbytes))
        dist.all_to_all_single(arrived, message, received, sent, group=group)

    def __enter__(self) -> Tap:
        acmo.sharding.dist = self  # type: ignore[attr-defined, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        acmo.sharding.dist = dist  # type: ignore[attr-defined]
