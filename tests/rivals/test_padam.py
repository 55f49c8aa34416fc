"""PAdam between its two ends, and beside other implementations where they are right."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from acmo.rivals import PAdam
from tests.support.rival_twins import assert_alike, twins

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def test_at_one_half_with_bias_correction_it_is_amsgrad():
    """Without ε, which torch adds after the correction."""
    one, two = twins(4, 3)
    ours = PAdam([one], lr=0.01, eps=0.0, partial=0.5, weight_decay=0.1, bias_correction=True)
    assert_alike(ours, torch.optim.Adam([two], lr=0.01, eps=0.0, weight_decay=0.1, amsgrad=True))


def test_towards_zero_it_is_sgd_with_dampened_momentum():
    one, two = twins(4, 3)
    ours = PAdam([one], lr=0.1, partial=1e-9)
    sgd = torch.optim.SGD([two], lr=0.1, momentum=0.9, dampening=0.9)
    sgd.state[two]["momentum_buffer"] = torch.zeros_like(two)  # torch's first step is not dampened
    assert_alike(ours, sgd, rtol=1e-6, atol=1e-6)


def test_what_it_divides_by_never_shrinks():
    p = nn.Parameter(torch.zeros(3))
    optimizer = PAdam([p], betas=(0.9, 0.5))
    last = torch.zeros(3)
    for scale in (1.0, 100.0, 1.0, 0.01, 0.0):
        p.grad = scale * torch.ones(3)
        optimizer.step()
        assert (optimizer.state[p]["max_exp_avg_sq"] >= last).all()
        last = optimizer.state[p]["max_exp_avg_sq"].clone()
    assert (last > optimizer.state[p]["exp_avg_sq"]).all()


@pytest.mark.slow
def test_pytorch_optimizer_agrees_while_the_second_moment_grows():
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    """It has no maximum, and none is needed then."""
    one, two = twins(4, 3)
    ours = PAdam([one], lr=0.01, partial=0.25, weight_decay=0.1, bias_correction=True)
    theirs = pytorch_optimizer.PAdam([two], lr=0.01, partial=0.25, weight_decay=0.1)
    for t in range(20):
        one.grad = 2.0**t * (1 + torch.rand_like(one))
        two.grad = one.grad.clone()
        ours.step()
        theirs.step()
        assert_close(one, two, **CLOSE)
