"""Sharded steps by the Triton kernels: local passes in the interpreter, reductions between ranks by gloo."""

import pytest
import torch

from tests.support import sharded, sharded_rows
from tests.support.backends import REFERENCE
from tests.support.ranks import run_ranks
from tests.support.triton_interpreter import count_launches, needs_triton, use_interpreter

pytestmark = needs_triton
STEPS = 4


def compare_passes(layout, options):
    """Return what was launched, and the distance of sharded steps from unsharded ones of the reference."""
    found = []
    for way, backend in ((layout, {}), ("plain", REFERENCE)):
        with use_interpreter(), count_launches() as launched:
            net, opt = sharded.make(way, {**options, **backend}, torch.float64)
            for grads in sharded.gradients(net, STEPS):
                sharded.give(net, grads)
                opt.step()
        found.append(([sharded.full(p) for p in net.parameters()], sorted(set(launched))))
    return found[0][1], sharded.distance(found[0][0], found[1][0])


def compare_rows(layout, options):
    """Return the same of steps by row."""
    found = []
    for way, backend in ((layout, {}), ("plain", REFERENCE)):
        with use_interpreter(), count_launches() as launched:
            net, opt = sharded_rows.make(way, {**options, **backend}, torch.float64)
            sharded_rows.advance(net, opt, 0, STEPS)
        found.append((sharded_rows.whole_state(net, opt), sorted(set(launched))))
    return found[0][1], sharded.distance(found[0][0], found[1][0])


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("fsdp", {}),
        pytest.param("fsdp", {"norm_scope": "tensor", "unit_step": True}, marks=pytest.mark.slow),
        pytest.param("tp", {"norm_scope": "group", "psi": "sqrt", "max_grad_norm": 1.0}, marks=pytest.mark.slow),
        pytest.param("mixed", {}, marks=pytest.mark.slow),
        pytest.param("zero", {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_sharded_passes_agree_with_the_unsharded_reference(layout, options):
    for launched, distance in run_ranks(2, compare_passes, layout, options):
        assert {"sum_chunks", "update_chunks"} <= set(launched)
        assert distance < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp", "tp0"])
def test_sharded_rows_agree_with_the_unsharded_reference(layout):
    for launched, distance in run_ranks(2, compare_rows, layout, {}):
        assert {"step_rows", "finish_rows"} <= set(launched)
        assert distance < 1e-7
