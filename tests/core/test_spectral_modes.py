"""Spectral steps compiled, inside backward, resumed, scaled and differentiated."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import acmo
import acmo.native
from acmo import SpectralACMo
from tests.support.backends import FUSED, REFERENCE, Backend, every_backend
from tests.support.steps import run_compiled


@pytest.mark.filterwarnings("ignore:Profiler record function")
def test_compiled_spectral_steps_equal_eager_ones_in_one_graph():
    compiled, eager, graphs = run_compiled(SpectralACMo, [(12, 20), (12, 20), (90, 10), (7,)], 4)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-4)
    assert graphs == 1


@every_backend
def test_steps_inside_backward_are_those_after_it(backend: Backend):
    if backend is REFERENCE:
        pytest.skip("the hooks do not depend on the backend; two are enough")
    nets = [nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 12)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    inside = acmo.step_in_backward(nets[0], SpectralACMo, lr=0.01, **backend)
    after = SpectralACMo(nets[1].named_parameters(), lr=0.01, **backend)
    for _ in range(3):
        x = torch.randn(5, 12)
        for net, opt in zip(nets, (inside, after), strict=True):
            net(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)  # one batch has one matrix, the other two
    assert [x["cos_mean"] for x in inside.telemetry()["tensors"]] == pytest.approx(
        [x["cos_mean"] for x in after.telemetry()["tensors"]], abs=1e-5
    )


@every_backend
def test_a_saved_state_resumes_with_the_same_bits(backend: Backend):
    p = nn.Parameter(torch.randn(12, 20))
    opt = SpectralACMo([{"params": [p], "lr_scale": 0.5, "spectral": True}], ns_steps=4, **backend)
    p.grad = torch.randn(12, 20)
    opt.step()
    q = nn.Parameter(p.detach().clone())
    twin = SpectralACMo([q])
    twin.load_state_dict(copy.deepcopy(opt.state_dict()))
    q.grad = p.grad = torch.randn(12, 20)
    opt.step()
    twin.step()
    assert torch.equal(p, q)
    assert [twin.param_groups[0][key] for key in ("lr_scale", "spectral", "ns_steps")] == [0.5, True, 4]
    for copied in (copy.deepcopy(opt), copy.copy(opt)):
        assert copied.param_groups[0]["unit_step"] == "spectral"


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_training_resumes_from_muons_momentum():
    p = nn.Parameter(torch.randn(12, 20))
    muon = torch.optim.Muon([p], lr=0.02)
    for _ in range(2):
        p.grad = torch.randn(12, 20)
        muon.step()
    opt = SpectralACMo([p], lr=3e-3, weight_decay=0.01)
    before = {key: value for key, value in opt.param_groups[0].items() if key != "params"}
    opt.load_state_dict(muon.state_dict())
    assert torch.equal(opt.state[p]["momentum_buffer"], muon.state[p]["momentum_buffer"])
    assert {key: value for key, value in opt.param_groups[0].items() if key != "params"} == before
    opt.step()
    assert float(opt.state[p]["step"]) == 1


def test_state_is_four_bytes_per_parameter_and_one_with_int8():
    for dtype, most in ((None, 4.01), (torch.int8, 1.05)):
        p = nn.Parameter(torch.zeros(100, 120))
        opt = SpectralACMo([p], momentum_dtype=dtype)
        p.grad = torch.randn(100, 120)
        opt.step()
        assert sum(x.nbytes for x in opt.state[p].values()) / p.numel() < most


def test_a_scaler_unscales_and_skips_matrices():
    p = nn.Parameter(torch.zeros(12, 20))
    opt = SpectralACMo([p], lr=0.1, **FUSED) if acmo.native.kernel() else SpectralACMo([p], lr=0.1)
    opt.grad_scale, opt.found_inf = torch.tensor(8.0), torch.tensor(1.0)  # type: ignore[attr-defined]
    p.grad = torch.randn(12, 20)
    opt.step()
    assert not p.any()
    assert opt.skipped_steps == 1
    opt.found_inf = torch.tensor(0.0)  # type: ignore[attr-defined]
    opt.step()
    torch.testing.assert_close(opt.state[p]["momentum_buffer"], p.grad / 8)


def test_gradients_flow_through_a_differentiable_spectral_step():
    start = torch.randn(9, 10, dtype=torch.float64, requires_grad=True)

    def train(x: torch.Tensor) -> torch.Tensor:
        p = nn.Parameter(torch.zeros(9, 10, dtype=torch.float64))
        q = p.clone()
        q.retain_grad()
        opt = SpectralACMo([q], lr=0.1, differentiable=True)
        q.grad = x.clone()
        opt.step()
        return q

    assert torch.autograd.gradcheck(train, (start,), eps=1e-6, atol=1e-5)
