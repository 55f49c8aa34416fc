"""Orthogonalise matrices that are cut over ranks: each is collected on one rank, and its shards are sent back.

One all-to-all there and one back for every mesh dimension that cuts the matrices, so a rank sends its own shards of all
matrices and receives as much, however many ranks there are. Matrices are spread over the ranks by their cost.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from acmo.newton_schulz import orthogonalise
from acmo.sharding import exchange
from acmo.step_data import Shards

Coordinates = tuple[int, ...]  # of a rank, one per mesh dimension that cuts the matrices
Key = tuple[int, Coordinates]  # a matrix, and the rank that a shard of it belongs to


class Place(NamedTuple):
    """Where a shard lies in its tensor."""

    slices: tuple[Any, ...]  # per dimension; indices where a shard is not one range
    shape: torch.Size


def orthogonalise_shards(owners: Sequence[Any], shards: Sequence[Tensor], groups: Shards, steps: int) -> list[Tensor]:
    """Return this rank's shards of the orthogonalised matrices; every rank that holds a shard must call this.

    Args:
      owners: the parameters, DTensors.
      shards: the local entries of each matrix, which has a Frobenius norm of 1 over all ranks (or 0).
      groups: the process groups that cut the matrices, one per mesh dimension.
      steps: iterations of Newton–Schulz.
    """
    sizes = tuple(dist.get_world_size(group) for group in groups)
    mine = tuple(dist.get_rank(group) for group in groups)
    ranks = list(product(*map(range, sizes)))
    chosen = [ranks[r] for r in spread([find_cost(p.shape) for p in owners], len(ranks))]
    places = {
        (j, at): locate(p.shape, tuple(p.placements), tuple(p.device_mesh.shape), at)
        for j, p in enumerate(owners)
        for at in ranks
    }
    found: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(x.dtype for x in shards):  # a message has one
        positions = [j for j, x in enumerate(shards) if x.dtype == dtype]
        routes = [find_route(h, sizes, mine, [(j, chosen[j]) for j in positions]) for h in range(len(groups))]
        pieces = {(j, mine): shards[j] for j in positions}
        for group, (there, back) in zip(groups, routes, strict=True):
            pieces = send(pieces, there, back, places, group, shards[positions[0]])
        own = [j for j in positions if chosen[j] == mine]
        wholes = [assemble(pieces, j, owners[j].shape, places, ranks, shards[j]) for j in own]
        for j, o in zip(own, orthogonalise([x.flatten(1) for x in wholes], steps), strict=True):
            whole = o.reshape(owners[j].shape)
            pieces.update({(j, at): whole[places[j, at].slices] for at in ranks})
        for group, (there, back) in zip(reversed(groups), reversed(routes), strict=True):
            pieces = send(pieces, back, there, places, group, shards[positions[0]])
        found.update({j: pieces[j, mine] for j in positions})
    return [found[j] for j in range(len(shards))]


def spread(costs: Sequence[int], ranks: int) -> list[int]:
    """Return the rank of each matrix: the most expensive first, each to the rank that has the least to do.

    Example:
      >>> spread([1, 4, 2, 2], 2)
      [1, 0, 1, 1]
    """
    loads, chosen = [0] * ranks, [0] * len(costs)
    for j in sorted(range(len(costs)), key=lambda j: -costs[j]):
        chosen[j] = min(range(ranks), key=loads.__getitem__)
        loads[chosen[j]] += costs[j]
    return chosen


def find_cost(shape: Sequence[int]) -> int:
    """Return a number in proportion to the operations that orthogonalise a matrix."""
    rows, columns = shape[0], prod(shape[1:])
    return min(rows, columns) ** 2 * (2 * max(rows, columns) + min(rows, columns))


@cache
def locate(shape: torch.Size, placements: tuple[Any, ...], mesh: tuple[int, ...], at: Coordinates) -> Place:
    """Return where the shard of a rank lies: the placements cut the tensor one after the other, as torch.chunk does.

    A strided placement (FSDP2 over tensor parallel) cuts each of ``split_factor`` blocks by itself.
    """
    indices: dict[int, Tensor] = {}
    coordinates = iter(at)
    for placement, n in zip(placements, mesh, strict=True):
        if placement.is_replicate() or n == 1:
            continue
        coordinate, dim = next(coordinates), placement.dim % len(shape)
        index = indices.get(dim, torch.arange(shape[dim], device="cpu"))
        blocks = index.chunk(getattr(placement, "split_factor", 1))
        pieces = [block.chunk(n) for block in blocks]
        indices[dim] = torch.cat([x[coordinate] if coordinate < len(x) else x[0][:0] for x in pieces])
    place: list[Any] = [slice(None)] * len(shape)
    for dim, index in indices.items():
        first = int(index[0]) if len(index) else 0
        is_range = torch.equal(index, torch.arange(first, first + len(index), device="cpu"))
        place[dim] = slice(first, first + len(index)) if is_range else index
    return Place(tuple(place), torch.Size([len(indices.get(dim, range(size))) for dim, size in enumerate(shape)]))


def find_route(
    h: int, sizes: Coordinates, mine: Coordinates, chosen: Sequence[tuple[int, Coordinates]]
) -> tuple[list[list[Key]], list[list[Key]]]:
    """Return which shards go to each rank of the group of mesh dimension h, and which come from it.

    Until then a rank holds shards of the matrices whose chosen rank has its own coordinates below h, and of those the
    shards of all ranks that differ from it below h alone. On the way back the two lists change places.
    """
    here = [(j, at) for j, at in chosen if at[:h] == mine[:h]]
    below = list(product(*map(range, sizes[:h])))
    there = [[(j, (*x, *mine[h:])) for j, at in here if at[h] == r for x in below] for r in range(sizes[h])]
    arriving = [j for j, at in here if at[h] == mine[h]]
    back = [[(j, (*x, r, *mine[h + 1 :])) for j in arriving for x in below] for r in range(sizes[h])]
    return there, back


def send(
    pieces: dict[Key, Tensor],
    sent: list[list[Key]],
    received: list[list[Key]],
    places: dict[Key, Place],
    group: Any,
    like: Tensor,
) -> dict[Key, Tensor]:
    """Send each rank of a group its shards, and return those that arrive from it."""
    flat = [pieces[key].reshape(-1) for keys in sent for key in keys]
    message = torch.cat(flat) if flat else like.new_empty(0)
    outgoing, incoming = ([sum(places[key].shape.numel() for key in keys) for keys in way] for way in (sent, received))
    arrived = exchange(message, outgoing, incoming, group)
    keys = [key for own in received for key in own]
    parts = torch.split(arrived, [places[key].shape.numel() for key in keys]) if keys else ()
    return {key: part.view(places[key].shape) for key, part in zip(keys, parts, strict=True)}


def assemble(
    pieces: dict[Key, Tensor],
    j: int,
    shape: torch.Size,
    places: dict[Key, Place],
    ranks: Sequence[Coordinates],
    like: Tensor,
) -> Tensor:
    """Return a whole matrix from the shards of all ranks."""
    whole = like.new_empty(shape)
    for at in ranks:
        whole[places[j, at].slices] = pieces[j, at]
    return whole
