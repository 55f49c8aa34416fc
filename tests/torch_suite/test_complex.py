"""A complex parameter is trained as the pair of reals that it is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close

from .registry import Case, optimizers


def reals(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]


def leaves(tensors: list[Tensor]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


# As in torch's suite not for fused: torch's kernels take no complex numbers, and ours need not.
@optimizers("reference", "foreach")
def test_complex_parameters_equal_their_real_views(case: Case):
    """Beside a parameter that is real anyway."""
    dtype = torch.complex64
    complexes = leaves([torch.randn(10, 5, dtype=dtype), torch.randn((), dtype=dtype), torch.rand(7)])
    views = leaves(reals(complexes))
    optimizer, optimizer_of_views = case.build(complexes), case.build(views)
    for _ in range(5):
        for p, view in zip(complexes, views, strict=True):
            p.grad = torch.randn_like(p)
            view.grad = reals([p.grad])[0].clone()
        optimizer.step()
        optimizer_of_views.step()
        assert_close(reals([p.detach() for p in complexes]), [v.detach() for v in views])
        for p, view in zip(complexes, views, strict=True):
            state, state_of_view = optimizer.state[p], optimizer_of_views.state[view]
            assert state.keys() == state_of_view.keys()
            for name, value in state.items():
                if isinstance(value, Tensor):
                    assert_close(*reals([value, state_of_view[name]]))


@optimizers("reference", "foreach")
def test_complex_parameter_equals_two_real_ones(case: Case):
    """The parts of Rosenbrock's |f| over complex numbers: the gradients depend on what the steps did."""

    def rosenbrock(z: Tensor) -> Tensor:
        return ((1 - z[0]) ** 2 + 100 * (z[1] - z[0] ** 2) ** 2).abs()

    z = (0.1 * torch.randn(2, dtype=torch.complex64)).requires_grad_()
    parts = leaves([z.real, z.imag])
    optimizer, optimizer_of_parts = case.build([z], lr=1e-3), case.build(parts, lr=1e-3)
    for _ in range(5):
        z.grad = parts[0].grad = parts[1].grad = None
        rosenbrock(z).backward()
        rosenbrock(torch.complex(*parts)).backward()
        assert_close([z.grad.real, z.grad.imag], [p.grad for p in parts], rtol=1e-4, atol=1e-4)
        optimizer.step()
        optimizer_of_parts.step()
        assert_close([z.detach().real, z.detach().imag], [p.detach() for p in parts])
