"""The state: saved, loaded, copied, taken over from SGD, and edited by hand."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import acmo
from tests.support.backends import FOREACH, REFERENCE, Backend, every_backend
from tests.support.oracle import Oracle
from tests.support.scenario import as_array

every_psi = pytest.mark.parametrize("psi", ["identity", "sqrt"])


def make(backend: Backend, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[list[Tensor], acmo.ACMo]:
    torch.manual_seed(0)
    params = [torch.randn(s, dtype=dtype).requires_grad_() for s in [(40, 30), (7,), ()]]
    groups = [{"params": params[:1], "lr": 0.05, "momentum": 0.95}, {"params": params[1:], "weight_decay": 0.1}]
    return params, acmo.ACMo(groups, **options, **backend)


def walk(params: list[Tensor], opt: torch.optim.Optimizer, first: int, last: int) -> None:
    """Steps first..last-1, whose gradients depend on θ and on the number of the step alone."""
    for t in range(first, last):
        generator = torch.Generator().manual_seed(t)
        for p in params:
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
            p.grad = p.detach() + noise
        opt.step()


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Through a file, and back as untrusted."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


@pytest.mark.combinations
@every_backend
@every_psi
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
@pytest.mark.parametrize(
    ("dtype", "momentum_dtype"),
    [
        (torch.float32, None),
        (torch.float64, None),
        (torch.bfloat16, None),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
    ],
    ids=["f32", "f64", "bf16", "bf16-m32", "f32-m16"],
)
def test_save_load_and_resume_equals_an_unbroken_run(
    dtype: torch.dtype, momentum_dtype: torch.dtype | None, scope: str, psi: str, backend: Backend
):
    options = {"psi": psi, "norm_scope": scope, "momentum_dtype": momentum_dtype, "max_grad_norm": 20.0}
    params, opt = make(backend, dtype, **options)
    walk(params, opt, 0, 12)
    straight, other = make(backend, dtype, **options)
    walk(straight, other, 0, 6)
    state = saved({"params": [p.detach() for p in straight], "opt": other.state_dict()})
    resumed, again = make(backend, dtype, **options)
    with torch.no_grad():
        for p, q in zip(resumed, state["params"], strict=True):
            p.copy_(q)
    again.load_state_dict(state["opt"])
    walk(resumed, again, 6, 12)
    for p, q in zip(params, resumed, strict=True):
        assert torch.equal(p, q)
        for key, value in opt.state[p].items():
            assert torch.equal(value, again.state[q][key]), key
            assert value.dtype == again.state[q][key].dtype, key


@every_backend
def test_a_load_keeps_step_and_beta_hat_to_the_last_bit(backend: Backend):
    params, opt = make(backend, torch.bfloat16, psi="sqrt")
    walk(params, opt, 0, 300)  # more than bfloat16 can count
    twins, other = make(backend, torch.bfloat16, psi="sqrt")
    other.load_state_dict(saved(opt.state_dict()))
    for p, q in zip(params, twins, strict=True):
        assert float(other.state[q]["step"]) == 300
        assert torch.equal(other.state[q]["beta_hat"], opt.state[p]["beta_hat"])
        assert other.state[q]["beta_hat"].dtype == opt.state[p]["beta_hat"].dtype != torch.bfloat16


@every_backend
@every_psi
def test_sgd_state_dict_loads_and_training_resumes(psi: str, backend: Backend):
    p = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([p], lr=0.05, momentum=0.9, weight_decay=0.01)
    walk([p], sgd, 0, 5)
    opt = acmo.ACMo([p], lr=1.0, momentum=0.5, delta=1e-4, psi=psi, **backend)
    opt.load_state_dict(saved(sgd.state_dict()))
    group = opt.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.05, 0.9, 0.01)  # SGD's
    assert (group["delta"], group["psi"], group["norm_scope"]) == (1e-4, psi, "global")  # the constructor's
    oracle = Oracle(
        [{"params": [as_array(p)], "lr": 0.05, "momentum": 0.9, "delta": 1e-4, "weight_decay": 0.01}], psi=psi
    )
    oracle.m[0, 0] = as_array(sgd.state[p]["momentum_buffer"])
    for _ in range(3):
        p.grad = torch.randn_like(p)
        oracle.step([[as_array(p.grad)]])
        opt.step()
        torch.testing.assert_close(p.detach(), torch.from_numpy(oracle.theta[0, 0]), rtol=1e-12, atol=1e-12)
    m = opt.state[p]["momentum_buffer"]
    torch.testing.assert_close(m, torch.from_numpy(oracle.m[0, 0]), rtol=1e-12, atol=1e-12)


@every_backend
@pytest.mark.parametrize("theirs", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_sgds_choice_of_a_backend_is_not_taken_over(theirs: dict[str, bool], backend: Backend):
    p = torch.ones(3, requires_grad=True)
    sgd = torch.optim.SGD([p], lr=0.1, momentum=0.9, **theirs)
    walk([p], sgd, 0, 2)
    opt = acmo.ACMo([p], **backend)
    mine = {key: opt.param_groups[0][key] for key in ("foreach", "fused")}
    state = sgd.state_dict()
    opt.load_state_dict(state)
    assert {key: opt.param_groups[0][key] for key in mine} == mine
    assert {key: state["param_groups"][0][key] for key in theirs} == theirs  # what was given stays as it was


@every_backend
def test_the_state_of_sgd_without_momentum_loads_too(backend: Backend):
    p = torch.ones(3, requires_grad=True)
    sgd = torch.optim.SGD([p], lr=0.1)
    walk([p], sgd, 0, 2)
    opt = acmo.ACMo([p], **backend)
    opt.load_state_dict(saved(sgd.state_dict()))
    p.grad = torch.ones(3)
    opt.step()
    assert opt.state[p]["momentum_buffer"].tolist() == [1, 1, 1]


@every_backend
def test_a_deep_copy_goes_its_own_way_as_the_original_would(backend: Backend):
    params, opt = make(backend, psi="sqrt", projection=acmo.projections.Box(-1.0, 1.0))
    walk(params, opt, 0, 4)
    twins, other = copy.deepcopy((params, opt))
    before = [p.detach().clone() for p in params]
    walk(twins, other, 4, 8)
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    walk(params, opt, 4, 8)
    assert all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))


def test_what_a_loaded_state_lacks_comes_from_the_constructor():
    params, opt = make(FOREACH)
    walk(params, opt, 0, 1)
    state = opt.state_dict()
    for group in state["param_groups"]:
        for name in ("delta", "psi", "nonfinite", "max_grad_norm", "decoupled_weight_decay"):
            del group[name]
    _, other = make(FOREACH, delta=0.25, psi="sqrt", nonfinite="raise", max_grad_norm=7.0, decoupled_weight_decay=True)
    other.load_state_dict(state)
    for group in other.param_groups:
        assert (group["delta"], group["psi"], group["nonfinite"]) == (0.25, "sqrt", "raise")
        assert (group["max_grad_norm"], group["decoupled_weight_decay"]) == (7.0, True)


def test_live_things_never_enter_a_state_dict_and_outlive_a_load():
    box = acmo.projections.Box(-0.1, 0.1)
    params, opt = make(FOREACH, projection=box)
    walk(params, opt, 0, 2)
    state = opt.state_dict()
    assert all(not callable(v) for group in state["param_groups"] for v in group.values())
    assert {k for s in state["state"].values() for k in s} <= {"momentum_buffer", "step", "beta_hat"}
    opt.load_state_dict(saved(state))
    walk(params, opt, 2, 4)
    assert all(p.abs().max() <= 0.1 for p in params)


@every_backend
@pytest.mark.parametrize("edit", ["mul", "copy", "replace"])
def test_a_moment_edited_by_hand_is_noticed(edit: str, backend: Backend):
    p = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    opt = acmo.ACMo([p], lr=1.0, momentum=0.5, delta=0.0, **backend)
    for _ in range(2):
        p.grad = torch.tensor([0.0, 3.0, 4.0], dtype=torch.float64)
        opt.step()
    m, new = opt.state[p]["momentum_buffer"], torch.tensor([10.0, 0.0, 0.0], dtype=torch.float64)
    if edit == "mul":
        new = m * 4
        m.mul_(4)
    elif edit == "copy":
        m.copy_(new)
    else:
        opt.state[p]["momentum_buffer"] = new.clone()
    opt.step()
    expected = p.grad + 0.5 * 5 / new.norm() * new
    torch.testing.assert_close(opt.state[p]["momentum_buffer"], expected, rtol=1e-14, atol=1e-14)


@every_backend
@pytest.mark.parametrize("decoupled", [False, True])
def test_state_dict_of_a_new_optimizer_creates_no_state(decoupled: bool, backend: Backend):
    def fresh() -> tuple[torch.nn.Module, acmo.ACMo]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        return model, acmo.ACMo(
            model.parameters(), weight_decay=0.1, decoupled_weight_decay=decoupled, psi="sqrt", **backend
        )

    (asked, opt), (left, other) = fresh(), fresh()
    get_optimizer_state_dict(asked, opt)
    for p, q in zip(asked.parameters(), left.parameters(), strict=True):
        assert torch.equal(p, q)
        assert not opt.state[p]["momentum_buffer"].any()
        assert float(opt.state[p]["step"]) == 0
    assert opt.param_groups[0]["lr"] == 0.3
    walk(list(asked.parameters()), opt, 0, 3)
    walk(list(left.parameters()), other, 0, 3)
    assert all(torch.equal(p, q) for p, q in zip(asked.parameters(), left.parameters(), strict=True))


@every_backend
def test_the_backends_read_each_others_state(backend: Backend):
    params, opt = make(REFERENCE, torch.float64, psi="sqrt")
    twins, other = make(backend, torch.float64, psi="sqrt")
    walk(params, opt, 0, 5)
    state = saved(opt.state_dict())
    for group in state["param_groups"]:
        for name in ("foreach", "fused"):
            del group[name]
    other.load_state_dict(state)
    with torch.no_grad():
        for p, q in zip(params, twins, strict=True):
            q.copy_(p)
    walk(params, opt, 5, 10)
    walk(twins, other, 5, 10)
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


def test_the_state_survives_a_file_on_disk(tmp_path: Path):
    params, opt = make(FOREACH, psi="sqrt", momentum_dtype=torch.bfloat16)
    walk(params, opt, 0, 2)
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    state = torch.load(tmp_path / "opt.pt", weights_only=True)
    assert state["param_groups"][0]["momentum_dtype"] == "bfloat16"


def test_a_deep_copy_counts_the_skipped_steps_too():
    p = torch.nn.Parameter(torch.ones(2))
    opt = acmo.ACMo([p])
    p.grad = torch.tensor([torch.nan, 1.0])
    opt.step()
    assert copy.deepcopy(opt).skipped_steps == opt.skipped_steps == 1
