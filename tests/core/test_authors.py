"""The authors' two scripts are reproduced by the documented mapping: momentum=1, lr=s·lr, delta=ε/s.

Their update is m' = s (g + ‖g‖/(‖m'‖+ε) m'), θ −= lr m', written here as their code does it, tensor by tensor.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import acmo
from tests.support.backends import Backend, every_backend

SHAPES = [(4, 3), (7,), (2, 3, 2)]


def start(seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(s, dtype=torch.float64) for s in SHAPES]


def gradients(steps: int) -> list[list[Tensor]]:
    torch.manual_seed(1)
    return [[torch.randn(s, dtype=torch.float64) * (1 + t % 5) for s in SHAPES] for t in range(steps)]


def norm_of(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors]).norm()


def cifar(params: list[Tensor], steps: list[list[Tensor]], lr: float, eps: float, decay: float) -> list[Tensor]:
    """Their CIFAR script: s = 0.5, one norm a tensor, λθ added before the norm is taken."""
    params = [p.clone() for p in params]
    moments = [torch.zeros_like(p) for p in params]
    for grads in steps:
        for p, m, raw in zip(params, moments, grads, strict=True):
            g = raw + decay * p
            m.mul_(g.norm() / (m.norm() + eps)).add_(g).mul_(0.5)
            p.sub_(lr * m)
    return params


def nmt(params: list[Tensor], steps: list[list[Tensor]], lr: float, eps: float, decay: float) -> list[Tensor]:
    """Their NMT script: s = 0.9, one norm for all, of the gradient before λθ is added to it."""
    params = [p.clone() for p in params]
    moments = [torch.zeros_like(p) for p in params]
    for grads in steps:
        ratio = norm_of(grads) / (norm_of(moments) + eps)
        for p, m, raw in zip(params, moments, grads, strict=True):
            m.mul_(ratio).add_(raw + decay * p).mul_(0.9)
            p.sub_(lr * m)
    return params


def ours(params: list[Tensor], steps: list[list[Tensor]], **options: object) -> list[Tensor]:
    params = [p.clone().requires_grad_() for p in params]
    opt = acmo.ACMo(params, momentum=1.0, **options)  # type: ignore[arg-type]
    for grads in steps:
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        opt.step()
    return [p.detach() for p in params]


def apart(a: list[Tensor], b: list[Tensor]) -> float:
    return float(norm_of([x - y for x, y in zip(a, b, strict=True)]) / norm_of(b))


@every_backend
@pytest.mark.parametrize("decay", [0.0, 5e-2])
@pytest.mark.parametrize("eps", [1e-8, 1e-3, 0.5])
def test_the_cifar_script_is_scope_tensor_with_s_one_half(eps: float, decay: float, backend: Backend):
    theirs = cifar(start(), gradients(40), 0.1, eps, decay)
    mapped = ours(start(), gradients(40), lr=0.05, delta=eps / 0.5, weight_decay=decay, norm_scope="tensor", **backend)
    assert apart(mapped, theirs) < 1e-12


@every_backend
@pytest.mark.parametrize("eps", [1e-8, 1e-3, 0.5])
def test_the_nmt_script_is_scope_global_with_s_nine_tenths(eps: float, backend: Backend):
    theirs = nmt(start(), gradients(40), 0.1, eps, 0.0)
    mapped = ours(start(), gradients(40), lr=0.09, delta=eps / 0.9, norm_scope="global", **backend)
    assert apart(mapped, theirs) < 1e-12


def test_with_weight_decay_the_nmt_script_is_another_update():
    # It takes ‖g‖ before adding λθ, so the paper's line 4 does not hold of it: the mapping is close, not exact.
    theirs = nmt(start(), gradients(40), 0.1, 1e-8, 5e-2)
    mapped = ours(start(), gradients(40), lr=0.09, delta=1e-8 / 0.9, weight_decay=5e-2)
    assert 1e-6 < apart(mapped, theirs) < 1e-1


def test_scope_distinguishes_the_two_scripts():
    theirs = cifar(start(), gradients(40), 0.1, 1e-8, 0.0)
    mapped = ours(start(), gradients(40), lr=0.05, delta=2e-8, norm_scope="global")
    assert apart(mapped, theirs) > 1e-3
