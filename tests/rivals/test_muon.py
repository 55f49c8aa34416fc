"""Muon with AdamW beside it: torch's two optimizers, as one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import acmo
from acmo.rivals import MuonAdamW

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 40))


def step_twice(net: nn.Module, optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    for _ in range(2):
        tokens = torch.randint(0, 40, (12,))
        net.zero_grad()
        nn.functional.cross_entropy(net(tokens), tokens.roll(1)).backward()
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach() for p in net.parameters()]


def test_it_is_torchs_muon_and_torchs_adamw():
    one, two = network(), network()
    hidden = two[1].weight
    rest = [p for p in two.parameters() if p is not hidden]
    theirs: list[torch.optim.Optimizer] = [
        torch.optim.Muon([hidden], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=0.005, weight_decay=0.1, fused=True),
    ]
    groups = [{"params": g["params"], "spectral": g.get("spectral")} for g in acmo.param_groups(one, scopes=True)]
    ours = MuonAdamW(groups, lr=0.01, weight_decay=0.1, adamw_lr_ratio=0.5)
    for a, b in zip(step_twice(one, [ours]), step_twice(two, theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_calibrated_its_matrices_step_as_spectral_acmo():
    torch.manual_seed(0)
    start = torch.randn(16, 24)
    one, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours = acmo.SpectralACMo([one], lr=0.02, ns_dtype=torch.bfloat16)
    muon = MuonAdamW([other], lr=0.1, momentum=0.9, calibrated=True)  # Muon's steps are 0.2 of lr, its decay is a fifth
    for _ in range(3):
        one.grad = other.grad = torch.randn(16, 24)
        ours.step()
        muon.step()
        torch.testing.assert_close(muon.state[other]["momentum_buffer"], ours.state[one]["momentum_buffer"])
    torch.testing.assert_close(other, one, rtol=0, atol=0.006)  # a tenth of three steps: bfloat16


def test_calibrated_muon_is_spectral_acmo_in_muons_place():
    """The change that docs/moving.md advises to users of Muon is the contender "muon, calibrated" of the results."""
    one, two = network(), network()
    hidden = two[1].weight
    rest = [p for p in two.parameters() if p is not hidden]
    advised: list[torch.optim.Optimizer] = [
        acmo.SpectralACMo([hidden], lr=0.2 * 0.05, weight_decay=5 * 0.1, ns_dtype=torch.bfloat16),
        torch.optim.AdamW(rest, lr=0.05, weight_decay=0.1, fused=True),
    ]
    groups = [{"params": g["params"], "spectral": g.get("spectral")} for g in acmo.param_groups(one, scopes=True)]
    measured = MuonAdamW(groups, lr=0.05, weight_decay=0.1, momentum=0.9, calibrated=True)
    start = one[1].weight.detach().clone()
    for a, b in zip(step_twice(one, [measured]), step_twice(two, advised), strict=True):
        assert (a - b).abs().mean() < 0.001  # a twentieth of two steps: bfloat16 rounds differently
    assert (one[1].weight - start).abs().mean() > 0.01


def test_the_split_is_that_of_spectral_acmo():
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16, 10))
    net(torch.randn(2, 3, 5, 5)).square().sum().backward()
    muon = MuonAdamW(acmo.param_groups(net, scopes=True))
    muon.step()
    with_muon = {name for name, p in net.named_parameters() if "momentum_buffer" in muon.state[p]}
    assert with_muon == {"0.weight", "1.weight"}


def test_kernels_are_stepped_in_any_layout():
    torch.manual_seed(0)
    start, gradient = torch.randn(16, 8, 3, 3), torch.randn(16, 8, 3, 3)
    stepped = []
    for layout in (torch.contiguous_format, torch.channels_last):
        p = nn.Parameter(start.clone(memory_format=layout))
        optimizer = MuonAdamW([p], lr=0.1)
        for _ in range(2):
            p.grad = gradient.clone(memory_format=layout)
            optimizer.step()
        stepped.append(p.detach())
    assert not torch.equal(stepped[0], start)
    assert torch.equal(*stepped)


def test_a_scheduler_reaches_both():
    net = network()
    optimizer = MuonAdamW(acmo.param_groups(net, scopes=True), lr=0.0, weight_decay=0.1)
    before = [p.detach().clone() for p in net.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, step_twice(net, [optimizer]), strict=True))
