"""SpectralACMo on every backend against the NumPy oracle, and what its options, groups and state promise."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import acmo
import acmo.native
from acmo import ACMo, RowACMo, SpectralACMo
from acmo.scopes import resolve_kind
from tests.support import row_oracle, spectral_oracle
from tests.support.backends import FUSED, REFERENCE, Backend, every_backend

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
    opt = SpectralACMo([p], lr=1.0, momentum=1.0, **backend)
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
@pytest.mark.parametrize("layout", ["strided", "channels_last", "expanded gradient", "transposed"])
def test_any_memory_layout_gives_the_contiguous_steps(layout: str, backend: Backend):
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
    one, other = SpectralACMo([p], **backend), SpectralACMo([q], **REFERENCE)
    for _ in range(3):
        g = torch.randn(12, 3, 1, 1).expand(12, 3, 2, 2) if layout == "expanded gradient" else torch.randn(12, 3, 2, 2)
        p.grad, q.grad = g, g.clone()
        one.step()
        other.step()
    torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-4, atol=1e-5)


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


def test_the_angle_bound_of_the_moment_is_lost_by_orthogonalising():
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


@every_backend
def test_lr_scale_is_a_factor_that_schedulers_leave_alone(backend: Backend):
    p, q = nn.Parameter(torch.ones(12, 20)), nn.Parameter(torch.ones(12, 20))
    ours = SpectralACMo([{"params": [p], "lr_scale": 0.5}], lr=0.2, weight_decay=0.1, **backend)
    plain = SpectralACMo([q], lr=0.1, weight_decay=0.1, **backend)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(opt, 0.5) for opt in (ours, plain)]
    for _ in range(3):
        p.grad = q.grad = torch.randn(12, 20)
        for opt, schedule in zip((ours, plain), schedules, strict=True):
            opt.step()
            schedule.step()
    torch.testing.assert_close(p, q)
    assert ours.param_groups[0]["lr_scale"] == 0.5


def test_groups_choose_what_is_orthogonalised():
    def kind(shape: tuple[int, ...], **group: Any) -> str:
        opt = SpectralACMo([{"params": [nn.Parameter(torch.zeros(shape))], **group}])
        return resolve_kind(opt.param_groups[0], opt.param_groups[0]["params"][0])

    assert kind((64, 64)) == kind((64, 64), norm_scope="row") == kind((64, 64), norm_scope="tensor") == "spectral"
    assert kind((64, 64), norm_scope="column") == "column"
    assert kind((64, 64), norm_scope="column", spectral=True) == "spectral"
    assert kind((64, 64), spectral=False) == "row"
    assert kind((900, 64)) == "column"
    assert kind((900, 64), spectral=True) == "spectral"
    assert kind((8, 64), spectral=True) == "row"
    z = nn.Parameter(torch.zeros(64, 64, dtype=torch.complex64))
    assert resolve_kind(SpectralACMo([z]).param_groups[0], z) == "row"


@every_backend
def test_a_group_that_is_edited_between_steps_changes_its_kind(backend: Backend):
    p, q = nn.Parameter(torch.zeros(12, 20)), nn.Parameter(torch.zeros(12, 20))
    ours, rows = SpectralACMo([p], lr=0.1, **backend), RowACMo([q], lr=0.1, **backend)
    p.grad = q.grad = torch.randn(12, 20)
    ours.step()
    ours.param_groups[0]["spectral"] = False
    with torch.no_grad():
        p.zero_()
    ours.state[p]["momentum_buffer"].zero_()
    ours.step()
    rows.step()
    torch.testing.assert_close(p, q)


@pytest.mark.parametrize(
    ("options", "error", "quoted"),
    [
        ({"norm_scope": "global"}, ValueError, "unit_step='spectral' needs norm_scope .*got 'global'"),
        ({"ns_steps": 0}, ValueError, "ns_steps must be .*>= 1, got 0"),
        ({"ns_steps": 2.5}, TypeError, "ns_steps must be a whole number, got 2.5"),
        ({"ns_steps": 4, "unit_step": "rms"}, ValueError, "ns_steps=4 needs unit_step='spectral'"),
        ({"max_grad_norm": 1.0}, ValueError, "max_grad_norm=1.0 has no effect on unit steps"),
        ({"norm_scope": "tensor", "psi": "sqrt"}, ValueError, "psi='sqrt' has no effect on spectral steps"),
    ],
)
def test_impossible_options_get_an_error_that_names_them(options: dict[str, Any], error: Any, quoted: str):
    with pytest.raises(error, match=quoted):
        SpectralACMo([nn.Parameter(torch.ones(12, 12))], **options)


@pytest.mark.parametrize(("key", "value"), [("lr_scale", -1.0), ("spectral", "yes"), ("ns_steps", 3)])
def test_impossible_groups_get_an_error_that_names_them(key: str, value: Any):
    groups = [{"params": [nn.Parameter(torch.ones(12, 12))], **x} for x in ({}, {key: value})]
    with pytest.raises((TypeError, ValueError), match=key):
        SpectralACMo(groups)


@pytest.mark.parametrize("cls", [RowACMo, SpectralACMo])
def test_the_signature_shows_every_option_of_acmo(cls: type[ACMo]):
    ours, theirs = (inspect.signature(x).parameters for x in (cls, ACMo))
    assert list(ours) == list(theirs)
    assert [p.kind for p in ours.values()] == [p.kind for p in theirs.values()]
    opt = cls([nn.Parameter(torch.ones(2))])
    given = {key: p.default for key, p in ours.items() if key not in ("params", "process_group")}
    assert {key: opt.defaults[key] for key in given} == given


@pytest.mark.filterwarnings("ignore:Profiler record function")
def test_compiled_spectral_steps_equal_eager_ones_in_one_graph():
    torch._dynamo.reset()
    first = [nn.Parameter(torch.randn(s)) for s in [(12, 20), (12, 20), (90, 10), (7,)]]
    second = [nn.Parameter(p.detach().clone()) for p in first]
    one, other = (SpectralACMo(ps, lr=torch.tensor(0.1), weight_decay=0.1) for ps in (first, second))
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(one.step, fullgraph=True, backend=counter)
    for t in range(4):
        for opt in (one, other):
            opt.param_groups[0]["lr"].fill_(0.1 / (t + 1))
        for p, q in zip(first, second, strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        step()
        other.step()
    for p, q in zip(first, second, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


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
