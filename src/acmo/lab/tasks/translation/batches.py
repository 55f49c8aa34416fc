"""Batches by number of tokens, of sentences of like length; and sentences as padded tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acmo.lab.tasks.translation.model import PAD
from acmo.lab.tasks.translation.store import Side

_MULTIPLE = 8  # of sentences in a batch, where it holds more: every rank gets as many, and kernels like it


def bucketed(lengths: np.ndarray[Any, Any], tokens: int, generator: torch.Generator) -> list[Tensor]:
    """Return all sentences once, in batches of at most ``tokens``, filled-up ones included; in random order.

    Sentences of the same length are shuffled before they are cut into batches, so an epoch's batches are not those
    of the one before; where the cuts fall depends on the lengths alone, so every epoch has as many.

    Args:
      lengths: of each pair the length of its longer side.
      tokens: of a batch: its number of pairs times the longest of them, unless a single pair has more.
      generator: all that the result depends on beside the lengths.
    """
    shuffled = torch.randperm(len(lengths), generator=generator)
    by_length = shuffled[torch.from_numpy(np.argsort(-lengths[shuffled.numpy()].astype(np.int32), kind="stable"))]
    ordered = lengths[by_length.numpy()]
    cuts, at = [0], 0
    while at < len(ordered):
        pairs = max(1, tokens // int(ordered[at]))  # the longest comes first
        at = min(len(ordered), at + (pairs - pairs % _MULTIPLE if pairs > _MULTIPLE else pairs))
        cuts.append(at)
    batches = by_length.tensor_split(cuts[1:-1])
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def gathered(side: Side, indices: Tensor) -> Tensor:
    """Return these sentences of the store as (sentences, longest), filled up with PAD."""
    which = indices.numpy()
    starts, ends = side.starts[which], side.starts[which + 1]
    places = starts[:, None] + np.arange(int((ends - starts).max()))
    found = side.tokens[np.minimum(places, len(side.tokens) - 1)]
    return torch.from_numpy(np.where(places < ends[:, None], found, PAD).astype(np.int64))


def padded(lines: Sequence[Sequence[int]]) -> Tensor:
    """Return these token lists as (sentences, longest), filled up with PAD."""
    longest = max(len(line) for line in lines)
    return torch.tensor([[*line, *[PAD] * (longest - len(line))] for line in lines])


def batch(source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Return the inputs of the model: the decoder sees the target one place later, its labels are the real tokens."""
    flat = target.flatten()
    places = flat.nonzero().flatten()  # PAD is 0
    return {
        "source": source,
        "source_mask": (source != PAD).long(),
        "target_in": torch.cat([torch.full_like(target[:, :1], PAD), target[:, :-1]], dim=1),
        "places": places,
        "labels": flat[places],
    }
