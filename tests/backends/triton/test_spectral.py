"""Spectral steps by the Triton kernels, in the interpreter: norms, m and θ by kernels, matrix products by torch."""

import pytest
import torch
from torch import nn

import acmo
from tests.support.backends import FUSED, REFERENCE
from tests.support.triton_interpreter import needs_triton
from tests.support.twin_steps import assert_twins_agree, run_twins

pytestmark = [needs_triton, pytest.mark.usefixtures("interpreter")]
SHAPES = [(12, 16), (24, 9), (10, 3, 2, 2), (5, 7), (9,)]
PAIRS = [
    (torch.float64, None),
    (torch.float32, None),
    (torch.bfloat16, None),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.int8),
    (torch.bfloat16, torch.int8),
]


def name_pair(pair):
    return "-".join(str(dtype).replace("torch.", "") for dtype in pair)


@pytest.mark.parametrize("pair", PAIRS, ids=name_pair)
def test_spectral_steps_agree_with_the_reference(pair):
    dtype, moment = pair
    assert_twins_agree(*run_twins(SHAPES, dtype, kind=acmo.SpectralACMo, momentum_dtype=moment, weight_decay=0.1))


@pytest.mark.parametrize("options", [{"decoupled_weight_decay": False}, {"maximize": True}], ids=str)
def test_spectral_options_agree_with_the_reference(options):
    ours, theirs = run_twins(SHAPES[:2], torch.float64, kind=acmo.SpectralACMo, weight_decay=0.1, **options)
    assert_twins_agree(ours, theirs)
    for mine, other in zip(ours.telemetry()["tensors"], theirs.telemetry()["tensors"], strict=True):
        assert mine == pytest.approx(other, rel=1e-9, nan_ok=True)


def test_spectral_steps_launch_the_kernels(monkeypatch):
    from acmo.backends.triton import spectral_steps

    calls = []
    step_part = spectral_steps.step_part
    monkeypatch.setattr(spectral_steps, "step_part", lambda *a, **k: calls.append(1) or step_part(*a, **k))
    run_twins([(12, 16)], torch.float32, kind=acmo.SpectralACMo, count=1)
    assert calls


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nonfinite_matrix_is_skipped_alone(bad):
    def spoil(t, grads):
        if t == 1:
            grads[0][2, 3] = bad

    ours, theirs = run_twins(SHAPES[:2], torch.float32, kind=acmo.SpectralACMo, spoil=spoil, count=2)
    assert_twins_agree(ours, theirs)
    assert ours.skipped_steps == theirs.skipped_steps == 1


@pytest.mark.parametrize("overflow", [0.0, 1.0])
def test_grad_scaler_unscales_and_skips_spectral_steps(overflow):
    g = torch.linspace(-1, 1, 12 * 16).reshape(12, 16).sin()
    p, q = nn.Parameter(torch.ones(12, 16)), nn.Parameter(torch.ones(12, 16))
    ours, theirs = acmo.SpectralACMo([p], **FUSED), acmo.SpectralACMo([q], **REFERENCE)
    p.grad, q.grad = 4 * g, g.clone()
    ours.grad_scale, ours.found_inf = torch.tensor(4.0), torch.tensor(overflow)
    ours.step()
    if not overflow:
        theirs.step()
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
    assert ours.skipped_steps == overflow


def test_spectral_bfloat16_is_rounded_stochastically():
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.ones(16, 16, dtype=torch.bfloat16))
    p.grad = torch.randn(16, 16, generator=generator).to(torch.bfloat16)
    acmo.SpectralACMo([p], lr=1e-3, stochastic_rounding=True, **FUSED).step()
    nearest = nn.Parameter(torch.ones(16, 16, dtype=torch.bfloat16))
    nearest.grad = p.grad.clone()
    acmo.SpectralACMo([nearest], lr=1e-3, **FUSED).step()
    assert 0.02 < float((p != nearest).float().mean()) < 0.9
