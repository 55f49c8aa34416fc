"""Ways to lay the same parameters out over ranks, and steps that are given the same gradients on each."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from acmo import ACMo

STEPS = 20


class Net(nn.Module):
    """Sizes that no number of ranks divides, and a tensor of one entry.

    Even ones for FSDP2 over tensor parallel: torch cuts a row only evenly for both at once.
    """

    def __init__(self, dtype: torch.dtype, even: bool = False) -> None:
        super().__init__()
        width = 16 if even else 13
        self.up = nn.Linear(7, width, dtype=dtype)
        self.down = nn.Linear(width, 8 if even else 5, dtype=dtype)
        self.scale = nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.down(self.up(x).relu())


def shapes(world: int) -> list[tuple[int, int]]:
    """The 2-D meshes of so many ranks."""
    return [(a, world // a) for a in range(1, world + 1) if world % a == 0]


@functools.cache
def mesh_of(shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> Any:
    """Made once: each mesh makes process groups."""
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def lay_out(net: Net, layout: str, world: int) -> None:
    """Shard a net in place."""
    if layout == "fsdp":
        fully_shard(net.up, mesh=mesh_of((world,)))
        fully_shard(net, mesh=mesh_of((world,)))
    elif layout.startswith("hsdp"):
        fully_shard(net, mesh=mesh_of(shapes(world)[int(layout[-1])], ("replicate", "shard")))
    elif layout == "tp":
        tensor_parallel(net, mesh_of((world,)))
    elif layout.startswith("fsdp+tp"):
        mesh = mesh_of(shapes(world)[int(layout[-1])], ("dp", "tp"))
        tensor_parallel(net, mesh["tp"])
        fully_shard(net, mesh=mesh["dp"])
    elif layout == "mixed":  # the rest stays plain: whole on every rank
        fully_shard(net.up, mesh=mesh_of((world,)))
    else:
        assert layout in ("plain", "zero"), layout


def tensor_parallel(net: Net, mesh: Any) -> None:
    parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def groups_of(net: Net) -> list[dict[str, Any]]:
    """Two groups that differ in everything a group may differ in."""
    biases = [p for name, p in net.named_parameters() if name.endswith("bias")]
    rest = [p for name, p in net.named_parameters() if not name.endswith("bias")]
    return [
        {"params": rest, "lr": 0.03, "momentum": 0.9, "delta": 1e-3},
        {"params": biases, "lr": 0.1, "momentum": 0.5, "delta": 0.0, "weight_decay": 0.2},
    ]


def optimizer_for(net: Net, layout: str, options: dict[str, Any]) -> Any:
    if layout == "zero":
        everyone = functools.partial(ACMo, process_group=dist.group.WORLD)
        groups = groups_of(net)
        # ZeroRedundancyOptimizer wants all parameters of one kind in its constructor, and groups by add_param_group.
        opt = ZeroRedundancyOptimizer(groups[0]["params"], optimizer_class=everyone, **(options | settings(groups[0])))
        opt.add_param_group(groups[1])
        return opt
    return ACMo(groups_of(net), **options)


def settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def gradients(net: Net, steps: int = STEPS) -> Iterator[list[Tensor | None]]:
    """The same on every rank and for every layout; a parameter misses one now and then."""
    generator = torch.Generator().manual_seed(1)
    for t in range(steps):
        grads: list[Tensor | None] = []
        for k, p in enumerate(net.parameters()):
            g = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
            grads.append(None if (t + k) % 7 == 6 else g)
        yield grads


def give(net: nn.Module, grads: list[Tensor | None]) -> None:
    for p, g in zip(net.parameters(), grads, strict=True):
        if g is None:
            p.grad = None
        elif isinstance(p, DTensor):
            p.grad = distribute_tensor(g, p.device_mesh, p.placements)
        else:
            p.grad = g.clone()


def full(x: Tensor) -> Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def moments(net: Net, opt: Any, layout: str) -> list[Tensor]:
    """The moment of every parameter, whole, on every rank."""
    if layout != "zero":
        return [full(opt.state[p]["momentum_buffer"]) for p in net.parameters()]
    mine = [
        opt.optim.state[p]["momentum_buffer"] if p in opt.optim.state else torch.zeros_like(p) for p in net.parameters()
    ]
    for m in mine:
        dist.all_reduce(m)
    return mine


def make(layout: str, options: dict[str, Any], dtype: torch.dtype, even: bool = False) -> tuple[Net, Any]:
    """A net laid out over the ranks, and its optimizer."""
    torch.manual_seed(0)
    net = Net(dtype, even or "+" in layout)
    lay_out(net, layout, dist.get_world_size())
    return net, optimizer_for(net, layout, options)


def train(
    layout: str, options: dict[str, Any], dtype: torch.dtype, even: bool = False
) -> tuple[list[Tensor], list[Tensor], list[Any]]:
    """Parameters and moments after so many steps, and what telemetry said at each."""
    net, opt = make(layout, options, dtype, even)
    said = []
    for grads in gradients(net):
        give(net, grads)
        opt.step()
        said.append((opt.optim if layout == "zero" else opt).telemetry())
    return [full(p) for p in net.parameters()], moments(net, opt, layout), said


def distance(of: list[Tensor], to: list[Tensor]) -> float:
    """‖x − x*‖ / ‖x*‖ of all tensors together."""
    x, y = (torch.cat([t.flatten().double() for t in tensors]) for tensors in (of, to))
    return float((x - y).norm() / y.norm())
