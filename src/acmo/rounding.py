"""Stochastic rounding of float32 to bfloat16. The bits are a hash, not a generator's: a resumed run rounds alike."""

from collections.abc import Sequence

import torch
from torch import Tensor

from acmo import sharding
from acmo.step_data import GroupOptions, Part


def rounds_randomly(part: Part, group: GroupOptions) -> bool:
    """Return whether the parameters of a part are rounded stochastically: only bfloat16 ones are."""
    return group.first_number is not None and part.params[0].dtype == torch.bfloat16


def write_params(part: Part, group: GroupOptions, values: Sequence[Tensor]) -> None:
    """Write θ into the parameters: rounded stochastically where the group asks for it, else to nearest."""
    if not rounds_randomly(part, group):
        torch._foreach_copy_(part.params, list(values))
        return
    for j, (p, x) in enumerate(zip(part.params, values, strict=True)):
        p.copy_(round_randomly(x, find_seed(part, group, j), index_entries(p, part.owners[j])))


def find_seed(part: Part, group: GroupOptions, j: int) -> Tensor:
    """Return the seed of tensor j of a part in this step; t is still that of the step before."""
    assert group.first_number is not None
    return rounding_seed(part.steps[j], group.first_number + part.indices[j])


def index_entries(p: Tensor, owner: Tensor) -> Tensor:
    """Return the number of each entry in the whole tensor, counted along its rows; p is the local shard of owner."""
    if not sharding.is_dtensor(owner):
        return torch.arange(p.numel(), device=p.device).view(p.shape)
    index = torch.zeros(p.shape, dtype=torch.int64, device=p.device)
    stride = 1
    for dim, offset in reversed(list(enumerate(sharding.find_offset(owner)))):
        along = torch.arange(offset, offset + p.shape[dim], device=p.device) * stride
        index += along.view(-1, *[1] * (p.ndim - dim - 1))
        stride *= owner.shape[dim]
    return index


def find_first_index(owner: Tensor) -> int | None:
    """Return the number of the first local entry in the whole tensor; None where the next ones do not follow it."""
    if not sharding.is_dtensor(owner):
        return 0
    if any(not x.is_replicate() and getattr(x, "dim", None) != 0 for x in owner.placements):  # type: ignore[attr-defined]
        return None
    return sharding.find_offset(owner)[0] * owner.shape[1:].numel() if owner.ndim else 0


def round_randomly(x: Tensor, seed: Tensor | int, index: Tensor) -> Tensor:
    """Return x in bfloat16: one of its two neighbours there, the nearer one more often, so that the mean is x.

    What bfloat16 has exactly stays as it is; a NaN stays one.
    """
    x = x.to(torch.float32)
    bits = x.view(torch.int32) + rounding_bits(index, seed).to(torch.int32)
    return torch.where(torch.isnan(x), x, (bits & -0x10000).view(torch.float32)).to(torch.bfloat16)


def rounding_seed(step: Tensor | int, number: Tensor | int) -> Tensor:
    """Return the 32 bits that key the stochastic rounding of parameter ``number`` in step ``step``, as int64."""
    return mix_bits(mix_bits(torch.as_tensor(step).to(torch.int64) & 0xFFFFFFFF) ^ number)


def rounding_bits(index: Tensor, seed: Tensor | int) -> Tensor:
    """Return the 16 random bits (int64) of each entry, as native/row_convert.h has them.

    A float32 θ becomes bfloat16 by adding these to its bits, as an integer, and dropping the lower half.

    Args:
      index: int64, of entries in the whole tensor.
      seed: 32 bits.
    """
    return mix_bits((index & 0xFFFFFFFF) ^ seed) >> 16


def mix_bits(h: Tensor) -> Tensor:
    """Return a hash of 32 bits in int64, by two multiplications modulo 2^32 (lowbias32 without its last shift)."""
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h = h ^ (h >> 15)
    return (h * 0x846CA68B) & 0xFFFFFFFF
