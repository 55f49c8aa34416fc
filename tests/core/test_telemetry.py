"""What `telemetry()` tells of a step is what a direct computation finds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import acmo
from acmo import ACMo
from tests.support.backends import REFERENCE, Backend, every_backend
from tests.support.oracle import Array, Index, Oracle
from tests.support.scenario import GROUPS, SHAPES, Scenario, decayed

PLAIN = {
    "grad_norm", "moment_norm", "beta_hat", "cos_grad_moment", "cos_update_grad", "cos_update_moment",
}  # fmt: skip


def cos(a: Array, b: Array) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else math.nan


def direct(oracle: Oracle, indices: list[Index]) -> dict[str, float]:
    """Norms and angles from the vectors themselves: raw g, line 4's g, m_{t-1} and m_t."""
    vectors = {
        name: np.concatenate([np.asarray(oracle.trace[k][name]).ravel() for k in indices])
        for name in ("raw", "g", "m_old", "m")
    }
    beta_hats = {oracle.trace[k]["beta_hat"] for k in indices}
    # Of several β̂: the one that would make β̂m_{t-1} as long as it is.
    pulled = np.concatenate([oracle.trace[k]["beta_hat"] * oracle.trace[k]["m_old"].ravel() for k in indices])
    length = float(np.linalg.norm(vectors["m_old"]))
    return {
        "beta_hat": beta_hats.pop() if len(beta_hats) == 1 else float(np.linalg.norm(pulled)) / length,
        "grad_norm": float(np.linalg.norm(vectors["raw"])),
        "moment_norm": float(np.linalg.norm(vectors["m"])),
        "cos_grad_moment": cos(vectors["g"], vectors["m_old"]),
        "cos_update_grad": cos(vectors["m"], vectors["g"]),
        "cos_update_moment": cos(vectors["m"], vectors["m_old"]),
    }


def assert_tells(told: dict[str, Any], expected: dict[str, float], tolerance: float = 1e-9) -> None:
    for name, value in expected.items():
        assert type(told[name]) is float, name
        assert told[name] == pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True), name


@pytest.mark.combinations
@every_backend
@pytest.mark.parametrize("decay", ["none", "coupled"])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
def test_norms_and_angles_are_those_of_the_whole_vector(scope: str, clip: float | None, decay: str, backend: Backend):
    wide = {"norm_scope": scope, "max_grad_norm": clip}
    scenario = Scenario(SHAPES, decayed(GROUPS, decay), wide, backend, missing=0.2)
    for _ in range(12):
        scenario.step()
        told = scenario.opt.telemetry()
        assert_tells(told, direct(scenario.oracle, sorted(scenario.oracle.trace)))
        assert told["clip_scale"] == pytest.approx(scenario.oracle.clip_scale)
        assert told["skipped_steps"] == 0


@every_backend
@pytest.mark.parametrize("scope", ["group", "tensor"])
def test_scopes_report_the_same_per_group_or_tensor(scope: str, backend: Backend):
    scenario = Scenario(SHAPES, decayed(GROUPS, "coupled"), {"norm_scope": scope}, backend, missing=0.2)
    for _ in range(12):
        scenario.step()
        told = scenario.opt.telemetry()["scopes"]
        active = [[k for k in scope_ if k in scenario.oracle.trace] for scope_ in scenario.oracle.scopes()]
        active = [indices for indices in active if indices]
        assert [(t["group"], t.get("index")) for t in told] == [
            (indices[0][0], indices[0][1] if scope == "tensor" else None) for indices in active
        ]
        for one, indices in zip(told, active, strict=True):
            assert_tells(one, direct(scenario.oracle, indices))


def test_single_scope_has_no_scopes_in_its_telemetry():
    scenario = Scenario(SHAPES, GROUPS, {"norm_scope": "global"}, {})
    scenario.step()
    assert "scopes" not in scenario.opt.telemetry()


@every_backend
def test_float32_angles_are_good_to_four_digits(backend: Backend):
    scenario = Scenario([[(500, 40)]], [{"momentum": 0.9}], {}, backend, torch.float32)
    for _ in range(5):
        scenario.step()
    assert_tells(scenario.opt.telemetry(), direct(scenario.oracle, [(0, 0)]), tolerance=1e-4)


@every_backend
@pytest.mark.parametrize("psi", ["identity", "sqrt"])
def test_beta_hat_is_the_applied_one(psi: str, backend: Backend):
    scenario = Scenario([[(5,), (3,)]], [{"momentum": 0.8, "delta": 0.1}], {"psi": psi}, backend)
    for _ in range(6):
        scenario.step()
        applied = scenario.oracle.trace[0, 0]["beta_hat"]
        assert scenario.opt.telemetry()["beta_hat"] == pytest.approx(applied, rel=1e-12)


@every_backend
def test_first_step_has_no_angle_with_the_missing_moment(backend: Backend):
    scenario = Scenario([[(5,)]], [{"momentum": 0.9}], {}, backend)
    scenario.step()
    told = scenario.opt.telemetry()
    assert math.isnan(told["cos_grad_moment"])
    assert math.isnan(told["cos_update_moment"])
    assert told["cos_update_grad"] == pytest.approx(1)
    assert told["beta_hat"] == 0
    assert told["clip_scale"] == 1
    scenario.step([[torch.zeros(5, dtype=torch.float64)]])
    told = scenario.opt.telemetry()
    assert told["grad_norm"] == told["moment_norm"] == 0
    assert all(math.isnan(told[name]) for name in told if name.startswith("cos"))


@every_backend
def test_telemetry_is_empty_before_the_first_step(backend: Backend):
    scenario = Scenario(SHAPES, GROUPS, {}, backend)
    assert scenario.opt.telemetry() == {}
    scenario.step()
    assert set(scenario.opt.telemetry()) >= PLAIN | {"clip_scale", "skipped_steps"}


@every_backend
def test_skipped_step_keeps_the_telemetry_of_the_last_one(backend: Backend):
    scenario = Scenario([[(5,)]], [{"momentum": 0.9}], {}, backend)
    for _ in range(3):
        scenario.step()
    before = scenario.opt.telemetry()
    scenario.step([[torch.full((5,), math.nan, dtype=torch.float64)]])
    assert scenario.opt.telemetry() == before | {"skipped_steps": 1}


@every_backend
def test_so_does_a_skipped_step_of_other_parameters(backend: Backend):
    scenario = Scenario([[(5,), (3,)]], [{"momentum": 0.9}], {}, backend)
    for _ in range(3):
        scenario.step()
    before = scenario.opt.telemetry()
    scenario.step([[torch.full((5,), math.nan, dtype=torch.float64), None]])
    assert scenario.opt.telemetry() == before | {"skipped_steps": 1}


@every_backend
def test_maximize_turns_neither_norms_nor_angles(backend: Backend):
    told = []
    for sign in (1.0, -1.0):
        p = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        opt = acmo.ACMo([p], maximize=sign < 0, **backend)
        for t in range(3):
            p.grad = sign * torch.arange(4, dtype=torch.float64).add(t).cos()
            opt.step()
        told.append(opt.telemetry())
    assert told[0] == pytest.approx(told[1])


@pytest.mark.parametrize("backend", [{}, REFERENCE])  # foreach keeps the last five sets: it does not wait to know
def test_telemetry_keeps_the_last_step_through_many_skips(backend):
    ps = [nn.Parameter(torch.ones(2)) for _ in range(8)]
    opt = ACMo(ps, **backend)
    for p in ps:
        p.grad = torch.ones(2)
    opt.step()
    for k in range(7):
        for p in ps:
            p.grad = None
        ps[k].grad = torch.full((2,), torch.nan)
        opt.step()
    assert opt.skipped_steps == 7
    assert opt.telemetry()["grad_norm"] == pytest.approx(4.0)


@pytest.mark.filterwarnings("ignore:Profiler record function")
@pytest.mark.parametrize("cls", [acmo.RowACMo, acmo.SpectralACMo])
def test_rows_of_a_compiled_step_that_is_skipped_are_the_last(cls: type[ACMo]):
    torch._dynamo.reset()
    params = [nn.Parameter(torch.randn(shape)) for shape in [(12, 14), (7,)]]
    opt = cls(params)
    step = torch.compile(opt.step, backend="eager")
    reports = []
    for overflow in (0.0, 0.0, 1.0):
        for p in params:
            p.grad = torch.randn(p.shape)
        opt.grad_scale, opt.found_inf = torch.ones(()), torch.tensor(overflow)  # type: ignore[attr-defined]
        step()
        reports.append(opt.telemetry())
    assert reports[2] == {**reports[1], "skipped_steps": 1}
    assert not math.isnan(reports[2]["cos_update_grad"])


@every_backend
def test_cosines_by_row_stay_within_1_and_nan_stays(backend: Backend):
    p = nn.Parameter(torch.zeros(2, 64))
    opt = acmo.RowACMo([p], nonfinite="propagate", **backend)
    for size in (1e-44, 2e-44, 1e-43):  # subnormal entries have few digits
        p.grad = torch.full((2, 64), size)
        opt.step()
        shown = opt.telemetry()
        assert -1 <= shown["tensors"][0]["cos_mean"] <= 1
        assert -1 <= shown["cos_update_grad"] <= 1
    p.grad[0, 0] = math.nan
    opt.step()
    row = opt.telemetry()["tensors"][0]
    assert math.isnan(row["cos_mean"])
    assert math.isnan(row["cos_min"])
