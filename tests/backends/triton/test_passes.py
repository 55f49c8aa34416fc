"""Steps at global, group and tensor scope by the Triton kernels, in the interpreter."""

import pytest
import torch
from torch import nn

import acmo
from tests.support.backends import FUSED, REFERENCE
from tests.support.scenario import GROUPS, SHAPES, Scenario, decayed
from tests.support.triton_interpreter import needs_triton
from tests.support.twin_steps import assert_twins_agree, run_twins

pytestmark = [needs_triton, pytest.mark.usefixtures("interpreter")]
SCOPES = ("global", "group", "tensor")
PAIRS = [
    (torch.float64, None),
    (torch.float32, None),
    (torch.bfloat16, None),
    (torch.float16, None),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.float16),
    (torch.float64, torch.float32),
]


def name_pair(pair):
    return "-".join(str(dtype).replace("torch.", "") for dtype in pair)


@pytest.mark.combinations
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("decay", ["none", "coupled", "decoupled"])
@pytest.mark.parametrize("psi", ["identity", "sqrt"])
@pytest.mark.parametrize("scope", SCOPES)
def test_float64_steps_agree_with_the_oracle(scope, psi, decay, clip):
    wide = {"norm_scope": scope, "psi": psi, "max_grad_norm": clip}
    scenario = Scenario(SHAPES, decayed(GROUPS, decay), wide, FUSED, missing=0.3)
    for _ in range(4):
        scenario.step()
    assert scenario.theta_error() < 1e-12
    assert scenario.moment_error() < 1e-12


@pytest.mark.parametrize("pair", PAIRS[1:6], ids=name_pair)
def test_dtypes_agree_with_the_reference(pair):
    dtype, moment = pair
    twins = run_twins([(3, 5), (300,)], dtype, momentum_dtype=moment, weight_decay=0.1, count=2)
    assert_twins_agree(*twins)


@pytest.mark.parametrize("scope", SCOPES)
def test_unit_steps_agree_with_the_reference(scope):
    assert_twins_agree(*run_twins([(3, 5), (300,), ()], torch.float64, norm_scope=scope, unit_step=True, count=2))


def test_cancelled_moment_of_a_unit_step_becomes_zero():
    p = nn.Parameter(torch.ones(300))
    opt = acmo.ACMo([p], lr=0.1, momentum=1.0, delta=0.0, unit_step=True, **FUSED)
    for sign in (1.0, -1.0):
        before = p.detach().clone()
        p.grad = sign * torch.linspace(1.0, 2.0, 300)
        opt.step()
    assert not opt.state[p]["momentum_buffer"].any()
    assert torch.equal(p, before)


@pytest.mark.slow
@pytest.mark.combinations
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("decay", ["none", "coupled", "decoupled"])
@pytest.mark.parametrize("pair", PAIRS, ids=name_pair)
@pytest.mark.parametrize("scope", SCOPES)
def test_all_dtypes_agree_with_the_reference(scope, pair, decay, unit):
    dtype, moment = pair
    options = {"weight_decay": 0.0 if decay == "none" else 0.1, "decoupled_weight_decay": decay == "decoupled"}
    twins = run_twins([(3, 5), (300,), ()], dtype, norm_scope=scope, unit_step=unit, momentum_dtype=moment, **options)
    assert_twins_agree(*twins)


def test_telemetry_is_that_of_the_reference():
    ours, theirs = run_twins([(3, 5), (300,)], torch.float64, norm_scope="group", weight_decay=0.1, max_grad_norm=2.0)
    mine, other = ours.telemetry(), theirs.telemetry()
    scopes = zip(mine.pop("scopes"), other.pop("scopes"), strict=True)
    assert mine == pytest.approx(other, rel=1e-9, nan_ok=True)
    for a, b in scopes:
        assert a == pytest.approx(b, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("shapes", [[(0,), (5,)], [(0, 3)], [(257,), (1,), (256,), (1025,)]], ids=str)
def test_empty_and_odd_sizes_agree_with_the_reference(shapes):
    assert_twins_agree(*run_twins(shapes, torch.float32, norm_scope="tensor"))


def test_misaligned_views_agree_with_the_reference():
    assert_twins_agree(*run_twins([(513,), (300,)], torch.float32, offset=1))


def test_channels_last_parameters_are_stepped_in_place():
    def build(backend):
        p = nn.Parameter(torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last))
        p.grad = (p.detach() * 0.1 + 1).to(memory_format=torch.channels_last)
        return p, acmo.ACMo([p], lr=0.1, **backend)

    (p, ours), (q, theirs) = build(FUSED), build(REFERENCE)
    for _ in range(2):
        ours.step()
        theirs.step()
    assert p.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(p, q)


@pytest.mark.parametrize("scope", SCOPES)
def test_nonfinite_gradient_skips_the_step_without_a_trace(scope):
    p = nn.Parameter(torch.ones(300))
    opt = acmo.ACMo([p], lr=0.1, norm_scope=scope, **FUSED)
    p.grad = torch.full_like(p, 0.5)
    opt.step()
    before = p.detach().clone(), opt.state[p]["momentum_buffer"].clone(), opt.telemetry()
    p.grad[7] = torch.inf
    opt.step()
    assert torch.equal(p, before[0])
    assert torch.equal(opt.state[p]["momentum_buffer"], before[1])
    assert float(opt.state[p]["step"]) == 1
    assert opt.skipped_steps == 1
    scopes = opt.telemetry() | {"skipped_steps": 0}
    assert repr(scopes) == repr(before[2])  # of the last step that was taken


def test_nonfinite_raise_names_the_parameter_and_changes_nothing():
    params = [("first", nn.Parameter(torch.ones(3))), ("second", nn.Parameter(torch.ones(4)))]
    opt = acmo.ACMo(params, lr=0.1, nonfinite="raise", **FUSED)
    for _, p in params:
        p.grad = torch.ones_like(p)
    params[1][1].grad[0] = torch.nan
    with pytest.raises(FloatingPointError, match="second"):
        opt.step()
    assert all(torch.equal(p, torch.ones_like(p)) for _, p in params)


def test_nonfinite_propagate_computes_with_nan():
    p = nn.Parameter(torch.ones(3))
    opt = acmo.ACMo([p], lr=0.1, nonfinite="propagate", **FUSED)
    p.grad = torch.tensor([1.0, torch.nan, 1.0])
    opt.step()
    assert p.isnan().any()


@pytest.mark.parametrize("overflow", [0.0, 1.0])
def test_grad_scaler_unscales_and_skips(overflow):
    p, q = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    ours, theirs = (
        acmo.ACMo([p], lr=0.1, weight_decay=0.1, **FUSED),
        acmo.ACMo([q], lr=0.1, weight_decay=0.1, **REFERENCE),
    )
    p.grad, q.grad = torch.full_like(p, 8.0), torch.full_like(q, 2.0)
    ours.grad_scale, ours.found_inf = torch.tensor(4.0), torch.tensor(overflow)
    ours.step()
    if not overflow:
        theirs.step()
    torch.testing.assert_close(p, q)
    assert ours.skipped_steps == overflow


@pytest.mark.parametrize("decoupled", [False, True])
def test_tensor_lr_is_read_at_every_step(decoupled):
    lr = torch.tensor(0.1)
    p, q = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    options = {"weight_decay": 0.1, "decoupled_weight_decay": decoupled}
    ours, theirs = acmo.ACMo([p], lr=lr, **options, **FUSED), acmo.ACMo([q], lr=lr, **options, **REFERENCE)
    for value in (0.1, 0.5, 0.02):
        lr.fill_(value)
        p.grad, q.grad = torch.full_like(p, 2.0), torch.full_like(q, 2.0)
        ours.step()
        theirs.step()
    torch.testing.assert_close(p, q)


def test_state_making_step_of_a_checkpoint_changes_nothing():
    p = nn.Parameter(torch.ones(5))
    opt = acmo.ACMo([p], lr=0.0, **FUSED)
    p.grad = torch.zeros_like(p)
    opt.step()
    assert float(opt.state[p]["step"]) == 0
    assert opt.skipped_steps == 0


def test_version_counters_notice_a_step():
    p = nn.Parameter(torch.ones(5))
    opt = acmo.ACMo([p], lr=0.1, **FUSED)
    p.grad = torch.ones_like(p)
    product = (p * p).sum()
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_moments_edited_between_steps_are_summed_again():
    p, q = nn.Parameter(torch.ones(300)), nn.Parameter(torch.ones(300))
    ours, theirs = acmo.ACMo([p], lr=0.1, **FUSED), acmo.ACMo([q], lr=0.1, **REFERENCE)
    for _ in range(3):
        p.grad, q.grad = torch.full_like(p, 2.0), torch.full_like(q, 2.0)
        ours.step()
        theirs.step()
        for opt, x in ((ours, p), (theirs, q)):
            opt.state[x]["momentum_buffer"].mul_(3.0)
    torch.testing.assert_close(p, q)


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
def test_a_thousand_tensors_agree_with_the_reference(scope):
    shapes = [(1 + k % 7,) for k in range(1000)]
    assert_twins_agree(*run_twins(shapes, torch.float32, norm_scope=scope, count=2))
