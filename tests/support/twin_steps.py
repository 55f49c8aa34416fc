"""The same steps by the Triton kernels and by the reference, and how far they may be apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import acmo
from tests.support.backends import FUSED, REFERENCE

# Of float16 and bfloat16: two units in the last place, of the largest number in the tensor.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2 * 2.0**-8, torch.float16: 2 * 2.0**-11}


def run_twins(
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
    *,
    kind: type[acmo.ACMo] = acmo.ACMo,
    count: int = 3,
    offset: int = 0,
    spoil: Any = None,
    **options: Any,
) -> tuple[acmo.ACMo, acmo.ACMo]:
    """Take steps by both; each starts from the state that the fused one has left, so that one step is compared.

    Args:
      shapes: of the parameters, which make two groups.
      dtype: of the parameters.
      kind: the optimizer.
      count: of steps.
      offset: entries before each parameter in its storage: 1 misaligns it.
      spoil: called with the step's number and the gradients, to put in what it likes.
      options: of the optimizer.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def place(value: Tensor) -> Tensor:
        room = torch.empty(value.numel() + offset, dtype=dtype)[offset:]
        return room.copy_(value.reshape(-1)).view(value.shape)

    start = [draw(shape) for shape in shapes]
    built = []
    for backend in (FUSED, REFERENCE):
        params = [place(x).requires_grad_() for x in start]
        middle = max(1, len(params) // 2)
        groups = [{"params": own} for own in (params[:middle], params[middle:]) if own]
        groups[-1]["lr"] = 0.02
        built.append(kind(groups, lr=0.05, **options, **backend))
    ours, theirs = built
    for t in range(count):
        grads = [draw(shape) for shape in shapes]
        if spoil is not None:
            spoil(t, grads)
        for opt in built:
            for p, g in zip(all_params(opt), grads, strict=True):
                p.grad = place(g)
        if t:
            follow(theirs, ours)
        ours.step()
        theirs.step()
    return ours, theirs


def all_params(opt: acmo.ACMo) -> list[Tensor]:
    """Return the parameters of all groups."""
    return [p for group in opt.param_groups for p in group["params"]]


def follow(theirs: acmo.ACMo, ours: acmo.ACMo) -> None:
    """Give the reference the parameters and the state of the other, but none of its options."""
    for p, q in zip(all_params(ours), all_params(theirs), strict=True):
        q.data.copy_(p)
        for key, value in ours.state[p].items():
            theirs.state[q][key].copy_(value)


def assert_twins_agree(ours: acmo.ACMo, theirs: acmo.ACMo) -> None:
    """Compare parameters, moments and t."""
    for p, q in zip(all_params(ours), all_params(theirs), strict=True):
        close(p, q)
        for key, value in ours.state[p].items():
            close(value, theirs.state[q][key])


def close(x: Tensor, y: Tensor) -> None:
    """Compare one tensor, by the tolerance of its dtype and the size of its largest entry."""
    if not x.numel():
        return
    if x.dtype == torch.int8:
        assert (x.int() - y.int()).abs().max() <= 1
        return
    tolerance = TOLERANCE[x.dtype]
    size = float(y.detach().double().abs().nan_to_num().max())
    torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance * size, equal_nan=True)
