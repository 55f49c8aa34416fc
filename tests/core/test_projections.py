"""Π of line 8: the nearest feasible point, and the step that ends there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

import acmo
from acmo import ACMo
from acmo.parameter_checks import check_params
from acmo.projections import Box, L2Ball, NonNegative, Simplex
from tests.support.backends import Backend, every_backend
from tests.support.scenario import GROUPS, SHAPES, Scenario, decayed

vectors = st.lists(st.floats(-50, 50), min_size=1, max_size=12).map(lambda v: torch.tensor(v, dtype=torch.float64))

# Each with a way to make a feasible point of any vector, and a test of being one.
SETS: dict[str, tuple[Any, Any, Any]] = {
    "box": (Box(-1.0, 2.0), lambda v: v.clamp(-1, 2), lambda v: v.min() >= -1 and v.max() <= 2),
    "nonnegative": (NonNegative(), lambda v: v.abs(), lambda v: v.min() >= 0),
    "ball": (L2Ball(3.0), lambda v: 3 * v / max(3.0, float(v.norm())), lambda v: v.norm() <= 3 + 1e-12),
    "simplex": (Simplex(), lambda v: v.softmax(0), lambda v: v.min() >= 0 and abs(v.sum() - 1) < 1e-12),
}
every_set = pytest.mark.parametrize("name", SETS)


@every_set
@settings(max_examples=60)
@given(x=vectors, seed=st.integers(0, 99))
def test_the_projection_is_feasible_idempotent_and_nearest(name: str, x: torch.Tensor, seed: int):
    project, make_feasible, is_feasible = SETS[name]
    before = x.clone()
    y = project(x)
    assert torch.equal(x, before)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    torch.testing.assert_close(project(y), y, rtol=1e-12, atol=1e-12)
    # The variational inequality says nearest: ⟨x − y, z − y⟩ ≤ 0 for every feasible z.
    generator = torch.Generator().manual_seed(seed)
    for _ in range(10):
        z = make_feasible(torch.randn(x.shape, generator=generator, dtype=x.dtype) * 5)
        assert float((x - y) @ (z - y)) <= 1e-9 * (1 + float(x.norm()) ** 2)
    assert is_feasible(y)


def test_the_simplex_agrees_with_a_general_solver():
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = rng.normal(size=6) * 2
        solved = minimize(
            lambda y, x=x: np.sum((y - x) ** 2),
            np.full(6, 1 / 6),
            jac=lambda y, x=x: 2 * (y - x),
            bounds=[(0, None)] * 6,
            constraints={"type": "eq", "fun": lambda y: y.sum() - 1},
            options={"ftol": 1e-14},
            method="SLSQP",
        )
        np.testing.assert_allclose(Simplex()(torch.from_numpy(x)).numpy(), solved.x, atol=1e-6)


@every_set
def test_all_entries_of_a_parameter_are_one_vector(name: str):
    project, _, _ = SETS[name]
    x = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    assert torch.equal(project(x), project(x.flatten()).view(4, 5))
    assert project(torch.zeros(0)).shape == (0,)


def test_inside_the_ball_nothing_moves():
    x = torch.tensor([0.1, -0.7])
    assert torch.equal(L2Ball(1.0)(x), x)


@pytest.mark.parametrize(
    ("make", "quoted"), [(lambda: Box(2.0, 1.0), "2.*1"), (lambda: L2Ball(-1.0), "-1"), (lambda: L2Ball(0.0), "0")]
)
def test_an_empty_set_is_refused(make: Any, quoted: str):
    with pytest.raises(ValueError, match=quoted):
        make()


@pytest.mark.combinations
@every_backend
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
def test_projected_steps_agree_with_the_oracle(decay: str, scope: str, backend: Backend):
    # A group each: entries in a box, any callable, a ball; the oracle has them in NumPy.
    def ball(x: np.ndarray) -> np.ndarray:
        return x * min(1.0, 0.5 / max(float(np.linalg.norm(x)), 1e-300))

    ours = [Box(-0.2, 0.1), lambda x: x.clamp(min=0).mul(0.5), L2Ball(0.5)]
    theirs = [lambda x: np.clip(x, -0.2, 0.1), lambda x: np.maximum(x, 0) * 0.5, ball]
    groups = [g | {"projection": p} for g, p in zip(decayed(GROUPS, decay), theirs, strict=True)]
    scenario = Scenario(SHAPES, groups, {"norm_scope": scope}, backend, projections=ours)
    for _ in range(30):
        scenario.step()
    assert scenario.theta_error() < 1e-12
    assert scenario.moment_error() < 1e-12


@every_backend
def test_a_projection_may_be_given_to_one_group_alone(backend: Backend):
    a, b = (torch.zeros(3, requires_grad=True) for _ in range(2))
    opt = acmo.ACMo([{"params": [a], "projection": NonNegative()}, {"params": [b]}], lr=1.0, **backend)
    a.grad = b.grad = torch.ones(3)
    opt.step()
    assert a.tolist() == [0, 0, 0]
    assert b.tolist() == [-1, -1, -1]


@every_backend
def test_a_skipped_step_does_not_project(backend: Backend):
    p = torch.full((3,), 5.0, requires_grad=True)
    opt = acmo.ACMo([p], projection=Box(-1.0, 1.0), **backend)
    p.grad = torch.tensor([1.0, float("nan"), 1.0])
    opt.step()
    assert p.tolist() == [5, 5, 5]


@every_backend
def test_parameters_without_a_gradient_are_not_projected(backend: Backend):
    a, b = (torch.full((2,), 5.0, requires_grad=True) for _ in range(2))
    opt = acmo.ACMo([a, b], projection=Box(-1.0, 1.0), **backend)
    a.grad = torch.zeros(2)
    opt.step()
    assert a.tolist() == [1, 1]
    assert b.tolist() == [5, 5]


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f16", "bf16", "f32", "f64"])


@pytest.mark.combinations
@every_dtype
@pytest.mark.parametrize("n", [3, 1000, 300_000])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 30.0])
def test_the_simplex_is_met_as_well_as_the_dtype_allows(spread: float, n: int, dtype: torch.dtype):
    x = (torch.randn(n, generator=torch.Generator().manual_seed(0)) * spread).to(dtype)
    y = Simplex()(x)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert y.min() >= 0
    # Not the sum of n roundings: one, of the largest entry.
    assert abs(float(y.double().sum()) - 1) <= max(torch.finfo(dtype).eps * float(y.max()), 1e-13)
    # Each entry is one of the two numbers around the true one, so none is further from it than a step of the dtype.
    true = Simplex()(x.double())
    step = torch.finfo(dtype).eps * torch.maximum(true, torch.tensor(torch.finfo(dtype).tiny, dtype=torch.float64))
    assert ((y.double() - true).abs() <= step * (1 + 1e-9) + 1e-15).all()


@pytest.mark.combinations
@every_dtype
@pytest.mark.parametrize("n", [1, 3, 1000, 300_000])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_the_ball_is_never_left_by_rounding(size: float, n: int, dtype: torch.dtype):
    x = (torch.randn(n, generator=torch.Generator().manual_seed(0)).clamp(-6, 6) * size).to(dtype)
    x[0] = size
    y = L2Ball(0.3)(x)
    slack = 1e-13 if dtype == torch.float64 else 0.0
    assert float(y.double().norm()) <= 0.3 * (1 + slack)
    assert ((y.double() - L2Ball(0.3)(x.double())).abs() <= torch.finfo(dtype).eps * 0.3).all()
    if dtype != torch.float64:
        assert torch.equal(L2Ball(0.3)(y), y)


@pytest.mark.parametrize(("dtype", "huge"), [(torch.float32, 1e38), (torch.float64, 1e300), (torch.float16, 6e4)])
def test_huge_entries_are_projected_like_others(dtype: torch.dtype, huge: float):
    x = torch.tensor([huge, -huge, huge / 2], dtype=dtype)
    expected = torch.tensor([2.0, -2.0, 1.0], dtype=dtype)
    torch.testing.assert_close(L2Ball(3.0)(x), expected)
    assert Simplex()(x).tolist() == [1, 0, 0]
    assert Simplex()(x.abs()).tolist() == [0.5, 0.5, 0]


def test_tiny_entries_are_projected_like_others():
    x = torch.tensor([6e-200, 8e-200], dtype=torch.float64)
    torch.testing.assert_close(L2Ball(5e-200)(x) * 1e200, torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert torch.equal(L2Ball(1e-199)(x), x)


@pytest.mark.parametrize("project", [L2Ball(0.5), Simplex()], ids=lambda x: getattr(x, "__name__", repr(x)))
def test_projections_are_differentiable_and_let_nan_through(project: Any):
    x = torch.tensor([0.3, -0.7, 1.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(project, x)
    low = x.detach().half().requires_grad_()
    project(low)[0].backward()
    exact = torch.autograd.grad(project(x)[0], x)[0]
    assert low.grad is not None
    torch.testing.assert_close(low.grad.double(), exact, rtol=1e-2, atol=1e-2)
    assert project(torch.tensor([1.0, float("nan")])).isnan().any()


def test_the_ball_takes_a_complex_entry_as_two():
    x = torch.tensor([[3 + 4j, 0], [0, 12j]], dtype=torch.complex64).T
    y = L2Ball(6.5)(x)
    torch.testing.assert_close(y, x / 2)


@pytest.mark.parametrize("bounds", [("0", "1"), (None, 1.0), (0.0, [1.0])])
def test_a_box_needs_numbers(bounds: Any):
    with pytest.raises(TypeError, match=r"Box's (lo|hi) must be a number"):
        Box(*bounds)


class Sharded(torch.nn.Parameter):
    """A plain parameter that bears the mark of an engine that shards."""

    _is_flat_param = True


@pytest.mark.parametrize(
    "projection", [L2Ball(1.0), Simplex(), torch.relu], ids=lambda x: getattr(x, "__name__", repr(x))
)
def test_what_needs_all_entries_is_refused_on_a_shard(projection: Any):
    group = {"params": [Sharded(torch.ones(2))], "param_names": ["w"], "momentum_dtype": None, "projection": projection}
    with pytest.raises(ValueError, match=r"(?s)projection=.*'w'.*elementwise"):
        check_params(group)
    check_params(group | {"params": [torch.nn.Parameter(torch.ones(2))]})


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


halved.elementwise = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "projection", [Box(0.0, 1.0), NonNegative(), halved], ids=lambda x: getattr(x, "__name__", repr(x))
)
def test_what_works_entry_by_entry_is_taken_on_a_shard(projection: Any):
    check_params({"params": [Sharded(torch.ones(2))], "momentum_dtype": None, "projection": projection})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_simplex_of_many_low_precision_entries_sums_to_one(dtype: torch.dtype):
    p = torch.zeros(1000, dtype=dtype, requires_grad=True)
    opt = acmo.ACMo([p], lr=0.1, projection=Simplex())
    p.grad = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    opt.step()
    assert float(p.detach().double().sum()) == pytest.approx(1, abs=torch.finfo(dtype).eps * float(p.detach().max()))
    assert p.min() >= 0


@every_backend
def test_in_place_projection_does_not_change_a_skipped_step(backend):
    p = nn.Parameter(torch.tensor([-1.0, 2.0]))
    opt = ACMo([p], projection=lambda x: x.clamp_(min=0), **backend)
    assert torch.equal(p, torch.tensor([-1.0, 2.0]))
    p.grad = torch.tensor([torch.nan, 1.0])
    opt.step()
    assert torch.equal(p, torch.tensor([-1.0, 2.0]))


@every_backend
def test_projection_stays_with_its_group_if_another_is_removed(backend):
    params = [torch.ones(2, requires_grad=True) for _ in range(2)]
    groups = [{"params": [params[0]]}, {"params": [params[1]], "projection": Box(-0.5, 0.5)}]
    opt = ACMo(groups, **backend)
    opt.param_groups.pop(0)
    params[1].grad = torch.ones(2)
    opt.step()
    assert params[1].tolist() == [0.5, 0.5]
    assert opt.state_dict()["param_groups"][0]["projection"] is None
