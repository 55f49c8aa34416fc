"""Ψ as a callable: in every scope, on the backends that can call it, in state dicts and copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from acmo import ACMo, RowACMo
from acmo.scopes import resolve_scope
from tests.support.backends import FOREACH, REFERENCE, Backend

BACKENDS = pytest.mark.parametrize("backend", [REFERENCE, FOREACH, {}], ids=["reference", "foreach", "none named"])
SCOPES = ("global", "group", "tensor", "row", "column", "auto")
SCALES = (1.0, 1.0, 9.0, 0.1, 30.0)  # β̂ would jump
SHAPES = [(4, 3), (30, 3), (2, 3, 2), (5,), ()]


def sqrt(beta_hat: Tensor, previous: Tensor, t: Tensor) -> Tensor:
    return torch.minimum(beta_hat, torch.sqrt(t / (t - 1)) * previous)


def unchanged(beta_hat: Tensor, previous: Tensor, t: Tensor) -> Tensor:
    return beta_hat


class Half:
    """A callable that a deep copy would make another one of."""

    def __call__(self, beta_hat: Tensor, previous: Tensor, t: Tensor) -> Tensor:
        return beta_hat / 2


def train(psi: Any, steps: int = 5, **options: Any) -> tuple[list[Tensor], ACMo]:
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(s, generator=generator)) for s in SHAPES]
    opt = ACMo(params, **{"lr": 0.1, "psi": psi, **options})
    advance(params, opt, generator, steps)
    return [p.detach() for p in params], opt


def advance(params: list[nn.Parameter], opt: ACMo, generator: torch.Generator, steps: int) -> None:
    for t in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator) * SCALES[t]
        opt.step()


@BACKENDS
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
def test_the_square_root_as_a_callable_is_the_built_in_one(scope: str, backend: Backend):
    ours, _ = train(sqrt, norm_scope=scope, **backend)
    built_in, _ = train("sqrt", norm_scope=scope, **backend)
    plain, _ = train("identity", norm_scope=scope, **backend)
    for p, q, r in zip(ours, built_in, plain, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(p, r, rtol=1e-3, atol=1e-3)


@BACKENDS
@pytest.mark.parametrize("scope", SCOPES)
def test_a_callable_that_changes_nothing_gives_the_identity(scope: str, backend: Backend):
    ours, _ = train(unchanged, norm_scope=scope, **backend)
    plain, _ = train("identity", norm_scope=scope, **(backend or FOREACH))
    for p, q in zip(ours, plain, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


def step_rows_in_numpy(theta: np.ndarray, m: np.ndarray, g: np.ndarray, prev: np.ndarray, t: int) -> tuple[Any, ...]:
    """Lines 4 to 8 for rows along the first axis, with δ = 1/2, β = 0.9, α = 0.1 and Ψ = sqrt."""
    norm_g, norm_m = np.linalg.norm(g, axis=1), np.linalg.norm(m, axis=1)
    line_4 = 0.9 * norm_g / (norm_m + 0.5)
    beta_hat = np.minimum(line_4, prev * (np.sqrt(t / (t - 1)) if t > 1 else np.inf))
    kept = np.where(norm_g == 0, prev, np.where(norm_m == 0, line_4, beta_hat))
    new = g + np.where(norm_m == 0, 0, beta_hat)[:, None] * m
    moves = (norm_g > 0)[:, None]
    return np.where(moves, theta - 0.1 * new, theta), np.where(moves, new, m), kept


@BACKENDS
@pytest.mark.parametrize("scope", ["row", "column"])
def test_rows_have_a_beta_hat_each_as_in_numpy(scope: str, backend: Backend):
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(6, 5, generator=generator, dtype=torch.float64))
    opt = ACMo([p], lr=0.1, delta=0.5, norm_scope=scope, psi=sqrt, **backend)

    def turn(x: Tensor) -> np.ndarray:
        return (x.T if scope == "column" else x).numpy().copy()

    theta = turn(p.detach())
    m, kept = np.zeros_like(theta), np.full(len(theta), np.inf)
    for t in range(1, 7):
        g = torch.randn(6, 5, generator=generator, dtype=torch.float64) * 4.0**t
        (g if scope == "row" else g.T)[t % 4] = 0.0
        theta, m, kept = step_rows_in_numpy(theta, m, turn(g), kept, t)
        p.grad = g
        opt.step()
        np.testing.assert_allclose(opt.state[p]["beta_hat"].numpy(), kept, rtol=1e-12)
    np.testing.assert_allclose(turn(p.detach()), theta, rtol=1e-12)


@BACKENDS
def test_a_skipped_row_keeps_its_beta_hat(backend: Backend):
    p = nn.Parameter(torch.zeros(3, 4))
    opt = RowACMo([p], psi=Half(), **backend)
    for t in range(3):
        p.grad = torch.full((3, 4), 2.0**t)
        opt.step()
    before = opt.state[p]["beta_hat"].clone()
    p.grad = torch.ones(3, 4)
    p.grad[1, 2] = torch.nan
    opt.step()
    changed = opt.state[p]["beta_hat"] != before
    assert changed.tolist() == [True, False, True]


@BACKENDS
@pytest.mark.parametrize("scope", SCOPES)
def test_resumed_run_with_a_callable_equals_the_unbroken_one(scope: str, backend: Backend):
    options = {"norm_scope": scope, **backend}
    _, opt = train(sqrt, 3, **options)
    state = copy.deepcopy(opt.state_dict())
    assert [group["psi"] for group in state["param_groups"]] == [None]
    params = opt.param_groups[0]["params"]
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    other = ACMo(twins, lr=9.0, psi=sqrt, **options)
    other.load_state_dict(state)
    assert other.param_groups[0]["psi"] is sqrt
    for ps, each in ((params, opt), (twins, other)):
        advance(ps, each, torch.Generator().manual_seed(5), 3)
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p, q)
    kinds = [resolve_scope(scope, s) for s in SHAPES]
    sizes = [
        {"row": s[0] if s else 1, "column": s[-1] if s else 1}.get(kind, 1)
        for kind, s in zip(kinds, SHAPES, strict=True)
    ]
    assert [tuple(opt.state[p]["beta_hat"].shape) for p in params] == [(size,) for size in sizes]


def test_loading_keeps_the_live_callable_or_the_live_name():
    _, named = train("identity")
    _, called = train(Half())
    live = called.param_groups[0]["psi"]
    called.load_state_dict(named.state_dict())
    assert called.param_groups[0]["psi"] is live
    named.load_state_dict(called.state_dict())
    assert named.param_groups[0]["psi"] == "identity"
    called.load_state_dict(torch.optim.AdamW([nn.Parameter(torch.ones(s)) for s in SHAPES]).state_dict())
    assert called.param_groups[0]["psi"] is live


def test_copies_share_the_callable_and_pickles_keep_it():
    _, opt = train(Half())
    assert copy.deepcopy(opt).param_groups[0]["psi"] is opt.param_groups[0]["psi"]
    assert isinstance(pickle.loads(pickle.dumps(opt)).param_groups[0]["psi"], Half)


def test_beta_hat_of_another_shape_is_refused():
    _, opt = train(sqrt, norm_scope="row")
    state = copy.deepcopy(opt.state_dict())
    state["state"][0]["beta_hat"] = torch.ones(3)
    with pytest.raises(ValueError, match="beta_hat of parameter 0"):
        opt.load_state_dict(state)
    opt.param_groups[0]["norm_scope"] = "tensor"
    with pytest.raises(ValueError, match=r"beta_hat in a parameter's state.*delete it"):
        advance(opt.param_groups[0]["params"], opt, torch.Generator(), 1)


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        ({"psi": sqrt, "fused": True}, "is a callable, which no kernel can call"),
        ({"psi": 3}, "psi must be one of .*got 3"),
    ],
)
def test_a_psi_that_cannot_be_called_is_refused(options: dict[str, Any], quoted: str):
    for cls in (ACMo, RowACMo):
        with pytest.raises(ValueError, match=quoted):
            cls([nn.Parameter(torch.ones(2, 2))], **options)


@BACKENDS
@pytest.mark.parametrize("scope", ["global", "row"])
def test_a_psi_that_returns_no_tensor_changes_nothing(scope: str, backend: Backend):
    p = nn.Parameter(torch.ones(2, 3))
    opt = ACMo([p], psi=lambda beta_hat, previous, t: 1.0, norm_scope=scope, **backend)
    p.grad = torch.ones(2, 3)
    with pytest.raises(TypeError, match=r"psi must return a Tensor.*got 1\.0"):
        opt.step()
    assert torch.equal(p, torch.ones(2, 3))
    assert not opt.state[p]["momentum_buffer"].any()


def test_a_compiled_step_calls_the_callable():
    torch._dynamo.reset()
    (first, one), (second, two) = (train(sqrt, 1, norm_scope="row", foreach=True) for _ in range(2))
    step = torch.compile(one.step, backend="aot_eager")
    for opt, take in ((one, step), (two, two.step)):
        generator = torch.Generator().manual_seed(3)
        for t in range(3):
            for p in opt.param_groups[0]["params"]:
                p.grad = torch.randn(p.shape, generator=generator) * 3.0**t
            take()
    for p, q in zip(first, second, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
