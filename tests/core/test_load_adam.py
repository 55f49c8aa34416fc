"""`load_state_dict` takes the first moment of Adam(W), and the state of acmo 0.1.0."""

import copy

import pytest
import torch
from torch import nn

from acmo import ACMo, RowACMo
from tests.support.backends import every_backend
from tests.support.states import adam_after, refused


@every_backend
@pytest.mark.parametrize("ours", [ACMo, RowACMo])
@pytest.mark.parametrize(
    "options",
    [{}, {"amsgrad": True}, {"foreach": True}, {"fused": True}, {"capturable": True}, {"maximize": True}],
    ids=str,
)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_training_resumes_from_adams_first_moment(kind, options, ours, backend):
    p, adam = adam_after(3, kind, **{key: value for key, value in options.items() if key != "capturable"})
    state = adam.state_dict()
    state["param_groups"][0].update(options)  # capturable: Adam does not step with it on the CPU
    opt = ours([p], lr=0.5, weight_decay=0.01, momentum=0.8, **backend)
    before = {key: value for key, value in opt.param_groups[0].items() if key != "params"}
    opt.load_state_dict(state)
    assert set(opt.state[p]) == {"momentum_buffer", "step"}
    assert torch.equal(opt.state[p]["momentum_buffer"], adam.state[p]["exp_avg"])
    assert float(opt.state[p]["step"]) == float(adam.state[p]["step"])
    after = {key: value for key, value in opt.param_groups[0].items() if key != "params"}
    assert after == before | {"maximize": options.get("maximize", False)}
    m = adam.state[p]["exp_avg"].clone()
    p.grad = torch.randn_like(p)
    opt.step()
    assert torch.equal(adam.state[p]["exp_avg"], m)  # a copy was loaded
    assert not torch.equal(opt.state[p]["momentum_buffer"], m)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_adams_moment_loads_in_the_dtype_of_the_parameter(dtype):
    p, adam = adam_after(2, dtype=dtype)
    opt = RowACMo([p])
    opt.load_state_dict(adam.state_dict())
    assert opt.state[p]["momentum_buffer"].dtype == dtype
    assert torch.equal(opt.state[p]["momentum_buffer"], adam.state[p]["exp_avg"])


def test_adam_saved_before_its_first_step_loads_without_state():
    p, adam = adam_after(0)
    opt = ACMo([p])
    opt.load_state_dict(adam.state_dict())
    assert not opt.state
    assert opt.param_groups[0]["lr"] == 0.3


def test_what_a_scheduler_left_in_a_group_stays_when_adam_loads():
    p, adam = adam_after(2)
    torch.optim.lr_scheduler.StepLR(adam, 1)
    opt = RowACMo([("weight", p)], lr=1e-3, projection=torch.sign)
    torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=9)
    mine = dict(opt.param_groups[0])
    opt.load_state_dict(adam.state_dict())
    assert opt.param_groups[0] == mine
    assert opt.param_groups[0]["projection"] is torch.sign


def test_adams_groups_that_do_not_match_are_refused():
    p, adam = adam_after(2)
    opt = RowACMo([{"params": [p]}, {"params": [nn.Parameter(torch.ones(2))]}])
    refused(opt, adam.state_dict(), "different number of parameter groups")
    wrong = adam.state_dict()
    wrong["state"][0]["exp_avg"] = torch.full((4, 3), float("nan"))
    refused(RowACMo([p]), wrong, "momentum_buffer of parameter 0.*nan")


# As acmo 0.1.0 has saved it: no unit_step, no momentum_scale.
STATE_OF_0_1_0 = {
    "state": {0: {"momentum_buffer": torch.tensor([[3.0, 4.0]]), "step": torch.tensor(5.0)}},
    "param_groups": [
        {
            "lr": 0.25, "momentum": 0.8, "delta": 1e-6, "weight_decay": 0.1, "decoupled_weight_decay": False,
            "norm_scope": "tensor", "psi": "identity", "max_grad_norm": 2.0, "projection": None,
            "momentum_dtype": None, "nonfinite": "raise", "maximize": False, "foreach": None, "fused": None,
            "differentiable": False, "skipped_steps": 3, "params": [0],
        }
    ],
}  # fmt: skip


@pytest.mark.parametrize("ours", [ACMo, RowACMo])
def test_a_state_of_acmo_0_1_0_loads_with_its_own_options(ours):
    p = nn.Parameter(torch.ones(1, 2))
    opt = ours([p])
    opt.load_state_dict(copy.deepcopy(STATE_OF_0_1_0))
    group = opt.param_groups[0]
    assert (group["lr"], group["norm_scope"], group["max_grad_norm"]) == (0.25, "tensor", 2.0)
    assert group["unit_step"] is False  # a rate of 0.25 was chosen for steps that are not of unit length
    assert opt.skipped_steps == 3
    p.grad = torch.ones(1, 2)
    opt.step()
    assert float(opt.state[p]["step"]) == 6
