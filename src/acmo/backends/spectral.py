"""The direction of a spectral step: the orthogonalised moment of each matrix, whole or cut over ranks."""

from collections.abc import Sequence
from math import prod, sqrt

import torch
from torch import Tensor

from acmo.matrix_exchange import orthogonalise_shards
from acmo.newton_schulz import choose_dtype, orthogonalise
from acmo.step_data import Part, StepOptions


def find_directions(part: Part, moments: Sequence[Tensor], norms: Tensor, options: StepOptions) -> list[Tensor]:
    """Return O of each moment on this rank, in the moment's dtype and shape.

    Args:
      part: its tensors are spectral.
      moments: m_t, in the precision of the arithmetic; local where they are sharded.
      norms: ‖m_t‖ of each, over all ranks; 0 where m_t = 0.
      options: have the iterations of Newton–Schulz, and the dtype of their products.
    """
    divisors = torch.where(norms == 0, 1.0, norms)
    dtype = choose_dtype(moments[0], options.ns_dtype)
    if part.shards:
        roots = divisors.sqrt().to(moments[0].dtype).unbind()  # twice, as in newton_schulz.join
        units = [(m / root / root).to(dtype) for m, root in zip(moments, roots, strict=True)]
        found = orthogonalise_shards(part.owners, units, part.shards, options.ns_steps)
    else:
        found = orthogonalise([m.flatten(1) for m in moments], options.ns_steps, divisors, dtype)
    return [o.reshape(m.shape).to(m.dtype) for o, m in zip(found, moments, strict=True)]


def find_lengths(part: Part, like: Tensor) -> Tensor:
    """Return ``[n]``: √max(rows, columns) of each matrix, which gives the step a root mean square of about 1."""
    roots = [sqrt(max(owner.shape[0], prod(owner.shape[1:]))) for owner in part.owners]
    return torch.stack([torch.full((), root, dtype=like.dtype, device=like.device) for root in roots])


def sum_products(directions: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Return ``[n]``: the inner products of directions with gradients, parameters or themselves."""
    pairs = zip(directions, others, strict=True)
    return torch.stack([torch.dot(o.reshape(-1), x.to(o.dtype).reshape(-1)) for o, x in pairs])


def measure_cosines(directions: Sequence[Tensor], inners: Tensor, grad_norms: Tensor) -> Tensor:
    """Return ``[n]``: the cosine between step and gradient of each tensor, from ⟨O, g⟩ and ‖g‖."""
    lengths = sum_products(directions, directions).to(grad_norms).sqrt() * grad_norms
    return (inners.to(grad_norms) / torch.where(lengths == 0, 1.0, lengths)).clamp(-1.0, 1.0)
