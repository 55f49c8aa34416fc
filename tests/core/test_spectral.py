"""SpectralACMo on every backend against the NumPy oracle: values of any size, dtype and layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from acmo import SpectralACMo
from acmo.scopes import resolve_kind
from tests.support import row_oracle, spectral_oracle
from tests.support.backends import REFERENCE, Backend, every_backend

SHAPES = [(12, 20), (40, 9), (16, 3, 2, 2), (9, 100), (8, 30), (90, 10), (7,), ()]
KINDS = ["spectral"] * 4 + ["row", "column", "whole", "whole"]
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "coupled decay": {"weight_decay": 0.1, "decoupled_weight_decay": False},
    "decoupled decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True},
    "delta": {"delta": 0.5, "momentum": 0.5},
    "three iterations": {"ns_steps": 3},
    "bisector": {"momentum": 1.0},
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def as_matrix(x: torch.Tensor) -> np.ndarray:
    x = x.detach().double()
    return (x.flatten(1) if x.ndim > 1 else x.reshape(1, -1)).numpy()


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("setting", SETTINGS)
def test_six_steps_are_those_of_the_oracles(setting: str, dtype: torch.dtype, backend: Backend):
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in SHAPES]
    opt = SpectralACMo(params, lr=0.1, **SETTINGS[setting], **backend)
    assert [resolve_kind(opt.param_groups[0], p) for p in params] == KINDS
    theta = [as_matrix(p).copy() for p in params]
    m = [np.zeros_like(x) for x in theta]
    decay, coupled = opt.defaults["weight_decay"], not opt.defaults["decoupled_weight_decay"]
    numbers = row_oracle.Numbers(
        s=-1.0 if opt.defaults["maximize"] else 1.0,
        coupled_decay=decay if coupled else 0.0,
        beta=opt.defaults["momentum"],
        delta=opt.defaults["delta"],
        alpha=0.1,
        kappa=1.0 if coupled else 1 - 0.1 * decay,
    )
    tiny = 1e-14 if dtype == torch.float64 else 1e-6
    for t in range(6):
        for k, (p, kind) in enumerate(zip(params, KINDS, strict=True)):
            g = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype) * 10.0 ** (t - 3)
            if t == 3 and p.ndim > 1:
                g.zero_()
            if t == 4 and p.ndim > 1:
                g.view(-1)[1] = math.nan
            p.grad = g
            if kind == "spectral":
                theta[k], m[k] = spectral_oracle.step(
                    theta[k], m[k], as_matrix(g), numbers, steps=opt.defaults["ns_steps"], tiny=tiny
                )
            else:
                out = row_oracle.step(theta[k], m[k], as_matrix(g), kind, numbers, double=dtype == torch.float64)
                theta[k], m[k] = out.theta, out.m
        opt.step()
    for p, expected, moment in zip(params, theta, m, strict=True):
        np.testing.assert_allclose(as_matrix(p), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        scale = TOLERANCE[dtype] * max(1.0, float(np.abs(moment).max()))
        np.testing.assert_allclose(
            as_matrix(opt.state[p]["momentum_buffer"]), moment, rtol=TOLERANCE[dtype], atol=scale
        )
    assert opt.skipped_steps == 1


@every_backend
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_matrices_of_any_size_step_as_far_as_ordinary_ones(size: float, backend: Backend):
    p, q = nn.Parameter(torch.zeros(12, 20)), nn.Parameter(torch.zeros(12, 20))
    ours, plain = SpectralACMo([p], lr=0.1, **backend), SpectralACMo([q], lr=0.1, **backend)
    for _ in range(4):
        q.grad = torch.randn(12, 20)
        p.grad = q.grad * size
        ours.step()
        plain.step()
    torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)


@every_backend
@pytest.mark.parametrize("shape", [(9, 2000), (2000, 9), (64, 64), (20, 5, 3, 3)], ids=str)
def test_every_step_has_a_root_mean_square_near_lr(shape: tuple[int, ...], backend: Backend):
    p = nn.Parameter(torch.zeros(shape))
    opt = SpectralACMo([{"params": [p], "spectral": True}], lr=1.0, **backend)
    p.grad = torch.randn(shape)
    opt.step()
    assert 0.6 < float(p.detach().square().mean().sqrt()) < 1.2


@every_backend
def test_gradient_against_the_moment_leaves_no_rounding_step(backend: Backend):
    p = nn.Parameter(torch.zeros(12, 16))
    opt = SpectralACMo([p], lr=1.0, momentum=1.0, weight_decay=0.0, **backend)
    p.grad = torch.randn(12, 16)
    opt.step()
    before = p.detach().clone()
    p.grad = -p.grad
    opt.step()
    assert torch.equal(p, before)
    assert not opt.state[p]["momentum_buffer"].any()


@every_backend
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16], ids=str)
def test_the_moment_is_orthogonalised_before_it_is_rounded(dtype: torch.dtype, backend: Backend):
    p, q = nn.Parameter(torch.zeros(12, 20)), nn.Parameter(torch.zeros(12, 20))
    low, full = SpectralACMo([p], momentum_dtype=dtype, **backend), SpectralACMo([q], **backend)
    p.grad = q.grad = torch.randn(12, 20)
    low.step()
    full.step()
    torch.testing.assert_close(p, q, rtol=0, atol=1e-7)  # of bfloat16 entries it would be off by 1e-4
    p.grad = q.grad = torch.randn(12, 20)
    low.step()
    full.step()
    assert 0 < float((p - q).detach().abs().max()) < 1e-3
    assert low.state[p]["momentum_buffer"].dtype == dtype


@every_backend
@pytest.mark.parametrize("momentum_dtype", [None, torch.int8])
@pytest.mark.parametrize("layout", ["strided", "channels_last", "expanded gradient", "transposed"])
def test_any_memory_layout_gives_the_contiguous_steps(
    layout: str, momentum_dtype: torch.dtype | None, backend: Backend
):
    start = torch.randn(12, 3, 2, 2)
    p = nn.Parameter(start.clone())
    if layout == "channels_last":
        p = nn.Parameter(start.clone(memory_format=torch.channels_last))
    elif layout == "transposed":
        p = nn.Parameter(start.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3))
    elif layout == "strided":
        wide = torch.zeros(12, 3, 2, 4)
        wide[..., ::2] = start
        p = nn.Parameter(wide[..., ::2])
    q = nn.Parameter(start.clone())
    one = SpectralACMo([p], momentum_dtype=momentum_dtype, **backend)
    other = SpectralACMo([q], momentum_dtype=momentum_dtype, **REFERENCE)
    for _ in range(3):
        g = torch.randn(12, 3, 1, 1).expand(12, 3, 2, 2) if layout == "expanded gradient" else torch.randn(12, 3, 2, 2)
        p.grad, q.grad = g, g.clone()
        one.step()
        other.step()
    # A byte may differ where a multiple of the scale is nearly halfway.
    torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-4, atol=1e-5 if momentum_dtype is None else 1e-4)


@every_backend
def test_telemetry_has_the_cosine_of_step_and_gradient(backend: Backend):
    p = nn.Parameter(torch.zeros(12, 20))
    opt = SpectralACMo([p], lr=1.0, maximize=True, weight_decay=0.1, decoupled_weight_decay=False, **backend)
    for _ in range(3):
        before = p.detach().clone()
        p.grad = torch.randn(12, 20)
        opt.step()
    (told,) = opt.telemetry()["tensors"]
    g, u = -p.grad + 0.1 * before, before - p.detach()
    cos = float(torch.nn.functional.cosine_similarity(g.flatten(), u.flatten(), dim=0))
    assert told["cos_min"] == told["cos_mean"] == pytest.approx(cos, abs=1e-4)


def test_orthogonalising_loses_the_angle_bound_of_the_moment():
    """M keeps cos ≥ √(1 − β²) to g; O need not: g is one large singular value that the moment opposes."""
    u, _, v = torch.linalg.svd(torch.randn(12, 12, dtype=torch.float64))
    first = torch.ones(12, dtype=torch.float64)
    second = torch.full((12,), -0.2, dtype=torch.float64)
    second[0] = 1.0
    p = nn.Parameter(torch.zeros(12, 12, dtype=torch.float64))
    opt = SpectralACMo([p], lr=1.0, momentum=0.99)
    for sigma in (first, second):
        before = p.detach().clone()
        p.grad = (u * sigma) @ v
        opt.step()
    step, m = before - p.detach(), opt.state[p]["momentum_buffer"]

    def cosine(x: torch.Tensor) -> float:
        return float((x * p.grad).sum() / (x.norm() * p.grad.norm()))

    assert cosine(m) >= math.sqrt(1 - 0.99**2) - 1e-9
    assert cosine(step) < 0


@pytest.mark.parametrize("policy", ["raise", "propagate"])
@every_backend
def test_other_policies_for_matrices_that_are_not_finite(policy: str, backend: Backend):
    p = nn.Parameter(torch.zeros(12, 20))
    opt = SpectralACMo([p], nonfinite=policy, **backend)
    p.grad = torch.randn(12, 20)
    p.grad[3, 4] = math.nan
    if policy == "raise":
        with pytest.raises(FloatingPointError, match="parameter 0"):
            opt.step()
        assert not p.any()
    else:
        opt.step()
        assert p.isnan().all()
