"""States to load: loads that must be refused, and the state of an Adam that has run."""

import copy

import pytest
import torch
from torch import nn


def refused(opt, state, match, error=ValueError):
    """A load that fails must leave everything as it was, to the bit, and the state that was given too."""
    before, given = copy.deepcopy(opt.state_dict()), copy.deepcopy(state)
    with pytest.raises(error, match=match):
        opt.load_state_dict(state)
    assert opt.state_dict()["param_groups"] == before["param_groups"]
    assert opt.state_dict()["state"].keys() == before["state"].keys()
    for i, kept in before["state"].items():
        now = opt.state_dict()["state"][i]
        assert now.keys() == kept.keys()
        assert all((now[key].dtype, now[key].shape) == (x.dtype, x.shape) for key, x in kept.items())
        assert all(torch.equal(now[key], x) for key, x in kept.items())
    assert repr(state) == repr(given)


def adam_after(steps, kind=torch.optim.AdamW, shape=(4, 3), dtype=torch.float32, **options):
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(shape, dtype=dtype))
    adam = kind([p], lr=0.02, weight_decay=0.3, **options)
    for _ in range(steps):
        p.grad = torch.randn_like(p)
        adam.step()
    return p, adam
