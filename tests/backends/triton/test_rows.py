"""Steps by row and by column by the Triton kernels, in the interpreter."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import acmo
from acmo.backends import row_step
from tests.support import row_oracle
from tests.support.backends import FUSED, REFERENCE
from tests.support.triton_interpreter import needs_triton
from tests.support.twin_steps import assert_twins_agree, run_twins

pytestmark = [needs_triton, pytest.mark.usefixtures("interpreter")]
SHAPES = [(5, 7), (2, 130), (6, 3, 3), (30, 3), (13,), (), (0, 4)]
PAIRS = [
    (torch.float64, None),
    (torch.float32, None),
    (torch.bfloat16, None),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.int8),
    (torch.bfloat16, torch.int8),
]


def name_pair(pair):
    return "-".join(str(dtype).replace("torch.", "") for dtype in pair)


def test_steps_by_row_never_reach_the_c_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_step, "find_call", lambda *_: pytest.fail("the C kernel was asked"))
    p = torch.ones(5, 7, requires_grad=True)
    opt = acmo.RowACMo([p], lr=0.1)
    for _ in range(3):
        p.grad = torch.ones(5, 7)
        opt.step()
    torch.testing.assert_close(p.detach(), torch.full((5, 7), 0.7))


def zero_a_row_then_spoil_one(t, grads):
    if t == 1:
        grads[0][0] = 0
    elif t == 2:
        grads[0].view(-1)[-1] = torch.nan


@pytest.mark.parametrize("scope", ["row", "column"])
@pytest.mark.parametrize("unit", [False, True])
def test_float64_rows_agree_with_the_oracle(scope, unit):
    rng = np.random.default_rng(0)
    theta, shape = rng.standard_normal((9, 20)), (9, 20)
    m = np.zeros(shape)
    p = nn.Parameter(torch.from_numpy(theta.copy()))
    options = {"norm_scope": scope, "unit_step": unit, "delta": 0.1, "weight_decay": 0.2}
    opt = acmo.RowACMo([p], lr=0.1, decoupled_weight_decay=False, **options, **FUSED)
    numbers = row_oracle.Numbers(coupled_decay=0.2, delta=0.1)
    for _ in range(3):
        g = rng.standard_normal(shape)
        g[2] = 0
        p.grad = torch.from_numpy(g.copy())
        opt.step()
        truth = row_oracle.step(theta, m, g, scope, numbers, unit=unit, double=True)
        theta, m = truth.theta, truth.m
        np.testing.assert_allclose(p.detach().numpy(), theta, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(opt.state[p]["momentum_buffer"].numpy(), m, rtol=1e-12, atol=1e-12)
    tensor = opt.telemetry()["tensors"][0]
    assert tensor["cos_min"] == pytest.approx(min(truth.cosines))
    assert tensor["cos_mean"] == pytest.approx(math.fsum(truth.cosines) / truth.took_part)
    assert tensor["turned_share"] == pytest.approx(truth.turned / truth.took_part)


@pytest.mark.parametrize("pair", PAIRS, ids=name_pair)
def test_dtypes_by_row_agree_with_the_reference(pair):
    dtype, moment = pair
    options = {"kind": acmo.RowACMo, "momentum_dtype": moment, "weight_decay": 0.1, "spoil": zero_a_row_then_spoil_one}
    ours, theirs = run_twins(SHAPES[:5], dtype, **options)
    assert_twins_agree(ours, theirs)
    assert ours.skipped_steps == theirs.skipped_steps == 1


@pytest.mark.slow
@pytest.mark.combinations
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("decay", ["none", "coupled", "decoupled"])
@pytest.mark.parametrize("nonfinite", ["skip", "propagate"])
@pytest.mark.parametrize("scope", ["row", "column", "auto"])
@pytest.mark.parametrize("pair", PAIRS, ids=name_pair)
def test_all_options_by_row_agree_with_the_reference(pair, scope, nonfinite, decay, unit):
    dtype, moment = pair
    options = {"weight_decay": 0.0 if decay == "none" else 0.1, "decoupled_weight_decay": decay == "decoupled"}
    options |= {"norm_scope": scope, "nonfinite": nonfinite, "unit_step": unit, "momentum_dtype": moment}
    spoil = zero_a_row_then_spoil_one if nonfinite == "skip" else None
    assert_twins_agree(*run_twins(SHAPES, dtype, kind=acmo.RowACMo, maximize=True, spoil=spoil, **options))


@pytest.mark.parametrize("shape", [(1, 5), (3, 1), (2, 1100), (8, 16), (1,)], ids=str)
def test_rows_of_every_length_agree_with_the_reference(shape):
    assert_twins_agree(*run_twins([shape], torch.float32, kind=acmo.RowACMo, norm_scope="row", count=2))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [None, torch.int8])
@pytest.mark.parametrize("shape", [(2, 100_000), (400, 24), (100_000,), (16, 1024), (3, 2048)], ids=str)
def test_large_rows_and_columns_agree_with_the_reference(shape, moment):
    options = {"norm_scope": "auto", "momentum_dtype": moment, "count": 2}
    assert_twins_agree(*run_twins([shape], torch.float32, kind=acmo.RowACMo, **options))


def test_a_long_row_is_shared_by_programs(monkeypatch):
    from acmo.backends.triton import row_tables

    monkeypatch.setattr(row_tables, "SPLIT_ABOVE", 1000)
    assert_twins_agree(*run_twins([(5000,), (4,)], torch.float32, kind=acmo.RowACMo, count=2, weight_decay=0.1))


def test_an_int8_moment_of_a_long_row_has_one_scale(monkeypatch):
    from acmo.backends.triton import row_tables

    monkeypatch.setattr(row_tables, "SPLIT_ABOVE", 1000)
    options = {"momentum_dtype": torch.int8, "norm_scope": "row", "count": 2}
    assert_twins_agree(*run_twins([(1, 2500)], torch.float32, kind=acmo.RowACMo, **options))


def test_misaligned_rows_agree_with_the_reference():
    assert_twins_agree(*run_twins([(4, 16), (3, 24)], torch.float32, kind=acmo.RowACMo, offset=1, count=2))


def test_clipping_and_raising_by_row_agree_with_the_reference():
    options = {"kind": acmo.RowACMo, "unit_step": False, "max_grad_norm": 0.5, "nonfinite": "raise", "count": 2}
    assert_twins_agree(*run_twins([(5, 7), (6,)], torch.float32, **options))


@pytest.mark.parametrize("overflow", [0.0, 1.0])
def test_grad_scaler_by_row_unscales_and_skips(overflow):
    p, q = nn.Parameter(torch.ones(3, 5)), nn.Parameter(torch.ones(3, 5))
    options = {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": False}
    ours, theirs = acmo.RowACMo([p], **options, **FUSED), acmo.RowACMo([q], **options, **REFERENCE)
    p.grad, q.grad = torch.full_like(p, 8.0), torch.full_like(q, 2.0)
    ours.grad_scale, ours.found_inf = torch.tensor(4.0), torch.tensor(overflow)
    ours.step()
    if not overflow:
        theirs.step()
    torch.testing.assert_close(p, q)
    assert ours.skipped_steps == overflow


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e30])
def test_rows_of_any_size_step_as_far(size):
    p = nn.Parameter(torch.zeros(3, 8))
    opt = acmo.RowACMo([p], lr=0.1, **FUSED)
    for _ in range(2):
        p.grad = size * torch.arange(1.0, 25.0).reshape(3, 8)
        before = p.detach().clone()
        opt.step()
        moved = (p.detach() - before).square().mean(1).sqrt()
        torch.testing.assert_close(moved, torch.full((3,), 0.1))
