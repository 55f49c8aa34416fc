"""Sharded parameters: the part of them that lies here, and the ranks that hold the rest.

Two kinds. A DTensor (FSDP2, tensor parallel) knows its own mesh: its sums are added up tensor by tensor, over the mesh
dimensions that shard it and no others. Plain tensors that are this rank's share of the model (ZeRO) know nothing: for
them the user gives a ``process_group``, and sums are added up group by group.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from acmo.parts import Part, Shards, scalar_dtype

ProcessGroup = Any  # torch builds without distributed have no such type


def localise(params: list[Any], grads: list[Any], moments: list[Any]) -> list[Shards]:
    """Put local tensors in the place of DTensors; returns over which ranks each parameter is cut, ``()`` for whole."""
    shards: list[Shards] = []
    for j, p in enumerate(params):
        if not is_dtensor(p):
            shards.append(())
            continue
        grad = grads[j]
        if not is_dtensor(grad) or grad.device_mesh != p.device_mesh:
            raise RuntimeError(
                f"a parameter is a DTensor placed {p.placements} on {p.device_mesh}, "
                f"and its gradient is not a DTensor on the same mesh"
            )
        if grad.placements != p.placements:
            grad = grad.redistribute(placements=p.placements)
        shards.append(cut_over(p))
        params[j], grads[j], moments[j] = local(p), local(grad), local(moments[j])
    return shards


def is_dtensor(x: Tensor) -> bool:
    """Whether a tensor is distributed, without importing what that takes."""
    return hasattr(x, "placements") and hasattr(x, "device_mesh")


def local(x: Any) -> Tensor:
    """What of a DTensor lies on this rank; any other tensor as it is."""
    part: Tensor = x.to_local().detach() if is_dtensor(x) else x
    return part


def cut_over(p: Any) -> Shards:
    """The process groups of the mesh dimensions that shard a DTensor; of several ranks each."""
    mesh, placements = p.device_mesh, p.placements
    return tuple(mesh.get_group(i) for i, x in enumerate(placements) if not x.is_replicate() and mesh.size(i) > 1)


def over_shards(
    rows: Sequence[Tensor], parts: Sequence[Part], found_inf: Tensor | None = None
) -> tuple[list[Tensor], Tensor | None]:
    """Per-tensor sums ``[k, n_k]`` of each part, added up over the ranks that hold a piece; a message a mesh dimension.

    Also, as ``[2]``, how many ranks have a gradient that is not finite, and how many a GradScaler that found an
    overflow: those that hold a parameter whole must hear of it, too. None where nothing is sharded.
    """
    result, doubt = list(rows), None
    for ranks in dict.fromkeys(ranks for part in parts for ranks in part.shards):
        if doubt is None:
            bad = sum_of([(~torch.isfinite(r[0]).all()).to(r.dtype) for r in rows])
            doubt = torch.stack((bad, torch.zeros_like(bad) if found_inf is None else (found_inf != 0).to(bad)))
        cut = [k for k, part in enumerate(parts) if ranks in part.shards]
        message = torch.cat([doubt, *(result[k].flatten() for k in cut)])
        dist.all_reduce(message, group=ranks)
        doubt, *pieces = torch.split(message, [2, *(result[k].numel() for k in cut)])
        for k, piece in zip(cut, pieces, strict=True):
            result[k] = piece.view_as(result[k])
    return result, doubt


class Totals(NamedTuple):
    """What all ranks of a ``process_group`` together hold, a column a parameter group."""

    sums: Tensor  # [5, n_groups], the rows of `acmo.foreach.sums`
    newest: Tensor  # [n_groups]: the largest step, 0 where there is none
    beta_hats: Tensor  # [n_groups]: β̂ of the most recently stepped parameter (for Ψ = sqrt)
    active: Tensor  # [ranks]: a number for the set of each rank's parameters that take part
    found_inf: Tensor  # on how many ranks a GradScaler found an overflow


def over_ranks(
    sums: Tensor, newest: Tensor, beta_hats: Tensor, active: int, found_inf: Tensor | None, ranks: ProcessGroup
) -> Totals:
    """One rank's totals → those of all. Gathered and added up in the order of ranks: the same bits everywhere."""
    found = torch.zeros_like(newest) if found_inf is None else (found_inf != 0).to(newest).expand_as(newest)
    message = torch.cat((sums, torch.stack((newest, beta_hats, torch.full_like(newest, active), found))))
    everyone = [torch.empty_like(message) for _ in range(dist.get_world_size(ranks))]
    dist.all_gather(everyone, message, group=ranks)
    table = torch.stack(everyone)
    steps = table[:, 5].amax(0)
    prevs = torch.where(table[:, 5] == steps, table[:, 6], 0.0).amax(0)
    return Totals(table[:, :5].sum(0), steps, prevs, table[:, 7, 0], table[:, 8, 0].sum())


def home(parts: Sequence[Part], ranks: ProcessGroup) -> Tensor:
    """Where the scalars of a step live, as an empty tensor; a rank may hold no parameter with a gradient at all."""
    if parts:
        device = parts[0].params[0].device
    else:
        device = torch.device("cuda" if dist.get_backend(ranks) == "nccl" else "cpu")
    return torch.zeros((), dtype=scalar_dtype(device), device=device)


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


def check_process_group(ranks: ProcessGroup, options: dict[str, Any]) -> None:
    """Raise unless ``process_group`` is one, and a backend can serve it."""
    if ranks is None:
        return
    if not dist.is_available() or not isinstance(ranks, dist.ProcessGroup):
        raise TypeError(f"process_group must be a torch.distributed process group or None, got {ranks!r}")
    if options["differentiable"] or (options["foreach"] is False and not options["fused"]):
        raise ValueError(
            "process_group is served by the foreach and the fused backend: leave foreach and fused at None"
        )


def check_sharding(group: dict[str, Any], process_group: ProcessGroup) -> None:
    """Raise where a norm would silently be that of a part, and say what to pass."""
    for p in group["params"]:
        if is_dtensor(p):
            placements = p.placements
            if any(x.is_partial() for x in placements):
                raise ValueError(f"a parameter is a DTensor placed {placements}: a partial sum cannot be stepped")
            mine = set(p.device_mesh.mesh.flatten().tolist()) - {dist.get_rank()}
            if process_group is not None and mine & set(dist.get_process_group_ranks(process_group)):
                raise ValueError(
                    "process_group and the mesh of a DTensor parameter have ranks in common, whose sums would count "
                    "twice: DTensors need no process_group; pass only ranks that hold other parameters (pipelines)"
                )
            if group["differentiable"]:
                raise ValueError(f"differentiable=True needs plain tensors, got a DTensor placed {placements}")
        if not flat_shard(p):
            continue
        if process_group is None:
            raise ValueError(
                "a parameter is a shard of an engine (FSDP1 or DeepSpeed) that keeps plain tensors, and no norm over "
                "the whole could be taken: pass process_group=, the ranks it is cut over, or use FSDP2 (fully_shard)"
            )
        if group["norm_scope"] == "tensor":
            raise ValueError('norm_scope="tensor" needs whole tensors or DTensors, and a parameter is a flat shard')
    if process_group is None and inside_zero():
        raise ValueError(
            "ZeroRedundancyOptimizer gives each rank a part of the parameters, and keeps process_group to itself: pass "
            "optimizer_class=functools.partial(ACMo, process_group=torch.distributed.group.WORLD)"
        )


def flat_shard(p: Tensor) -> bool:
    """Whether an engine has put its mark on a plain tensor: FSDP1's flat parameter, its views, DeepSpeed's ZeRO-3."""
    return any(hasattr(p, mark) for mark in ("_is_flat_param", "_fsdp_flattened", "ds_id"))


def inside_zero() -> bool:
    """Whether a ZeroRedundancyOptimizer over several ranks is being built around us: nothing else gives it away."""
    if "torch.distributed.optim.zero_redundancy_optimizer" not in sys.modules or not dist.is_initialized():
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("zero_redundancy_optimizer.py"):
            return int(getattr(frame.f_locals.get("self"), "world_size", dist.get_world_size())) > 1
        frame = frame.f_back  # type: ignore[assignment]
    return False
