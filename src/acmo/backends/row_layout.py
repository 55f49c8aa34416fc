"""The rows of a part, one after the other: their sizes, norms and the shapes that broadcast over tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from acmo.scopes import reduced_dims
from acmo.step_data import Part


class Rows(NamedTuple):
    """The rows of a part, one after the other: how many each tensor has, and the shape that broadcasts over it."""

    sizes: list[int]
    shapes: list[torch.Size]

    def spread(self, values: Tensor) -> list[Tensor]:
        """Return one tensor per parameter, which broadcasts over it, from one value per row."""
        return spread(values, self.sizes, self.shapes)


def find_rows(part: Part) -> Rows:
    """Return the sizes and shapes of a part's rows."""
    shapes = [
        torch.Size([1 if i in reduced else size for i, size in enumerate(p.shape)])
        for p, reduced in zip(part.params, dims_of(part), strict=True)
    ]
    return Rows([shape.numel() for shape in shapes], shapes)


def spread_scales(part: Part, values: Tensor) -> list[Tensor]:
    """Return one tensor per parameter, which broadcasts over it, from one value per slice along dimension 0."""
    shapes = [torch.Size([m.shape[0], *[1] * (m.ndim - 1)]) for m in part.moments]
    return spread(values, [shape[0] for shape in shapes], shapes)


def spread(values: Tensor, sizes: list[int], shapes: list[torch.Size]) -> list[Tensor]:
    """Return one tensor per parameter: views of the values, made together where all lie along the same dimension."""
    ndims = {len(shape) for shape in shapes}
    dims = {i for shape in shapes for i, size in enumerate(shape) if size != 1} or {0}
    if len(ndims) == len(dims) == 1 and shapes[0]:
        (ndim,), (dim,) = ndims, dims
        return list(torch.split(values.view(*[1] * dim, -1, *[1] * (ndim - dim - 1)), sizes, dim=dim))
    return [v.view(s) for v, s in zip(torch.split(values, sizes), shapes, strict=True)]


def find_dtype(part: Part) -> torch.dtype:
    """Return the dtype of the arithmetic: float64 where the parameter or its moment is."""
    return torch.float64 if torch.float64 in (part.params[0].dtype, part.moments[0].dtype) else torch.float32


def sum_dtype(part: Part) -> torch.dtype:
    """Return the dtype of sums: float64 where the device has it."""
    return torch.float32 if part.params[0].device.type == "mps" else torch.float64


def dims_of(part: Part) -> list[tuple[int, ...]]:
    """Return the dimensions that the norms of each tensor are taken over."""
    return [reduced_dims(part.scope, p.ndim, o.is_complex()) for p, o in zip(part.params, part.owners, strict=True)]


def norms_of(part: Part, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the norms of every row of each tensor, with the reduced dimensions kept."""
    sums = sum_dtype(part)
    return [
        torch.linalg.vector_norm(x, dim=d or None, keepdim=True, dtype=sums)
        for x, d in zip(tensors, dims_of(part), strict=True)
    ]


def join(tensors: Sequence[Tensor]) -> Tensor:
    """Return the entries of all tensors as one axis."""
    return torch.cat([x.reshape(-1) for x in tensors]) if len(tensors) > 1 else tensors[0].reshape(-1)
