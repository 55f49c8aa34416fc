"""What every rival does alike."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acmo.rivals import SM3, SWATS, AdaBound, FullMatrixAdagrad, MuonAdamW, NDAdam, PAdam, UnitMomentum

RIVALS = [PAdam, AdaBound, NDAdam, SWATS, SM3, FullMatrixAdagrad, UnitMomentum]
RIVALS += [MuonAdamW] if hasattr(torch.optim, "Muon") else []  # it came with torch 2.9
every_rival = pytest.mark.parametrize("cls", RIVALS)


@every_rival
def test_loading_leaves_the_given_state_unchanged(cls: Any):
    one, two = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    optimizer, loaded = cls([one]), cls([two])
    one.grad = torch.randn(3, 2)
    optimizer.step()
    before = deepcopy(optimizer.state_dict()["state"])
    loaded.load_state_dict(optimizer.state_dict())
    two.grad = torch.randn(3, 2)
    loaded.step()
    after = optimizer.state_dict()["state"]
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name]) if isinstance(value, Tensor) else value == after[0][name]


@every_rival
def test_a_tensor_lr_may_have_a_dimension_of_one(cls: Any):
    one, two = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(2.0))
    optimizers = cls([one], lr=torch.tensor([0.1])), cls([two], lr=0.1)
    for value in (0.5, 0.2, 0.9):
        one.grad, two.grad = torch.tensor(value), torch.tensor(value)
        for optimizer in optimizers:
            optimizer.step()
    assert one.shape == ()
    torch.testing.assert_close(one, two)


@every_rival
def test_a_group_is_checked_as_the_constructor_is(cls: Any):
    optimizer = cls([nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match=r"weight_decay.*-0\.5"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "weight_decay": -0.5})
    assert len(optimizer.param_groups) == 1


@every_rival
def test_parameters_without_elements_are_stepped_over(cls: Any):
    empty, full = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(2))
    optimizer = cls([empty, full])
    for _ in range(2):
        empty.grad, full.grad = torch.zeros(0, 3), torch.ones(2)
        optimizer.step()
    assert (full < 1).all()


def test_muon_names_the_torch_that_it_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(RuntimeError, match=r"torch 2\.9 or newer"):
        MuonAdamW([nn.Parameter(torch.ones(2))])
