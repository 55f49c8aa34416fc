"""``L2Ball(radius, scope="all")``: one ball for all parameters together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from acmo import ACMo, RowACMo, step_in_backward
from acmo.projections import Box, L2Ball
from tests.support.backends import Backend, every_backend


def run(opt: Any, params: list[torch.Tensor], steps: int = 10) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
        opt.step()


def make_params(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (5,), (1,))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def flatten(params: list[torch.Tensor]) -> np.ndarray:
    return np.concatenate([p.detach().double().numpy().ravel() for p in params])


@every_backend
def test_one_ball_is_the_projection_of_the_concatenated_vector(backend: Backend):
    """The oracle: a step without projection from the same point, then NumPy's on one vector."""
    params, radius = make_params(), 1.5
    opt = ACMo(
        [{"params": params[:1]}, {"params": params[1:], "lr": 0.2}],
        lr=0.1,
        projection=L2Ball(radius, scope="all"),
        **backend,
    )
    generator, moments, shrunk = torch.Generator().manual_seed(1), [np.zeros(p.shape) for p in params], 0
    for _ in range(10):
        grads = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in params]
        size = np.sqrt(sum(float(g.square().sum()) for g in grads))
        before = np.sqrt(sum((m**2).sum() for m in moments))
        factor = 0.9 * size / (before + 1e-8) if before else 0.0
        moments = [g.numpy() + factor * m for g, m in zip(grads, moments, strict=True)]
        rates = (0.1, 0.2, 0.2)
        expected = np.concatenate(
            [(p.detach().numpy() - a * m).ravel() for p, a, m in zip(params, rates, moments, strict=True)]
        )
        norm = float(np.linalg.norm(expected))
        shrunk += norm > radius
        expected *= min(1.0, radius / norm)
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        opt.step()
        np.testing.assert_allclose(flatten(params), expected, rtol=1e-12, atol=1e-14)
    assert shrunk > 0


@every_backend
def test_inside_the_ball_nothing_moves_by_projection(backend: Backend):
    one, other = make_params(), make_params()
    run(ACMo(one, lr=0.01, projection=L2Ball(100.0, scope="all"), **backend), one)
    run(ACMo(other, lr=0.01, **backend), other)
    assert np.array_equal(flatten(one), flatten(other))


def test_rows_with_unit_steps_share_one_ball():
    params = make_params()
    run(RowACMo(params, lr=0.1, projection=L2Ball(0.7, scope="all")), params)
    assert np.linalg.norm(flatten(params)) == pytest.approx(0.7, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["f16", "bf16", "f32"])
def test_the_common_ball_is_never_left_by_rounding(dtype: torch.dtype):
    params = make_params(dtype)
    opt = ACMo(params, lr=0.1, projection=L2Ball(0.3, scope="all"))
    run(opt, params)
    norm = float(np.linalg.norm(flatten(params)))
    assert 0.3 * (1 - 2 * torch.finfo(dtype).eps) - 1e-3 <= norm <= 0.3


def test_groups_share_a_ball_only_if_they_have_the_same_object():
    params = make_params()
    shared = L2Ball(1.0, scope="all")
    groups = [{"params": [params[0]], "projection": shared}, {"params": [params[1]], "projection": shared}]
    opt = ACMo([*groups, {"params": [params[2]], "projection": L2Ball(0.5, scope="all")}], lr=10.0)
    run(opt, params)
    assert np.linalg.norm(flatten(params[:2])) == pytest.approx(1.0)
    assert np.linalg.norm(flatten(params[2:])) == pytest.approx(0.5)


def test_other_projections_stay_beside_a_common_ball():
    a, b = (torch.full((2,), 5.0, requires_grad=True) for _ in range(2))
    groups = [{"params": [a], "projection": Box(-1.0, 1.0)}, {"params": [b], "projection": L2Ball(2.0, scope="all")}]
    opt = ACMo(groups, lr=0.1)
    a.grad = b.grad = torch.zeros(2)
    opt.step()
    assert a.tolist() == [1, 1]
    assert float(b.detach().norm()) == pytest.approx(2)


def test_parameters_without_a_gradient_are_outside_the_ball():
    a, b = (torch.full((2,), 5.0, requires_grad=True) for _ in range(2))
    opt = ACMo([a, b], lr=0.1, projection=L2Ball(1.0, scope="all"))
    a.grad = torch.zeros(2)
    opt.step()
    assert float(a.detach().norm()) == pytest.approx(1)
    assert b.tolist() == [5, 5]


@every_backend
def test_a_skipped_step_leaves_the_common_ball_alone(backend: Backend):
    p = torch.full((3,), 5.0, requires_grad=True)
    opt = ACMo([p], projection=L2Ball(1.0, scope="all"), **backend)
    p.grad = torch.tensor([1.0, float("nan"), 1.0])
    opt.step()
    assert p.tolist() == [5, 5, 5]


def test_a_parameter_that_is_not_finite_is_left_as_it_is():
    p = torch.tensor([1.0, float("inf")], requires_grad=True)
    opt = ACMo([p], lr=0.1, projection=L2Ball(1.0, scope="all"))
    p.grad = torch.zeros(2)
    opt.step()
    assert p.tolist() == [1, float("inf")]


def test_complex_parameters_count_with_both_parts():
    p = torch.tensor([3 + 4j, 12j], dtype=torch.complex64, requires_grad=True)
    opt = ACMo([p], lr=0.1, projection=L2Ball(6.5, scope="all"))
    p.grad = torch.zeros_like(p)
    opt.step()
    torch.testing.assert_close(p.detach(), torch.tensor([1.5 + 2j, 6j], dtype=torch.complex64))


def test_an_unknown_scope_and_a_step_inside_backward_are_refused():
    with pytest.raises(ValueError, match="scope must be 'tensor' or 'all', got 'group'"):
        L2Ball(1.0, scope="group")
    p = torch.nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"projection=L2Ball\(1.0, scope='all'\) needs all parameters"):
        step_in_backward([p], RowACMo, projection=L2Ball(1.0, scope="all"))


def test_step_compiles_with_a_common_ball():
    params = make_params(torch.float32)
    twin = [p.detach().clone().requires_grad_() for p in params]
    compiled, plain = (ACMo(x, lr=0.1, foreach=True, projection=L2Ball(0.5, scope="all")) for x in (params, twin))
    step = torch.compile(compiled.step, fullgraph=True, backend="eager")
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        for p, q in zip(params, twin, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        step()
        plain.step()
    np.testing.assert_allclose(flatten(params), flatten(twin), rtol=1e-6)
