"""RowACMo on every backend against the NumPy oracle by row, and the properties that rows and unit steps promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acmo import ACMo, RowACMo, native
from acmo.scopes import resolve_scope
from tests.support import row_oracle
from tests.support.backends import REFERENCE, Backend, every_backend
from tests.support.steps import run_compiled

SHAPES = [(6, 5), (40, 3), (4, 3, 2, 2), (7,), (), (5, 1), (1, 5), (0, 3), (3, 4, 1, 2, 2)]
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "gradient step": {"unit_step": False},
    "row": {"norm_scope": "row"},
    "column": {"norm_scope": "column"},
    "coupled decay": {"weight_decay": 0.1, "decoupled_weight_decay": False},
    "decoupled decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True},
    "bisector": {"momentum": 1.0},
    "delta": {"delta": 0.5, "momentum": 0.5},
    "propagate": {"nonfinite": "propagate"},
}
TOLERANCE = {torch.float64: 1e-11, torch.float32: 3e-5}


def as_matrix(x: torch.Tensor, kind: str) -> np.ndarray:
    flat = x.detach().double().flatten(1) if kind == "row" and x.ndim > 1 else x.detach().double()
    return flat.numpy() if flat.ndim == 2 else flat.reshape(1, -1).numpy()


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("setting", SETTINGS)
def test_six_steps_are_those_of_the_oracle(setting: str, dtype: torch.dtype, backend: Backend):
    options = SETTINGS[setting]
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in SHAPES]
    opt = RowACMo(params, lr=0.1, **options, **backend)
    kinds = [resolve_scope(opt.defaults["norm_scope"], p.shape) for p in params]
    theta = [as_matrix(p, kind).copy() for p, kind in zip(params, kinds, strict=True)]
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
    for t in range(6):
        for k, (p, kind) in enumerate(zip(params, kinds, strict=True)):
            g = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype) * 10.0 ** (t - 3)
            if t == 3 and p.ndim > 1:
                g[:1] = 0
            if t == 4 and p.ndim > 1 and p.numel() > 5:
                g.flatten(1)[1, 0] = math.nan
            p.grad = g
            out = row_oracle.step(
                theta[k],
                m[k],
                as_matrix(g, kind),
                kind,
                numbers,
                unit=bool(opt.defaults["unit_step"]),
                propagate=opt.defaults["nonfinite"] == "propagate",
                double=dtype == torch.float64,
            )
            theta[k], m[k] = out.theta, out.m
        opt.step()
    for p, kind, expected, moment in zip(params, kinds, theta, m, strict=True):
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(as_matrix(p, kind), expected, rtol=tolerance, atol=tolerance)
        own = as_matrix(opt.state[p]["momentum_buffer"], kind)
        np.testing.assert_allclose(
            own, moment, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(moment).max(initial=0)))
        )
    assert opt.skipped_steps == (0 if setting == "propagate" else 1)


@every_backend
@settings(max_examples=30)
@given(data=st.data(), beta=st.floats(0, 1))
def test_every_row_keeps_the_angle_bound_and_unit_length(backend: Backend, data, beta: float):
    entries = st.floats(-10, 10, width=32)
    grads = data.draw(st.lists(st.lists(entries, min_size=12, max_size=12), min_size=2, max_size=4))
    p = nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))
    opt = RowACMo([p], lr=1.0, momentum=beta, norm_scope="row", **backend)
    for flat in grads:
        p.grad = torch.tensor(flat, dtype=torch.float64).view(3, 4)
        before = p.detach().clone()
        opt.step()
    u = before - p.detach()
    for row, g in zip(u, p.grad, strict=True):
        if not g.any() or not row.any():
            continue
        assert float(row.square().mean().sqrt()) == pytest.approx(1.0, rel=1e-9)
        assert float(row @ g) >= (math.sqrt(1 - beta**2) - 1e-6) * float(row.norm() * g.norm())


@every_backend
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_rows_of_any_size_step_as_far_as_ordinary_ones(size: float, backend: Backend):
    torch.manual_seed(0)
    p, q = nn.Parameter(torch.zeros(3, 8)), nn.Parameter(torch.zeros(3, 8))
    ours, plain = RowACMo([p], lr=0.1, **backend), RowACMo([q], lr=0.1, **backend)
    for _ in range(4):
        q.grad = torch.randn(3, 8)
        p.grad = q.grad * torch.tensor([[1.0], [size], [1.0]])
        ours.step()
        plain.step()
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@every_backend
@pytest.mark.parametrize("beta", [0.99, 1.0])
def test_gradient_against_the_moment_leaves_no_rounding_step(beta: float, backend: Backend):
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(4, 16))
    opt = RowACMo([p], lr=1.0, momentum=beta, **backend)
    g = torch.randn(4, 16)
    p.grad = g
    opt.step()
    before = p.detach().clone()
    p.grad = -g
    opt.step()
    if beta == 1.0:
        assert torch.equal(p, before)
        assert not opt.state[p]["momentum_buffer"].any()
    else:
        torch.testing.assert_close((before - p).square().mean(1).sqrt(), torch.ones(4), rtol=1e-4, atol=0)


@every_backend
@pytest.mark.parametrize("scope", ["global", "tensor", "row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("missing", [1e-5, 1e-7, 1e-9, 1e-12])
def test_a_nearly_vanishing_moment_steps_by_one_or_not_at_all(
    missing: float, dtype: torch.dtype, scope: str, backend: Backend
):
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(4, 16, dtype=dtype))
    opt = ACMo([p], lr=1.0, momentum=1 - missing, delta=0.0, norm_scope=scope, unit_step=True, **backend)
    g = torch.randn(4, 16, dtype=dtype)
    p.grad = g
    opt.step()
    before = p.detach().clone()
    p.grad = -g
    opt.step()
    for length in (before - p.detach()).square().mean(1 if scope == "row" else (0, 1)).sqrt().reshape(-1).tolist():
        assert length == 0 or length == pytest.approx(1.0, rel=0.02)


@every_backend
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
def test_unit_step_of_wider_scopes_has_root_mean_square_one(scope: str, backend: Backend):
    torch.manual_seed(0)
    params = [nn.Parameter(torch.zeros(3, 5)), nn.Parameter(torch.zeros(7))]
    opt = ACMo(params, lr=1.0, norm_scope=scope, unit_step=True, **backend)
    for _ in range(3):
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.randn(p.shape)
        opt.step()
    moved = [(b - p.detach()).flatten() for b, p in zip(before, params, strict=True)]
    for u in moved if scope == "tensor" else [torch.cat(moved)]:
        assert float(u.square().mean()) == pytest.approx(1.0, rel=1e-5)


@every_backend
def test_complex_rows_are_those_of_their_pairs_with_n_halved(backend: Backend):
    torch.manual_seed(0)
    for scope in ("row",) if backend.get("fused") else ("row", "column"):  # the kernel takes complex rows alone
        p = nn.Parameter(torch.zeros(3, 4, dtype=torch.complex64))
        opt = RowACMo([p], lr=1.0, norm_scope=scope, **backend)
        p.grad = torch.randn(3, 4, dtype=torch.complex64)
        opt.step()
        lengths = p.detach().abs().square().mean(1 if scope == "row" else 0)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))


@every_backend
@pytest.mark.parametrize("layout", ["strided", "channels_last", "expanded gradient", "transposed"])
def test_any_memory_layout_gives_the_contiguous_steps(layout: str, backend: Backend):
    torch.manual_seed(0)
    start = torch.randn(4, 3, 2, 2)
    p = nn.Parameter(start.clone())
    if layout == "channels_last":
        p = nn.Parameter(start.clone(memory_format=torch.channels_last))
    elif layout == "transposed":
        p = nn.Parameter(start.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3))
    elif layout == "strided":
        wide = torch.zeros(4, 3, 2, 4)
        wide[..., ::2] = start
        p = nn.Parameter(wide[..., ::2])
    q = nn.Parameter(start.clone())
    one, other = RowACMo([p], **backend), RowACMo([q], **REFERENCE)
    for _ in range(3):
        g = torch.randn(4, 3, 1, 1).expand(4, 3, 2, 2) if layout == "expanded gradient" else torch.randn(4, 3, 2, 2)
        p.grad, q.grad = g, g.clone()
        one.step()
        other.step()
    torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-5, atol=1e-6)


@every_backend
@pytest.mark.parametrize("scope", ["row", "column"])
def test_int8_moment_is_the_quantised_one_of_the_oracle(scope: str, backend: Backend):
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(6, 5, generator=generator))
    opt = RowACMo([p], lr=0.1, norm_scope=scope, momentum_dtype=torch.int8, **backend)
    theta, m = p.detach().double().numpy().copy(), np.zeros((6, 5))
    for _ in range(5):
        p.grad = torch.randn(6, 5, generator=generator)
        out = row_oracle.step(theta, m, p.grad.double().numpy(), scope, row_oracle.Numbers(alpha=0.1))
        q, scale = row_oracle.quantise(out.m)
        theta, m = out.theta, q * scale[:, None].astype(float)
        opt.step()
    state = opt.state[p]
    assert state["momentum_buffer"].dtype == torch.int8
    assert state["momentum_scale"].shape == (6,)
    assert (
        int((state["momentum_buffer"].long() - torch.from_numpy(q).long()).abs().max()) <= 1
    )  # a tie may round either way
    np.testing.assert_allclose(state["momentum_scale"].numpy(), scale, rtol=1e-5)
    np.testing.assert_allclose(p.detach().numpy(), theta, rtol=1e-4, atol=2e-4)


@every_backend
def test_int8_moments_of_empty_tensors_and_idle_rows_stay(backend: Backend):
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.zeros(s)) for s in [(3, 0), (0, 3), (300, 40), (40, 2)]]  # the last goes by column
    opt = RowACMo(params, momentum_dtype=torch.int8, **backend)
    for t in range(2):
        before = [{key: x.clone() for key, x in opt.state[p].items()} for p in params]
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        if t:
            params[2].grad[1:] = 0.0
            params[3].grad.zero_()
        opt.step()
        if t == 0:  # bytes that no step would have stored: the largest of a row is 127
            opt.state[params[2]]["momentum_buffer"][1:].div_(2, rounding_mode="trunc")
    for key in ("momentum_buffer", "momentum_scale"):
        assert torch.equal(opt.state[params[2]][key][1:], before[2][key][1:])
        assert not torch.equal(opt.state[params[2]][key][:1], before[2][key][:1])
        assert torch.equal(opt.state[params[3]][key], before[3][key])


@every_backend
def test_telemetry_reports_every_parameters_cosines(backend: Backend):
    torch.manual_seed(0)
    params = [nn.Parameter(torch.zeros(3, 5)), nn.Parameter(torch.zeros(4))]
    opt = RowACMo(params, **backend)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn(p.shape)
        moments = [opt.state[p]["momentum_buffer"].clone() if p in opt.state else None for p in params]
        opt.step()
    told = opt.telemetry()["tensors"]
    m, g = opt.state[params[0]]["momentum_buffer"], params[0].grad
    cos = torch.nn.functional.cosine_similarity(m, g, dim=1)
    assert told[0]["cos_min"] == pytest.approx(float(cos.min()), abs=1e-5)
    assert told[0]["cos_mean"] == pytest.approx(float(cos.mean()), abs=1e-5)
    assert told[0]["turned_share"] == pytest.approx(float(((moments[0] * g).sum(1) < 0).float().mean()))
    assert told[1]["cos_min"] == told[1]["cos_mean"]


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        ({"max_grad_norm": 1.0}, "max_grad_norm=1.0 has no effect on unit steps"),
        ({"psi": "sqrt"}, "psi='sqrt'"),
        ({"momentum_dtype": torch.float16}, "float16"),
        ({"unit_step": "cube"}, "unit_step.*'cube'"),
        ({"norm_scope": "rows"}, "norm_scope.*'rows'"),
    ],
)
def test_impossible_options_get_an_error_that_names_them(options: dict[str, Any], quoted: str):
    with pytest.raises(ValueError, match=quoted):
        RowACMo([nn.Parameter(torch.ones(2, 2))], **options)


def test_unit_step_that_a_user_sets_to_true_is_rms():
    params = [nn.Parameter(torch.zeros(3, 5)) for _ in range(2)]
    opt = ACMo([{"params": [p]} for p in params], lr=1.0, norm_scope="row", unit_step="rms")
    opt.param_groups[0]["unit_step"] = True  # as ZeroRedundancyOptimizer does before every step
    for p in params:
        p.grad = torch.randn(3, 5)
    opt.step()
    for p in params:
        torch.testing.assert_close(p.detach().square().mean(1), torch.ones(3))


def test_global_scope_does_not_mix_with_rows():
    groups = [
        {"params": [nn.Parameter(torch.ones(2, 2))]},
        {"params": [nn.Parameter(torch.ones(2))], "norm_scope": "global"},
    ]
    with pytest.raises(ValueError, match="'global' and 'auto' cannot be mixed"):
        RowACMo(groups)


@pytest.mark.filterwarnings("ignore:Profiler record function")
def test_compiled_steps_by_row_equal_eager_ones_in_one_graph():
    compiled, eager, graphs = run_compiled(RowACMo, [(6, 5), (40, 3), (7,)], 5)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
    assert graphs == 1


@pytest.mark.skipif(native.kernel() is None, reason="the C kernel was not built")
def test_fused_says_why_it_cannot_step_complex_columns():
    p = nn.Parameter(torch.zeros(3, 4, dtype=torch.complex64))
    opt = RowACMo([p], norm_scope="column", fused=True)
    p.grad = torch.ones(3, 4, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match=r"complex parameters by column.*fused=None"):
        opt.step()
