"""Options and groups of spectral steps: what they choose, and the errors of those that cannot be."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from acmo import ACMo, RowACMo, SpectralACMo, newton_schulz
from acmo.scopes import resolve_kind
from tests.support.backends import Backend, every_backend


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
        ({"ns_dtype": torch.float16}, ValueError, "ns_dtype must be .*got torch.float16"),
        ({"ns_dtype": "bfloat16"}, TypeError, "ns_dtype must be a torch.dtype or None, got 'bfloat16'"),
        (
            {"ns_dtype": torch.float32, "unit_step": "rms"},
            ValueError,
            "ns_dtype=torch.float32 needs unit_step='spectral'",
        ),
        ({"max_grad_norm": 1.0}, ValueError, "max_grad_norm=1.0 has no effect on unit steps"),
        ({"norm_scope": "tensor", "psi": "sqrt"}, ValueError, "psi='sqrt' has no effect on spectral steps"),
    ],
)
def test_impossible_options_get_an_error_that_names_them(options: dict[str, Any], error: Any, quoted: str):
    with pytest.raises(error, match=quoted):
        SpectralACMo([nn.Parameter(torch.ones(12, 12))], **options)


@pytest.mark.parametrize(
    ("key", "value"), [("lr_scale", -1.0), ("spectral", "yes"), ("ns_steps", 3), ("ns_dtype", torch.float32)]
)
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


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_products_are_in_the_dtype_that_is_asked_for(dtype: torch.dtype, backend: Backend):
    g = torch.randn(12, 20)
    found = {}
    for ns_dtype in (dtype, torch.float64):
        p = nn.Parameter(torch.zeros(12, 20))
        p.grad = g.clone()
        SpectralACMo([p], lr=1.0, ns_dtype=ns_dtype, **backend).step()
        assert p.dtype == torch.float32
        found[ns_dtype] = p.detach()
    off = float((found[dtype] - found[torch.float64]).abs().max())
    least, most = {torch.bfloat16: (1e-4, 0.2), torch.float32: (0.0, 1e-5), torch.float64: (0.0, 0.0)}[dtype]
    assert least <= off <= most


def test_the_dtype_of_products_is_saved_by_name():
    p = nn.Parameter(torch.zeros(12, 20))
    p.grad = torch.randn(12, 20)
    opt = SpectralACMo([p], ns_dtype=torch.bfloat16)
    opt.step()
    saved = opt.state_dict()
    assert saved["param_groups"][0]["ns_dtype"] == "bfloat16"
    twin = SpectralACMo([p])
    twin.load_state_dict(saved)
    assert twin.param_groups[0]["ns_dtype"] is torch.bfloat16


@every_backend
def test_many_matrices_step_in_parts_of_a_bounded_size(backend: Backend, monkeypatch: pytest.MonkeyPatch):
    shapes = [(12, 20), (9, 10), (12, 20), (40, 30), (9, 10), (12, 20)]
    nets = [[nn.Parameter(torch.zeros(s)) for s in shapes] for _ in range(2)]
    opts = [SpectralACMo(params, lr=0.1, **backend) for params in nets]
    for p, q in zip(*nets, strict=True):
        p.grad = torch.randn(p.shape)
        q.grad = p.grad.clone()
    opts[0].step()
    monkeypatch.setattr(newton_schulz, "CPU_ENTRIES", 500)
    opts[1].step()
    parts, _ = opts[1]._gather()
    assert [part.indices for part in parts] == [(0, 2), (5, 1, 4), (3,)]
    for p, q in zip(*nets, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)
    reports = [opt.telemetry()["tensors"] for opt in opts]
    assert [x["index"] for x in reports[1]] == list(range(6))
    assert [x["cos_mean"] for x in reports[1]] == pytest.approx([x["cos_mean"] for x in reports[0]], abs=1e-5)
