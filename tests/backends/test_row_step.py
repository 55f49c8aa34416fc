"""A step by row in one call of the C kernel gives the bits of the same step part by part."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from acmo import ACMo, RowACMo, native
from acmo.backends import row_step, rows

pytestmark = pytest.mark.skipif(native.kernel() is None, reason=f"no kernel: {native.why_missing()}")

SHAPES = [(5, 7), (3, 2, 4), (6,), (4, 1), (90, 5), (), (0, 3), (1, 9)]


def make(lr: float | Tensor, dtype: torch.dtype, **options: Any) -> RowACMo:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in SHAPES]
    groups = [{"params": params[:4]}, {"params": params[4:], "momentum": 0.5, "maximize": True}]
    return RowACMo(groups, lr=lr, fused=True, **options)


def take_steps(opt: RowACMo, bad: float | None) -> None:
    generator = torch.Generator().manual_seed(1)
    for t in range(3):
        for group in opt.param_groups:
            for p in group["params"]:
                p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        if bad is not None and t == 1:
            opt.param_groups[0]["params"][0].grad[2, 3] = bad
        opt.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize(
    ("options", "bad"),
    [
        ({}, None),
        ({"weight_decay": 0.1}, torch.inf),
        ({"weight_decay": 0.1, "decoupled_weight_decay": False, "norm_scope": "row"}, torch.nan),
        ({"unit_step": False, "nonfinite": "propagate"}, torch.nan),
        ({"momentum_dtype": torch.int8}, None),
    ],
)
def test_one_call_gives_the_bits_of_a_step_by_parts(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, options: dict[str, Any], bad: float | None
) -> None:
    if dtype == torch.complex64:
        if "momentum_dtype" in options:
            pytest.skip("complex parameters have complex moments")
        options = {**options, "norm_scope": "row"}  # the kernel does not step complex parameters by column
    calls: list[str] = []
    for module in (row_step, rows):
        original, name = module.step, module.__name__
        monkeypatch.setattr(
            module, "step", lambda *a, original=original, name=name, **k: calls.append(name) or original(*a, **k)
        )
    at_once = make(0.01, dtype, **options)
    by_parts = make(torch.tensor(0.01, dtype=torch.float64), dtype, **options)  # a Tensor is not for one call
    for opt in (at_once, by_parts):
        take_steps(opt, bad)
    assert calls == [row_step.__name__] * 3 + [rows.__name__] * 3
    for group, other in zip(at_once.param_groups, by_parts.param_groups, strict=True):
        for p, q in zip(group["params"], other["params"], strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=0, equal_nan=True)
            state, other_state = at_once.state[p], by_parts.state[q]
            assert list(state) == list(other_state)
            for key, value in state.items():
                torch.testing.assert_close(value, other_state[key], rtol=0, atol=0, equal_nan=True)
    assert at_once.skipped_steps == by_parts.skipped_steps == (bad is not None and "nonfinite" not in options)
    assert str(at_once.telemetry()) == str(by_parts.telemetry())


def test_a_parameter_of_new_shape_is_described_again() -> None:
    p = torch.zeros(4, 3, requires_grad=True)
    opt = RowACMo([p], lr=0.1, fused=True)
    p.grad = torch.ones(4, 3)
    opt.step()
    p.data, p.grad = torch.zeros(2, 5), torch.ones(2, 5)
    opt.state.clear()
    opt.step()
    torch.testing.assert_close(p.detach(), torch.full((2, 5), -0.1))


def test_moments_in_other_memory_are_written_there() -> None:
    p = torch.ones(6, 4).requires_grad_()
    opt = RowACMo([p, torch.ones(3).requires_grad_()], lr=0.1, fused=True)
    for t in range(4):
        for q in opt.param_groups[0]["params"]:
            q.grad = torch.full_like(q, t + 1.0)
        state = opt.state[p]
        if t == 3:  # as code that offloads states does
            old = {key: state[key].data for key in ("momentum_buffer", "step")}
            before = {key: value.clone() for key, value in old.items()}
            for key, value in before.items():
                state[key].data = value.clone()
        opt.step()
    assert all(torch.equal(old[key], before[key]) for key in old)
    assert state["step"] == 4
    torch.testing.assert_close(state["momentum_buffer"], torch.full((6, 4), 4.0 + 0.9 * 4.0))


def test_nothing_is_kept_alive_after_the_optimizer_is_gone() -> None:
    def run() -> list[weakref.ref[Tensor]]:
        params = [torch.ones(6, 4).requires_grad_(), torch.ones(3).requires_grad_()]
        opt = RowACMo([{"params": params[:1]}, {"params": params[1:]}], lr=0.1, fused=True)
        for _ in range(4):
            for p in params:
                p.grad = torch.ones_like(p)
            opt.step()
        return [weakref.ref(x) for p in params for x in (p, opt.state[p]["momentum_buffer"], opt.state[p]["step"])]

    run()  # what torch imports at its first optimizer keeps that one alive
    gc.collect()
    gc.disable()
    try:
        assert [x() for x in run()] == [None] * 6
    finally:
        gc.enable()


def test_a_group_that_was_dropped_is_not_kept_alive() -> None:
    params = [torch.ones(6, 4).requires_grad_() for _ in range(3)]
    opt = RowACMo([{"params": [p]} for p in params], lr=0.1, fused=True)
    for t in range(6):
        for p in params:
            p.grad = torch.ones_like(p)
        opt.step()
        if t == 3:
            moment = weakref.ref(opt.state.pop(params.pop())["momentum_buffer"])
            opt.param_groups.pop()
            for group in opt.param_groups:
                group["lr"] = torch.tensor(0.1)  # from now on no such call is made
            opt.param_groups[1]["norm_scope"] = "row"  # it is entered again, and the first group is not
    gc.collect()
    assert moment() is None


def test_all_groups_follow_when_the_only_one_by_row_is_edited() -> None:
    results = []
    for foreach in (None, False):
        params = [torch.full((6, 4), 2.0).requires_grad_(), torch.full((4, 6), 2.0).requires_grad_()]
        groups = [{"params": [p], "norm_scope": scope} for p, scope in zip(params, ("tensor", "row"), strict=True)]
        opt = ACMo(groups, lr=0.1, unit_step="rms", foreach=foreach)
        generator = torch.Generator().manual_seed(0)
        for scope in ("row", "row", "tensor", "tensor", "row", "row"):
            opt.param_groups[1]["norm_scope"] = scope
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            opt.step()
        results.append(params)
    for fused, reference in zip(*results, strict=True):
        torch.testing.assert_close(fused, reference)


def test_a_group_that_is_added_steps_with_the_others() -> None:
    first, second = torch.ones(6, 4).requires_grad_(), torch.ones(4, 6).requires_grad_()
    opt = RowACMo([first], lr=0.1, fused=True)
    for t in range(6):
        if t == 3:
            opt.add_param_group({"params": [second], "lr": 0.2})
        first.grad, second.grad = torch.ones(6, 4), torch.ones(4, 6)
        opt.step()
    torch.testing.assert_close(first.detach(), torch.full((6, 4), 1 - 0.6))
    torch.testing.assert_close(second.detach(), torch.full((4, 6), 1 - 0.6))


@pytest.mark.parametrize(
    "edit",
    [
        lambda group: group.update(norm_scope="column"),
        lambda group: group.update(unit_step=False, lr=0.3),
        lambda group: group.update(momentum_dtype=torch.bfloat16),
        lambda group: setattr(group["params"][0], "grad", None),
        lambda group: setattr(group["params"][0], "data", group["params"][0].data.clone()),
        lambda group: group.update(params=group["params"][::-1]),
    ],
    ids=["scope", "gradient step", "dtype", "no gradient", "other memory", "other order"],
)
def test_what_is_kept_of_a_part_follows_edits(edit: Callable[[dict[str, Any]], None]) -> None:
    fused, plain = ([torch.ones(6, 4).requires_grad_(), torch.ones(4, 6).requires_grad_()] for _ in range(2))
    optimizers = RowACMo(fused, lr=0.1), RowACMo(plain, lr=0.1, foreach=False)
    generator = torch.Generator().manual_seed(0)
    for t in range(6):
        for a, b in zip(fused, plain, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        if t >= 3:  # the layout is known by then
            for opt in optimizers:
                edit(opt.param_groups[0])
        for opt in optimizers:
            opt.step()
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b)
