"""Norms: sums of squares that stay precise at any size, and the scopes over which they are added up.

Everything is kept as one sum of squares a tensor; a scope's norm is the root of the sum of its tensors' sums.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from acmo.parts import Part, arithmetic_dtype, scalar_dtype

# A float32 sum of squares over many equal values drifts: 2e-4 at 2^18 entries on the CPU, 2e-7 over rows of 1,024
# (benchmarks/norms.py). Rows also bound what one launch reads on a device.
ROW = 1024
VIEW = 2**18


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """``[n]``: the sum of squares of each tensor; float32 inside a row, float64 over the rows.

    A row is 1,024 entries on the CPU, 2^18 elsewhere; compiled there are none. Of float32 entries a norm beyond 1.8e19
    a row overflows to inf, and one below 1e-23 an entry counts as 0; for float64 the bounds are 1e154 and 1e-162.
    """
    dtype = scalar_dtype(tensors[0].device)
    if torch.compiler.is_compiling():  # one fused pass: nothing is copied there
        return torch.stack([t.to(dtype).square().sum() for t in tensors])
    flats = [flat(t) for t in tensors]
    if flats[0].is_cpu:
        return torch.stack([_square(x, dtype) for x in flats])
    views = [torch.split(x, VIEW) for x in flats]
    norms = torch._foreach_norm(
        [v for view in views for v in view], 2, torch.promote_types(flats[0].dtype, torch.float32)
    )
    parts = torch.stack(norms).to(dtype).square()
    if len(parts) == len(views):
        return parts
    return torch.stack([p.sum() for p in torch.split(parts, [len(view) for view in views])])


def _square(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of squares of a flat tensor on the CPU, by rows."""
    if x.dtype in (torch.float16, torch.bfloat16):  # cast piece by piece, never a copy of the whole
        return torch.stack([_square(piece.float(), dtype) for piece in torch.split(x, VIEW)]).sum()
    cut = x.numel() // ROW * ROW
    total: Tensor = torch.linalg.vector_norm(x[cut:]).to(dtype).square()
    if cut:
        total += torch.linalg.vector_norm(x[:cut].view(-1, ROW), dim=1).to(dtype).square().sum()
    return total


def inners(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
    """``[n]``: the inner products of pairs of tensors; `sum` adds by pairs, so it is precise at any size."""
    products = [(x.to(arithmetic_dtype(x)) * y).sum() for x, y in zip(xs, ys, strict=True)]
    return torch.stack(products).to(scalar_dtype(xs[0].device))


def flat(tensor: Tensor) -> Tensor:
    """All entries as one axis, in storage order where they lie densely (no copy), else in a copy."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def is_dense(tensor: Tensor) -> bool:
    """Whether the entries fill one stretch of memory, each place once (contiguous, channels-last, transposed…)."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def over_scope(
    rows: Sequence[Tensor], parts: Sequence[Part], scope: str, by_group: Tensor | None = None
) -> list[Tensor]:
    """Per-tensor sums ``[k, n_k]`` of each part → sums over the scope that the part's tensors belong to.

    A part gets ``[k]``, or for scope "tensor" the ``[k, n_k]`` that it brought. ``by_group``, ``[k, n_groups]``, are
    the sums over all ranks, where others hold a share.
    """
    if scope == "tensor":
        return list(rows)
    if by_group is not None:
        return [by_group.sum(1) if scope == "global" else by_group[:, part.group] for part in parts]
    totals = [r.sum(1) for r in rows]
    if scope == "global":
        return [torch.stack(totals).sum(0)] * len(parts)
    groups = {part.group for part in parts}
    sums = {k: torch.stack([t for t, p in zip(totals, parts, strict=True) if p.group == k]).sum(0) for k in groups}
    return [sums[part.group] for part in parts]
