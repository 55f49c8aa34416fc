"""foreach makes at most one temporary list of the parameters' size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from .registry import Case, optimizers


def peak_of_a_step(optimizer: Optimizer) -> int:
    """Bytes that a step held at its worst, above what was there before: every malloc and free of torch's allocator.

    Unlike a TorchDispatchMode this sees what an operation allocates inside itself, such as a copy in another dtype.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        optimizer.step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    assert peak > 0 or not events
    return peak


@optimizers("foreach")
def test_foreach_holds_one_list_of_temporaries_at_most(case: Case):
    """Above what the loop holds, as torch's own check has it: the scalars of a step, a temporary of one parameter."""
    params = [torch.rand(64, 64, requires_grad=True) for _ in range(20)]
    for p in params:
        p.grad = torch.rand_like(p)
    peaks = {}
    for backend in ("reference", "foreach"):
        optimizer = case.build(params, backend)
        optimizer.step()  # which makes the state
        peaks[backend] = peak_of_a_step(optimizer)
    # a moment that is wider than its parameter makes a wider list
    one_list = sum(max(t.nbytes for t in (p, *optimizer.state[p].values()) if isinstance(t, Tensor)) for p in params)
    assert peaks["foreach"] <= peaks["reference"] + one_list
