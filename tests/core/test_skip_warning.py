"""The first skipped step warns once, where that needs no waiting, and names the parameter."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import acmo
from acmo.skip_warning import SkippedStep
from tests.support.backends import Backend, every_backend


def make(**options: object) -> tuple[nn.Module, acmo.ACMo]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    return model, acmo.ACMo(model.named_parameters(), **options)  # type: ignore[arg-type]


def step(model: nn.Module, opt: torch.optim.Optimizer, bad: str | None = None) -> None:
    for name, p in model.named_parameters():
        p.grad = torch.ones_like(p)
        if name == bad:
            p.grad.view(-1)[0] = torch.nan
    opt.step()


@every_backend
@pytest.mark.parametrize("scope", ["global", "tensor", "row"])
def test_first_skipped_step_warns_once_and_names_the_parameter(scope: str, backend: Backend):
    model, opt = make(norm_scope=scope, **backend)
    step(model, opt)
    with pytest.warns(SkippedStep, match=r"skipped: the gradient of parameter '1\.weight' is not finite\. To find"):
        step(model, opt, bad="1.weight")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, opt, bad="1.weight")
        assert opt.skipped_steps == 2
        opt.telemetry()


def test_warning_points_at_the_line_that_called_step():
    model, opt = make()
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.inf)
    with pytest.warns(SkippedStep) as caught:
        opt.step()
    assert caught[0].filename == __file__


def test_other_policies_do_not_warn():
    model, opt = make(nonfinite="propagate")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, opt, bad="0.weight")


def test_a_grad_scaler_that_skips_steps_does_not_warn():
    model, opt = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (1.0, torch.inf, 1.0):
            opt.zero_grad()
            scaler.scale(factor * model(torch.ones(1, 4)).sum()).backward()
            scaler.step(opt)
            scaler.update()
        assert opt.skipped_steps == 1


def test_a_count_that_only_the_device_knows_warns_when_it_is_read():
    model, opt = make()
    step(model, opt)
    opt._step_log.skipped = torch.tensor(3)  # as a kernel on a GPU leaves it, which no step waits for
    with pytest.warns(SkippedStep, match="a step was skipped: a gradient is not finite"):
        assert opt.telemetry()["skipped_steps"] == 3


def test_step_in_backward_warns_too():
    model, _ = make()
    opt = acmo.step_in_backward(model, acmo.ACMo, norm_scope="tensor")
    (torch.nan * model(torch.ones(1, 4)).sum()).backward()
    with pytest.warns(SkippedStep):
        opt.step()


def test_a_loaded_count_does_not_warn_again():
    model, opt = make()
    with pytest.warns(SkippedStep):
        step(model, opt, bad="0.bias")
    state = copy.deepcopy(opt.state_dict())
    other_model, other = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(state)
        step(other_model, other)
        assert other.skipped_steps == 1


@pytest.mark.slow
def test_a_compiled_step_warns_when_the_count_is_read():
    model, opt = make(foreach=True)
    compiled = torch.compile(opt.step, fullgraph=True)
    for bad in (None, "0.weight"):
        for name, p in model.named_parameters():
            p.grad = torch.full_like(p, torch.nan if name == bad else 1.0)
        compiled()
    with pytest.warns(SkippedStep):
        assert opt.skipped_steps == 1
