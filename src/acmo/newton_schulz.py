"""Newton–Schulz: bring the singular values of matrices near 1 by matrix products alone, many matrices at once.

The polynomial is that of Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/) and torch.optim.Muon.
It does not converge to 1: five iterations bring singular values above 1/200 of the Frobenius norm into [0.68, 1.16].
Smaller ones grow by 3.4445 per iteration, and those that are 0 stay 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of σ, σ³ and σ⁵
DEFAULT_STEPS = 5
CPU_ENTRIES, DEVICE_ENTRIES = 2**21, 2**24  # of one batch at most: its temporaries fit the caches, or some memory
GRAM_RATIO = 2  # from this ratio of the sides on, iterating on the smaller side alone takes fewer products
BLOCK_SIDE = 256  # from this side on, a symmetric product is faster by blocks, of which one need not be computed


def orthogonalise(
    matrices: Sequence[Tensor],
    steps: int = DEFAULT_STEPS,
    norms: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Return the matrices with their singular values near 1; matrices of one shape share their products.

    Args:
      matrices: two dimensions each, of one dtype.
      steps: the number of iterations.
      norms: ``[n]``, what to divide the matrices by; None where their Frobenius norms are 1 (or 0).
      dtype: of the products and of the result; the matrices' own by default.

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
        count = max(1, limit_entries(matrices[0].device) // max(1, shape.numel()))
        for first in range(0, len(positions), count):
            batch = positions[first : first + count]
            divisors = None if norms is None else norms[batch]
            results = iterate([matrices[j] for j in batch], divisors, dtype or matrices[0].dtype, steps)
            found.update(zip(batch, results.unbind(), strict=True))
    return [found[j] for j in range(len(matrices))]


def limit_entries(device: torch.device) -> int:
    """Return how many entries matrices that are orthogonalised together may have; one alone may have more."""
    return CPU_ENTRIES if device.type == "cpu" else DEVICE_ENTRIES


def join(matrices: list[Tensor], norms: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return ``[n, rows, columns]``: the matrices, divided by their norms before they are rounded.

    They are divided by the root of the norm twice: the norm of float32 entries may be beyond float32.
    """
    if norms is None:
        return (matrices[0][None] if len(matrices) == 1 else torch.stack(matrices)).to(dtype)
    roots = norms.sqrt().to(matrices[0].dtype).view(-1, 1, 1)
    divided = matrices[0][None] / roots if len(matrices) == 1 else torch.stack(matrices).div_(roots)
    return divided.div_(roots).to(dtype)


def choose_dtype(x: Tensor, ns_dtype: torch.dtype | None = None) -> torch.dtype:
    """Return the dtype of a matrix's products: as asked, else bfloat16 on GPUs, where torch adds in float32.

    On CPUs float32 is the default: a sharded run is then that of one process to 1e-5. Float64 stays float64.
    """
    if ns_dtype is not None or x.dtype == torch.float64:
        return ns_dtype or torch.float64
    return torch.float32 if x.device.type in ("cpu", "mps") else torch.bfloat16


def iterate(matrices: list[Tensor], norms: Tensor | None, dtype: torch.dtype, steps: int) -> Tensor:
    """Return X p(XᵀX) of each matrix X, p being the iterations, ``[n, rows, columns]``; the Gram side is the smaller.

    Where one side is much the longer, the Gram matrix alone is iterated: the factors of all iterations commute. Not in
    bfloat16, whose Gram matrices lose the squares of small singular values.
    """
    a, b, c = COEFFICIENTS
    x = join(matrices, norms, dtype)  # here, since a caller's reference would keep it for all iterations
    tall = x.shape[1] > x.shape[2]
    if x.dtype != torch.bfloat16 and max(x.shape[1:]) >= GRAM_RATIO * min(x.shape[1:]):
        return iterate_gram(x, steps, tall)
    for _ in range(steps):
        gram = multiply_symmetric(x.mT, x) if tall else multiply_symmetric(x, x.mT)
        factor = multiply_symmetric(gram, gram).mul_(c).add_(gram, alpha=b)  # without its a · identity
        del gram  # a batch of them takes memory
        x = torch.baddbmm(x, x, factor, beta=a) if tall else torch.baddbmm(x, factor, x, beta=a)
        del factor
    return x


def iterate_gram(x: Tensor, steps: int, tall: bool) -> Tensor:
    """Return the same from products of the Gram side: one product with X to begin with and one at the end."""
    a, b, c = COEFFICIENTS
    gram = multiply_symmetric(x.mT, x) if tall else multiply_symmetric(x, x.mT)
    identity = torch.eye(gram.shape[1], dtype=x.dtype, device=x.device)
    product: Tensor | None = None
    for k in range(steps):
        factor = multiply_symmetric(gram, gram).mul_(c).add_(gram, alpha=b).add_(identity, alpha=a)
        product = factor if product is None else multiply_symmetric(factor, product)
        if k < steps - 1:
            gram = multiply_symmetric(multiply_symmetric(factor, gram), factor)
    assert product is not None
    return x @ product if tall else product @ x


def multiply_symmetric(x: Tensor, y: Tensor) -> Tensor:
    """Return the products of matrices ``[n, s, k]`` and ``[n, k, s]`` that are symmetric: XXᵀ, factors that commute.

    In float32 on CPUs a fourth of a large product is copied from its transpose instead. That takes 0.86 to 0.95 of the
    time at sides of 512 and 768.
    """
    n, side, _ = x.shape
    half = side // 2
    if side < BLOCK_SIDE or side % 2 or x.dtype != torch.float32 or not x.is_cpu:
        return x @ y
    product = x.new_empty(n, side, side)
    product[:, :half, :half] = x[:, :half] @ y[:, :, :half]
    product[:, half:, half:] = x[:, half:] @ y[:, :, half:]
    product[:, half:, :half] = x[:, half:] @ y[:, :, :half]
    product[:, :half, half:] = product[:, half:, :half].mT
    return product
