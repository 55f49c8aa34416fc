"""Gradients and moments at the ends of float32: the same finite numbers on every backend, and NaN where it belongs."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from acmo import ACMo
from tests.support.backends import BACKENDS, Backend, every_backend
from tests.support.oracle import Oracle


def run(backend: Backend, gradients: list[list[float]], **options) -> tuple[torch.Tensor, torch.Tensor, ACMo]:
    p = nn.Parameter(torch.ones(len(gradients[0])))
    opt = ACMo([p], lr=1e-3, **options, **backend)
    for g in gradients:
        p.grad = torch.tensor(g)
        opt.step()
    return p.detach(), opt.state[p]["momentum_buffer"], opt


@every_backend
@pytest.mark.parametrize(
    ("gradients", "options"),
    [
        ([[1e-40, 1e-40], [0.1, 0.1], [0.1, 0.1]], {"momentum": 0.5, "delta": 0.0}),
        ([[1e-30, 1e-30], [1e31, 1e31], [1.0, 1.0]], {}),
        ([[1e30, -1e30], [1e-20, 1e-20], [1.0, 1.0]], {"delta": 0.0}),
        ([[1e20, 1e20]] * 3, {}),
        ([[1e-24, 1e-24]] * 3, {"delta": 0.0}),
        ([[1e-24, 1e-24]] * 3, {"delta": 0.0, "norm_scope": "tensor", "weight_decay": 0.1, "max_grad_norm": 1.0}),
    ],
    ids=["tiny-then-normal", "tiny-huge-normal", "huge-tiny-normal", "huge", "tiny", "tiny-decayed"],
)
def test_extreme_gradients_give_the_oracles_finite_numbers(gradients, options, backend: Backend):
    p, m, opt = run(backend, gradients, **options)
    wide = {key: value for key, value in options.items() if key in ("max_grad_norm", "norm_scope")}
    own = {key: value for key, value in options.items() if key not in wide}
    oracle = Oracle([{"params": [np.ones(2)], "lr": 1e-3, **own}], **wide)
    for g in gradients:
        oracle.step([[np.float32(g).astype(float)]])
    assert opt.skipped_steps == 0
    torch.testing.assert_close(p.double(), torch.from_numpy(oracle.theta[0, 0]), rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(m.double(), torch.from_numpy(oracle.m[0, 0]), rtol=2e-5, atol=0)
    assert m.isfinite().all()
    assert p.isfinite().all()


@every_backend
@pytest.mark.parametrize(
    "options", [{"unit_step": "rms"}, {}, {"unit_step": "spectral", "ns_dtype": torch.float64}], ids=str
)
@pytest.mark.parametrize("sizes", [(3e36,) * 3, (3e36, 1.0, 3e36), (1.0, 3e36, 1e-30)], ids=str)
def test_row_norms_beyond_float32_leave_finite_entries_right(sizes, options, backend: Backend):
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(16, 20_000, generator=generator) * size for size in sizes]
    thetas = []
    for dtype in (torch.float32, torch.float64):  # its norms are in range
        p = nn.Parameter(torch.zeros(16, 20_000, dtype=dtype))
        usual = {"lr": 1e-2, "delta": 0.0, "norm_scope": "row"}
        opt = ACMo([p], **usual, **options, **backend)
        for g in gradients:
            p.grad = g.to(dtype)
            opt.step()
        assert opt.skipped_steps == 0
        thetas.append(p.detach().double())
    torch.testing.assert_close(*thetas, rtol=1e-4, atol=1e-4 * float(thetas[1].abs().max()))


@every_backend
@pytest.mark.parametrize("clip", [None, 1.0])
def test_raise_names_the_parameter_whose_gradient_is_nan(clip: float | None, backend: Backend):
    named = [(name, nn.Parameter(torch.ones(2))) for name in ("first", "second", "third")]
    opt = ACMo(named, nonfinite="raise", max_grad_norm=clip, **backend)
    for _, p in named:
        p.grad = torch.ones(2)
    named[2][1].grad[1] = math.nan
    with pytest.raises(FloatingPointError, match="'third'"):
        opt.step()


@every_backend
def test_state_with_nan_beta_hat_loads_again_under_propagate(backend: Backend):
    _, _, opt = run(backend, [[1.0, 1.0], [math.nan, 1.0]], psi="sqrt", nonfinite="propagate")
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert opt.state_dict()["state"][0]["beta_hat"].isnan().all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_grad_norm": math.inf},
        {"max_grad_norm": 1.0},
        {"psi": "sqrt"},
        {"norm_scope": "tensor"},
        {"weight_decay": 0.1, "max_grad_norm": math.inf},
    ],
    ids=str,
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["gradient", "moment"])
def test_propagate_spreads_nan_alike_on_every_backend(where: str, bad: float, options):
    patterns = []
    for backend in (param.values[0] for param in BACKENDS if not any(m.args[0] for m in param.marks)):
        params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        opt = ACMo(params, lr=0.1, nonfinite="propagate", **options, **backend)
        for t in range(4):
            for p in params:
                p.grad = torch.full((2,), 1.0 + t)
            if t == 2 and where == "gradient":
                params[0].grad[0] = bad
            if t == 2 and where == "moment":
                opt.state[params[0]]["momentum_buffer"][0] = bad
            opt.step()
        state = [opt.state[p] for p in params]
        tensors = [*params, *(s["momentum_buffer"] for s in state), *(s["beta_hat"] for s in state if "beta_hat" in s)]
        patterns.append([x.detach().isfinite().tolist() for x in tensors])
    assert all(pattern == patterns[0] for pattern in patterns)


@every_backend
def test_float64_moments_of_1e_minus_79_are_calibrated_exactly(backend: Backend):
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = ACMo([p], momentum=1.0, delta=0.0, **backend)
    for g in ([0.0, 4e-79], [1.0, 0.0]):
        p.grad = torch.tensor(g, dtype=torch.float64)
        opt.step()
    assert opt.state[p]["momentum_buffer"].tolist() == pytest.approx([1.0, 1.0], rel=1e-12)
