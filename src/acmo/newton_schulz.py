"""Newton–Schulz: bring the singular values of matrices near 1 by matrix products alone, many matrices at once.

The polynomial is that of Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/) and torch.optim.Muon.
It does not converge to 1: five iterations bring singular values above 1/200 of the Frobenius norm into [0.68, 1.16].
Smaller ones grow by 3.4445 per iteration, and those that are 0 stay 0.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of σ, σ³ and σ⁵
DEFAULT_STEPS = 5
BATCH_ENTRIES = 2**22  # of one batch at most, which bounds its temporaries
BFLOAT16_SIDE = 256  # from this smaller side on, CPUs that multiply bfloat16 do so in half of float32's time
GRAM_RATIO = 2  # from this ratio of the sides on, iterating on the smaller side alone takes fewer products
# Private to torch, so it may be gone; then float32 is used.
CPU_HAS_BFLOAT16 = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def orthogonalise(matrices: Sequence[Tensor], steps: int = DEFAULT_STEPS) -> list[Tensor]:
    """Return the matrices with their singular values near 1; matrices of one shape share their products.

    Args:
      matrices: two dimensions each, in the dtype of `choose_dtype`, with a Frobenius norm of 1 (or 0).
      steps: the number of iterations.

    Example:
      >>> x = torch.diag(torch.tensor([0.8, 0.6], dtype=torch.float64))
      >>> [round(float(s), 2) for s in orthogonalise([x])[0].diagonal()]
      [0.97, 0.72]
    """
    shapes: dict[torch.Size, list[int]] = {}
    for j, x in enumerate(matrices):
        shapes.setdefault(x.shape, []).append(j)
    found: dict[int, Tensor] = {}
    for shape, positions in shapes.items():
        count = max(1, BATCH_ENTRIES // max(1, shape.numel()))
        for first in range(0, len(positions), count):
            batch = positions[first : first + count]
            if len(batch) > 1:  # no name for the stack: it would outlive the first iteration
                results = iterate(torch.stack([matrices[j] for j in batch]), steps)
            else:
                results = iterate(matrices[batch[0]][None], steps)
            found.update(zip(batch, results.unbind(), strict=True))
    return [found[j] for j in range(len(matrices))]


def choose_dtype(x: Tensor, shape: Sequence[int]) -> torch.dtype:
    """Return the dtype of a matrix's products: bfloat16 on GPUs, where torch adds in float32, and CPUs that have it.

    Args:
      x: the matrix, or a shard of it. Float64 stays: who asks for it wants its precision.
      shape: of the whole matrix, whose rows are dimension 0.
    """
    if x.dtype == torch.float64 or x.device.type == "mps":
        return x.dtype
    if x.is_cpu and not (CPU_HAS_BFLOAT16 and min(shape[0], prod(shape[1:])) >= BFLOAT16_SIDE):
        return torch.float32
    return torch.bfloat16


def iterate(x: Tensor, steps: int) -> Tensor:
    """Return X p(XᵀX) of each matrix ``[n, rows, columns]``, p being the iterations; the Gram side is the smaller.

    Where one side is much the longer, the Gram matrix alone is iterated: the factors of all iterations commute. Not in
    bfloat16, whose Gram matrices lose the squares of small singular values.
    """
    a, b, c = COEFFICIENTS
    tall = x.shape[1] > x.shape[2]
    if x.dtype != torch.bfloat16 and max(x.shape[1:]) >= GRAM_RATIO * min(x.shape[1:]):
        return iterate_gram(x, steps, tall)
    for _ in range(steps):
        gram = x.mT @ x if tall else x @ x.mT
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # without its a · identity
        del gram  # a batch of them takes memory
        x = torch.baddbmm(x, x, factor, beta=a) if tall else torch.baddbmm(x, factor, x, beta=a)
    return x


def iterate_gram(x: Tensor, steps: int, tall: bool) -> Tensor:
    """Return the same from products of the Gram side: one product with X to begin with and one at the end."""
    a, b, c = COEFFICIENTS
    gram = x.mT @ x if tall else x @ x.mT
    identity = torch.eye(gram.shape[1], dtype=x.dtype, device=x.device)
    product: Tensor | None = None
    for k in range(steps):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c) + a * identity
        product = factor if product is None else factor @ product
        if k < steps - 1:
            gram = factor @ gram @ factor
    assert product is not None
    return x @ product if tall else product @ x
