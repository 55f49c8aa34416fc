"""Sharded parameters: the part of them that lies here, and the ranks that hold the rest.

Two kinds. A DTensor (FSDP2, tensor parallel) knows its own mesh: its sums are added up tensor by tensor, over the mesh
dimensions that shard it and no others. Plain tensors that are this rank's share of the model (ZeRO) know nothing: for
them the user gives a ``process_group``, and sums are added up group by group.
"""

import sys
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from acmo.scopes import ROW_SCOPES
from acmo.step_data import Newest, Part, PartSums, ShardedSums, Shards, StepOptions

ProcessGroup = Any  # torch builds without distributed have no such type


def take_local_shards(params: list[Any], grads: list[Any], moments: list[Any], scopes: Sequence[str]) -> list[Shards]:
    """Replace DTensors in the lists by their local tensors; return over which ranks the scope of each is cut."""
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
        shards.append(sharding_groups(p, scopes[j]))
        params[j], grads[j], moments[j] = local(p), local(grad), local(moments[j])
    return shards


def is_dtensor(x: Tensor) -> bool:
    """Return whether a tensor is distributed, without importing what that takes."""
    return hasattr(x, "placements") and hasattr(x, "device_mesh")


def local(x: Any) -> Tensor:
    """Return the part of a DTensor that lies on this rank; any other tensor as it is."""
    shard: Tensor = x.to_local().detach() if is_dtensor(x) else x
    return shard


def sharding_groups(p: Any, scope: str = "tensor") -> Shards:
    """Return the process groups of the mesh dimensions that cut a DTensor's scope: whole rows need no message."""
    mesh, uncut = p.device_mesh, {"row": 0, "column": 1}.get(scope)
    return tuple(
        mesh.get_group(i)
        for i, placement in enumerate(p.placements)
        if not placement.is_replicate() and mesh.size(i) > 1 and getattr(placement, "dim", None) != uncut
    )


def full_per_slice(p: Any, value: float, dtype: torch.dtype, dim: int = 0) -> Tensor:
    """Return a value per slice along a dimension, sharded as those are: a DTensor, where the parameter is one."""
    values = torch.full((local(p).shape[dim],), value, dtype=dtype, device=p.device)
    if not is_dtensor(p):
        return values
    from torch.distributed.tensor import DTensor, Replicate, Shard  # only here: an import of its own weight

    placements = [Replicate() if getattr(x, "dim", None) != dim else x if dim == 0 else Shard(0) for x in p.placements]
    shape = torch.Size(p.shape[dim : dim + 1])
    return DTensor.from_local(values, p.device_mesh, placements, run_check=False, shape=shape, stride=(1,))


def find_offset(p: Any) -> tuple[int, ...]:
    """Return where the local shard of a DTensor begins in the whole tensor, per dimension."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # what checkpoints use

    _, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
    return tuple(offset)


def sum_over_shards(sums: Sequence[Tensor], parts: Sequence[Part], found_inf: Tensor | None) -> ShardedSums:
    """Add up per-tensor sums ``[k, n]`` of each part over the ranks that hold a piece: one message per mesh dimension.

    The first row is ‖g‖². Ranks that hold a parameter whole must learn of a gradient that is not finite, too.
    """
    result = list(sums)
    flags = torch.stack(
        (
            torch.stack([(~torch.isfinite(s[0]).all()).to(s.dtype) for s in sums]).sum(),
            sums[0].new_zeros(()) if found_inf is None else (found_inf != 0).to(sums[0]),
        )
    )
    for ranks in dict.fromkeys(ranks for part in parts for ranks in part.shards):
        sharded = [k for k, part in enumerate(parts) if ranks in part.shards]
        message = torch.cat([flags, *(result[k].flatten() for k in sharded)])
        dist.all_reduce(message, group=ranks)
        flags, *pieces = torch.split(message, [2, *(result[k].numel() for k in sharded)])
        for k, piece in zip(sharded, pieces, strict=True):
            result[k] = piece.view_as(result[k])
    return ShardedSums(result, *flags.unbind())


def sum_rows_over_shards(
    tables: dict[int, Tensor], parts: Sequence[Part], flags: Tensor | None, process_group: ProcessGroup
) -> tuple[dict[int, Tensor], Tensor | None]:
    """Add up the sums of rows that are cut, and flags: one message per mesh dimension, none where there is neither.

    Args:
      tables: ``[k, rows]`` by the number of the part.
      parts: of the step.
      flags: numbers that every rank which holds a shard must know of, whatever its rows.
      process_group: the ranks that hold other tensors; they share the flags.
    """
    tables = dict(tables)
    asked = [ranks for k in tables for ranks in parts[k].shards]
    if flags is not None:
        asked += [ranks for part in parts for ranks in part.all_shards]
        asked += [] if process_group is None else [process_group]
    for ranks in dict.fromkeys(asked):
        cut = [k for k in tables if ranks in parts[k].shards]
        pieces = [*([] if flags is None else [flags]), *(tables[k].flatten() for k in cut)]
        message = torch.cat(pieces)
        dist.all_reduce(message, group=ranks)
        received = list(torch.split(message, [piece.numel() for piece in pieces]))
        flags = flags if flags is None else received.pop(0)
        tables |= {k: piece.view_as(tables[k]) for k, piece in zip(cut, received, strict=True)}
    return tables, flags


def exchange(message: Tensor, sent: Sequence[int], received: Sequence[int], ranks: ProcessGroup) -> Tensor:
    """Send a piece of the message to each rank, and return the pieces that each has sent here, one after the other.

    Args:
      message: one dimension.
      sent, received: how many entries go to each rank, and come from it.
      ranks: the group.
    """
    arrived = message.new_empty(sum(received))
    dist.all_to_all_single(arrived, message, list(received), list(sent), group=ranks)
    return arrived


def sum_over_model(squares: Tensor, parts: Sequence[Part], process_group: ProcessGroup) -> Tensor:
    """Return the sum of one number per part over all ranks: one message per mesh dimension that shards a part."""
    numbers = list(squares.unbind())
    for ranks in dict.fromkeys(ranks for part in parts for ranks in part.all_shards):
        sharded = [k for k, part in enumerate(parts) if ranks in part.all_shards]
        message = torch.stack([numbers[k] for k in sharded])
        dist.all_reduce(message, group=ranks)
        for k, number in zip(sharded, message.unbind(), strict=True):
            numbers[k] = number
    total = torch.stack(numbers).sum() if numbers else squares.sum()
    if process_group is not None:
        dist.all_reduce(total, group=process_group)
    return total


class RankTotals(NamedTuple):
    """What all ranks of a ``process_group`` hold together, per parameter group."""

    sums: dict[int, PartSums]
    newest: dict[int, Newest]
    active_sets: Tensor  # [ranks]: a number for the set of each rank's parameters that take part
    overflow_ranks: Tensor  # on how many ranks a GradScaler found an overflow


class RankMessage(NamedTuple):
    """What a rank of a ``process_group`` sends, ``[n_groups]`` per field."""

    raw_grad_sq: Tensor
    moment_sq: Tensor
    decayed_sq: Tensor
    grad_theta: Tensor
    theta_sq: Tensor
    grad_moment: Tensor  # for unit steps, and so is the number of entries
    entries: Tensor
    newest_step: Tensor  # 0 where there is none
    newest_beta_hat: Tensor
    active_set: Tensor
    overflow: Tensor


def gather_totals(
    parts: Sequence[Part],
    sums: dict[int, PartSums],
    newest: dict[int, Newest],
    n_groups: int,
    options: StepOptions,
    found_inf: Tensor | None,
    like: Tensor,
) -> RankTotals:
    """Add up one rank's totals with those of all others, in the order of ranks: the same bits everywhere.

    A rank without a gradient must call this, too, or the others would wait. The message has the dtype and the device of
    ``like``.
    """
    zero = like.new_zeros(())
    active = float(zlib.crc32(repr([(part.group, tuple(part.indices)) for part in parts]).encode()))
    overflow = zero if found_inf is None else (found_inf != 0).to(zero)
    columns = []
    for k in range(n_groups):
        own, clock = sums.get(k, PartSums(zero, zero)), newest.get(k, Newest(zero, None))
        fields = [zero if x is None else x for x in (*own, *clock)]
        columns.append(torch.stack([*fields, torch.full_like(zero, active), overflow]))
    message = torch.stack(columns, dim=1)
    received = [torch.empty_like(message) for _ in range(dist.get_world_size(options.process_group))]
    dist.all_gather(received, message, group=options.process_group)
    by_rank = RankMessage(*torch.stack(received, dim=1).unbind())  # [ranks, n_groups] per field
    totals = torch.stack(by_rank[: len(PartSums._fields)]).sum(1)
    steps = by_rank.newest_step.amax(0)
    beta_hats = torch.where(by_rank.newest_step == steps, by_rank.newest_beta_hat, 0.0).amax(0)
    return RankTotals(
        {k: PartSums(*total.unbind()) for k, total in enumerate(totals.unbind(1))},
        {k: Newest(steps[k], beta_hats[k] if options.psi != "identity" else None) for k in range(n_groups)},
        by_rank.active_set[:, 0],
        by_rank.overflow[:, 0].sum(),
    )


def find_device(ranks: ProcessGroup) -> torch.device:
    """Return the device of messages on a rank that holds no parameter with a gradient."""
    return torch.device("cuda" if dist.get_backend(ranks) == "nccl" else "cpu")


def check_process_group(ranks: ProcessGroup, options: dict[str, Any]) -> None:
    """Raise unless ``process_group`` is one, and the backend supports it."""
    if ranks is None:
        return
    if not dist.is_available() or not isinstance(ranks, dist.ProcessGroup):
        raise TypeError(f"process_group must be a torch.distributed process group or None, got {ranks!r}")
    if options["differentiable"] or (options["foreach"] is False and not options["fused"]):
        raise ValueError("process_group needs the foreach or the fused backend: leave foreach and fused at None")


def check_sharding(group: dict[str, Any], process_group: ProcessGroup) -> None:
    """Raise where a norm would silently cover one rank's share only; the error names what to pass."""
    by_row = group["norm_scope"] in ROW_SCOPES or group["unit_step"] == "spectral"
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
            if by_row and group["foreach"] is False and not group["fused"]:
                raise ValueError(f"foreach=False needs plain tensors by row, got a DTensor placed {placements}")
        if not is_flat_shard(p):
            continue
        if by_row:
            raise ValueError(
                f"norm_scope={group['norm_scope']!r} needs the rows of a parameter, and one is a flat shard (FSDP1 or "
                f"DeepSpeed), which does not know them: use FSDP2 (fully_shard), or norm_scope 'global' or 'group'"
            )
        if process_group is None:
            raise ValueError(
                "a parameter is a shard of an engine (FSDP1 or DeepSpeed) that keeps plain tensors, and no norm over "
                "the whole could be taken: pass process_group=, the ranks it is cut over, or use FSDP2 (fully_shard)"
            )
        if group["norm_scope"] == "tensor":
            raise ValueError('norm_scope="tensor" needs whole tensors or DTensors, and a parameter is a flat shard')
    if process_group is None and needs_all_ranks(group) and is_inside_zero():
        raise ValueError(
            f"ZeroRedundancyOptimizer gives each rank a part of the parameters, and {needs_all_ranks(group)} needs "
            f"all: pass optimizer_class=functools.partial(ACMo, process_group=torch.distributed.group.WORLD)"
        )


def needs_all_ranks(group: dict[str, Any]) -> str:
    """Return the option for which ranks with whole tensors must know of each other's; "" where there is none."""
    if group["norm_scope"] in ("global", "group"):
        return f"norm_scope={group['norm_scope']!r}"
    if group["max_grad_norm"] is not None:
        return f"max_grad_norm={group['max_grad_norm']}"
    if getattr(group.get("projection"), "scope", None) == "all":
        return f"projection={group['projection']!r}"
    return 'nonfinite="raise"' if group["nonfinite"] == "raise" else ""


def is_flat_shard(p: Tensor) -> bool:
    """Return whether an engine has marked a plain tensor: FSDP1's flat parameter, its views, DeepSpeed's ZeRO-3."""
    return any(hasattr(p, mark) for mark in ("_is_flat_param", "_fsdp_flattened", "ds_id"))


def is_inside_zero() -> bool:
    """Return whether a ZeroRedundancyOptimizer over several ranks is being built: only the call stack shows it."""
    if "torch.distributed.optim.zero_redundancy_optimizer" not in sys.modules or not dist.is_initialized():
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("zero_redundancy_optimizer.py"):
            return int(getattr(frame.f_locals.get("self"), "world_size", dist.get_world_size())) > 1
        frame = frame.f_back  # type: ignore[assignment]
    return False
