"""A gradient that is not finite: skipped, raised or let through, as asked, in every backend."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import acmo
from acmo import ACMo
from tests.support.backends import Backend, every_backend
from tests.support.steps import stepped

SCOPES = ("global", "group", "tensor")


def make(backend: Backend, **options: object) -> tuple[list[Tensor], acmo.ACMo]:
    torch.manual_seed(0)
    params = [torch.randn(1000, 1000, requires_grad=True), torch.randn(3, requires_grad=True)]
    return params, acmo.ACMo([{"params": [p]} for p in params], lr=0.01, **options, **backend)  # type: ignore[arg-type]


def give_grads(params: list[Tensor], bad: float | None = None) -> None:
    for p in params:
        p.grad = torch.ones_like(p)
    if bad is not None:
        assert params[0].grad is not None
        params[0].grad[517, 333] = bad


def everything(opt: acmo.ACMo) -> list[Tensor]:
    """θ and all state, in order, as copies."""
    found = []
    for group in opt.param_groups:
        for p in group["params"]:
            state = opt.state[p]
            found += [p.detach().clone(), *(state[k].clone() for k in ("momentum_buffer", "step", "beta_hat"))]
    return found


@every_backend
@pytest.mark.parametrize(
    ("scope", "bad"),
    [("global", math.nan), ("global", math.inf), ("global", -math.inf), ("group", math.nan), ("tensor", math.nan)],
)
def test_skip_on_one_bad_value_in_a_million_changes_nothing(scope: str, bad: float, backend: Backend):
    params, opt = make(backend, norm_scope=scope, psi="sqrt", max_grad_norm=5.0, weight_decay=0.1)
    for _ in range(2):
        give_grads(params)
        opt.step()
    before = everything(opt)
    give_grads(params, bad)
    opt.step()
    assert all(torch.equal(a, b) for a, b in zip(before, everything(opt), strict=True))
    assert opt.telemetry()["skipped_steps"] == 1
    give_grads(params)
    opt.step()
    after = everything(opt)
    assert all(torch.isfinite(t).all() for t in after)
    assert not torch.equal(before[0], after[0])
    assert float(after[2]) == float(before[2]) + 1  # t did not count the skipped step


@every_backend
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_skipped_unit_step_leaves_parameters_as_they_are(bad: float, scope: str, backend: Backend):
    params, opt = make(backend, norm_scope=scope, unit_step="rms")
    start = [p.detach().clone() for p in params]
    give_grads(params, bad)
    opt.step()
    assert all(torch.equal(p, q) for p, q in zip(params, start, strict=True))


@every_backend
def test_the_first_step_may_be_the_skipped_one(backend: Backend):
    params, opt = make(backend)
    twin, other = make(backend)
    start = [p.detach().clone() for p in params]
    give_grads(params, math.nan)
    opt.step()
    assert all(torch.equal(a, b) for a, b in zip(start, params, strict=True))
    for _ in range(2):
        give_grads(params)
        opt.step()
        give_grads(twin)
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(params, twin, strict=True))


@every_backend
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_raise_names_the_first_bad_parameter_and_changes_nothing(named: bool, scope: str, backend: Backend):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    params = list(model.parameters())
    given = list(model.named_parameters()) if named else params
    opt = acmo.ACMo(
        [{"params": given[:1]}, {"params": given[1:]}],
        nonfinite="raise", psi="sqrt", norm_scope=scope, **backend,
    )  # fmt: skip
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    before = [copy.deepcopy(p.detach()) for p in params] + [
        opt.state[p][k].clone() for p in params for k in ("momentum_buffer", "step", "beta_hat")
    ]
    for p in params[2:]:
        p.grad = torch.full_like(p, math.inf)
    with pytest.raises(Exception, match=r"1\.weight" if named else r"\b2\b") as raised:
        opt.step()
    assert "1.bias" not in str(raised.value)
    now = [p.detach() for p in params] + [
        opt.state[p][k] for p in params for k in ("momentum_buffer", "step", "beta_hat")
    ]
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
    assert opt.telemetry()["skipped_steps"] == 0


@every_backend
def test_raise_before_the_first_step_changes_nothing(backend: Backend):
    p = torch.ones(3, requires_grad=True)
    opt = acmo.ACMo([p], nonfinite="raise", **backend)
    p.grad = torch.tensor([1.0, math.nan, 1.0])
    with pytest.raises(Exception, match=r"not finite|non-?finite"):
        opt.step()
    assert p.tolist() == [1, 1, 1]
    p.grad = torch.ones(3)
    opt.step()
    assert opt.state[p]["momentum_buffer"].tolist() == [1, 1, 1]
    assert float(opt.state[p]["step"]) == 1


@every_backend
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_propagate_lets_it_through_as_torch_optim_does(bad: float, backend: Backend):
    params, opt = make(backend, nonfinite="propagate")
    twins = [p.detach().clone().requires_grad_() for p in params]
    sgd = torch.optim.SGD(twins, lr=0.01, momentum=0.9)
    for optimizer, ps in ((opt, params), (sgd, twins)):
        give_grads(ps, bad)
        optimizer.step()
    for p, q in zip(params, twins, strict=True):  # the first step is SGD's: β̂ is applied as 0
        torch.testing.assert_close(p, q, equal_nan=True)
    assert opt.telemetry()["skipped_steps"] == 0
    give_grads(params)
    opt.step()
    assert not torch.isfinite(params[0][517, 333])
    assert float(opt.state[params[0]]["step"]) == 2


@every_backend
def test_skipped_steps_are_saved_and_counted_on(backend: Backend):
    params, opt = make(backend)
    for bad in (None, math.nan, None, math.inf):
        give_grads(params, bad)
        opt.step()
    assert opt.telemetry()["skipped_steps"] == 2
    twins, other = make(backend)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    for bad in (math.nan, None):
        give_grads(twins, bad)
        other.step()
    assert other.telemetry()["skipped_steps"] == 3


@every_backend
@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
def test_a_grad_scalers_found_inf_skips_under_every_policy(policy: str, backend: Backend):
    p = torch.ones(4, requires_grad=True)
    opt = acmo.ACMo([p], lr=0.5, nonfinite=policy, **backend)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (1.0, math.inf, 1.0):
        opt.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(opt)
        scaler.update()
    # Two steps with g = 1 went through: θ = 1 − 0.5·1 − 0.5·1.9.
    assert p.tolist() == pytest.approx([1 - 0.5 - 0.5 * 1.9] * 4)
    assert float(opt.state[p]["step"]) == 2


@every_backend
def test_raise_also_speaks_of_a_decayed_gradient(backend):
    p = nn.Parameter(torch.tensor([1.0, torch.nan]))
    opt = ACMo([("bad", p)], weight_decay=0.1, nonfinite="raise", **backend)
    p.grad = torch.ones(2)
    with pytest.raises(FloatingPointError, match="bad"):
        opt.step()


@every_backend
def test_making_state_is_no_skipped_step(backend):
    model = nn.Linear(2, 1)
    opt = ACMo(model.parameters(), **backend)
    get_optimizer_state_dict(model, opt)
    assert opt.skipped_steps == 0


@every_backend
def test_the_count_of_skipped_steps_outlives_the_first_group(backend):
    p, opt = stepped(backend)
    p.grad = torch.full((3,), torch.nan)
    opt.step()
    opt.state_dict()
    q = nn.Parameter(torch.ones(2))
    opt.add_param_group({"params": [q]})
    del opt.param_groups[0]
    assert opt.skipped_steps == 1
    opt.param_groups.clear()
    opt.step()


@every_backend
def test_clipping_by_row_skips_a_whole_step_on_an_infinity(backend: Backend):
    """The clip factor is every row's, so one infinity leaves no row with a step of its own."""
    p = torch.ones(3, 4, requires_grad=True)
    opt = ACMo([p], lr=0.1, norm_scope="row", max_grad_norm=10.0, **backend)
    p.grad = torch.ones(3, 4)
    opt.step()
    before = [p.detach().clone(), opt.state[p]["momentum_buffer"].clone()]
    p.grad[0, 0] = math.inf
    opt.step()
    assert all(torch.equal(a, b) for a, b in zip(before, [p, opt.state[p]["momentum_buffer"]], strict=True))
    assert float(opt.state[p]["step"]) == 1
    assert opt.telemetry()["skipped_steps"] == 1


@every_backend
@pytest.mark.parametrize("scope", ["global", "tensor", "row", "column"])
def test_propagate_makes_a_unit_step_of_infinity_nan(scope: str, backend: Backend):
    p = torch.ones(3, 4, requires_grad=True)
    opt = ACMo([p], lr=0.1, norm_scope=scope, unit_step="rms", nonfinite="propagate", **backend)
    p.grad = torch.ones(3, 4)
    p.grad[1, 2] = math.inf
    opt.step()
    share = {"row": (slice(1, 2), slice(None)), "column": (slice(None), slice(2, 3))}.get(scope, ...)
    expected = torch.zeros(3, 4, dtype=torch.bool)
    expected[share] = True
    assert torch.equal(p.isnan(), expected)


@every_backend
def test_propagate_keeps_entries_beside_an_infinity(backend: Backend):
    p = torch.ones(4, requires_grad=True)
    opt = ACMo([p], lr=0.1, weight_decay=0.1, nonfinite="propagate", **backend)
    p.grad = torch.tensor([-math.inf, 1.0, 1.0, 1.0])
    opt.step()
    assert torch.isfinite(p).tolist() == [False, True, True, True]


@every_backend
def test_float16_moment_by_row_saturates(backend: Backend):
    p = torch.zeros(2, 3, dtype=torch.float16, requires_grad=True)
    opt = acmo.RowACMo([p], **backend)
    for _ in range(3):
        p.grad = torch.full((2, 3), 60000.0, dtype=torch.float16)
        opt.step()
    assert torch.isfinite(opt.state[p]["momentum_buffer"]).all()
