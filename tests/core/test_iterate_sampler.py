"""`IterateSampler`: the return line of Algorithm 1, drawn in one pass."""

from __future__ import annotations

import io
import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

import acmo

LRS = [0.1, 0.3, 0.0, 0.2, 0.05, 0.35]


def make() -> tuple[Tensor, acmo.ACMo]:
    w = torch.zeros(2, requires_grad=True)
    return w, acmo.ACMo([w], lr=LRS[0])


def walk(w: Tensor, opt: acmo.ACMo, lrs: list[float]) -> list[list[float]]:
    """A step for each lr; what each left behind."""
    left = []
    for lr in lrs:
        opt.param_groups[0]["lr"] = lr
        w.grad = torch.tensor([1.0, 2.0]) + w.detach()  # each step's end is another point
        opt.step()
        left.append(w.tolist())
    return left


def test_a_step_is_drawn_with_probability_proportional_to_its_lr():
    w, opt = make()
    samplers = [acmo.IterateSampler(opt, seed=seed) for seed in range(3000)]
    left = walk(w, opt, LRS)
    counts = [0] * len(LRS)
    for sampler in samplers:
        (drawn,) = sampler.sample()
        found = [s for s, value in enumerate(left) if value == drawn.tolist()]
        assert sampler.step - 1 in found
        counts[sampler.step - 1] += 1
    possible = [s for s, lr in enumerate(LRS) if lr > 0]
    assert counts[2] == 0  # a step of lr 0 has no weight
    expected = [len(samplers) * LRS[s] / sum(LRS) for s in possible]
    assert chisquare([counts[s] for s in possible], expected).pvalue > 1e-3


def test_every_prefix_of_a_run_has_its_own_distribution():
    w, opt = make()
    samplers = [acmo.IterateSampler(opt, seed=seed) for seed in range(2000)]
    walk(w, opt, [0.4, 0.1])
    first = sum(sampler.step == 1 for sampler in samplers)
    assert chisquare([first, 2000 - first], [1600, 400]).pvalue > 1e-3


def test_skipped_steps_do_not_count():
    w, opt = make()
    samplers = [acmo.IterateSampler(opt, seed=seed) for seed in range(300)]
    walk(w, opt, [0.1])
    after_first = w.tolist()
    for _ in range(5):
        w.grad = torch.tensor([1.0, math.nan])
        opt.step()
    assert opt.telemetry()["skipped_steps"] == 5
    (after_second,) = walk(w, opt, [0.1])
    assert {sampler.steps for sampler in samplers} == {2}
    first = sum(sampler.sample()[0].tolist() == after_first for sampler in samplers)
    assert chisquare([first, 300 - first], [150, 150]).pvalue > 1e-3
    assert all(sampler.sample()[0].tolist() in (after_first, after_second) for sampler in samplers)


def test_one_copy_is_held_however_many_steps_there_are():
    w, opt = make()
    sampler = acmo.IterateSampler(opt, seed=3)
    places = set()
    for _ in range(50):
        walk(w, opt, [0.1])
        held = sampler._held
        places.add(held[0].data_ptr())
        assert len(held) == 1
    assert len(places) == 1
    assert sampler.step > 1  # it was written anew at least once


def test_what_is_sampled_is_a_copy():
    w, opt = make()
    sampler = acmo.IterateSampler(opt)
    walk(w, opt, [0.1])
    (drawn,) = sampler.sample()
    drawn.zero_()
    assert sampler.sample()[0].any()
    assert w.any()
    assert not drawn.requires_grad


def test_restore_puts_the_drawn_iterate_into_the_parameters():
    w, opt = make()
    samplers = [acmo.IterateSampler(opt, seed=seed) for seed in range(20)]
    left = walk(w, opt, [0.3, 0.1, 0.1])
    sampler = next(s for s in samplers if s.step != 3)  # not the one that is there already
    sampler.restore()
    assert w.tolist() == left[sampler.step - 1]


def test_a_run_that_was_stopped_draws_as_the_unbroken_one():
    # Over many seeds: one that keeps the same step either way would prove nothing.
    for seed in range(20):
        w, opt = make()
        sampler = acmo.IterateSampler(opt, seed=seed)
        walk(w, opt, LRS[:3])
        buffer = io.BytesIO()
        torch.save({"w": w.detach(), "opt": opt.state_dict(), "sampler": sampler.state_dict()}, buffer)
        buffer.seek(0)
        state = torch.load(buffer, weights_only=True)
        left = walk(w, opt, LRS[3:])

        v, other = make()
        with torch.no_grad():
            v.copy_(state["w"])
        other.load_state_dict(state["opt"])
        resumed = acmo.IterateSampler(other, seed=999)
        resumed.load_state_dict(state["sampler"])
        walk(v, other, LRS[3:])
        assert (resumed.step, resumed.steps) == (sampler.step, 6)
        assert torch.equal(resumed.sample()[0], sampler.sample()[0])
        assert v.tolist() == left[-1]


@pytest.mark.parametrize("sampler_first", [True, False])
def test_load_order_of_optimizer_and_sampler_does_not_matter(sampler_first: bool):
    def broken_off() -> tuple[Tensor, acmo.ACMo, acmo.IterateSampler]:
        w, opt = make()
        sampler = acmo.IterateSampler(opt, seed=4)
        walk(w, opt, LRS[:2])
        w.grad = torch.full((2,), math.nan)
        opt.step()
        return w, opt, sampler

    w, opt, sampler = broken_off()
    v, other = make()
    resumed = acmo.IterateSampler(other)
    loads = [lambda: resumed.load_state_dict(sampler.state_dict()), lambda: other.load_state_dict(opt.state_dict())]
    for load in loads if sampler_first else reversed(loads):
        load()
    with torch.no_grad():
        v.copy_(w)
    walk(w, opt, LRS[3:])
    walk(v, other, LRS[3:])
    assert (resumed.steps, resumed.step) == (sampler.steps, sampler.step)
    assert resumed.steps == 5
    assert torch.equal(resumed.sample()[0], sampler.sample()[0])


def test_a_sampler_that_was_removed_leaves_no_hook():
    w, opt = make()
    sampler = acmo.IterateSampler(opt)
    sampler.remove()
    walk(w, opt, [0.1])
    opt.load_state_dict(opt.state_dict())
    assert sampler.steps == 0
    assert not opt._optimizer_load_state_dict_post_hooks
    assert not opt._optimizer_step_post_hooks


def test_sample_has_the_order_of_any_optimizers_param_groups():
    a, b = torch.ones(2, requires_grad=True), torch.ones(3, 1, requires_grad=True)
    sgd = torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 5.0}], lr=0.1)
    sampler = acmo.IterateSampler(sgd)
    a.grad, b.grad = torch.ones(2), torch.ones(3, 1)
    sgd.step()
    assert [x.shape for x in sampler.sample()] == [(2,), (3, 1)]
    assert torch.equal(sampler.sample()[1], b.detach())


def test_before_the_first_step_there_is_nothing_to_draw():
    _, opt = make()
    with pytest.raises(RuntimeError, match="step"):
        acmo.IterateSampler(opt).sample()


def test_a_state_of_other_shapes_is_refused():
    w, opt = make()
    sampler = acmo.IterateSampler(opt)
    walk(w, opt, [0.1])
    other = acmo.IterateSampler(acmo.ACMo([torch.zeros(3, requires_grad=True)]))
    with pytest.raises(ValueError, match=r"(?s)\(2,\).*\(3,\)"):
        other.load_state_dict(sampler.state_dict())
