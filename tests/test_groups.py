"""param_groups: decay for matrices and kernels, none for biases and norms."""

import torch
from torch import nn

import acmo


def model():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3), nn.Embedding(4, 5))
    net[0].weight.requires_grad_(False)
    return net


def test_matrices_and_kernels_are_decayed_biases_and_norms_are_not():
    decayed, spared = acmo.param_groups(model(), weight_decay=0.1, lr=0.5)
    assert [name for name, _ in decayed["params"]] == ["3.weight", "4.weight"]
    assert [name for name, _ in spared["params"]] == ["0.bias", "1.weight", "1.bias", "3.bias"]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert decayed["lr"] == spared["lr"] == 0.5


def test_the_optimizer_takes_them_with_their_names():
    opt = acmo.ACMo(acmo.param_groups(model(), weight_decay=0.1))
    assert opt.param_groups[0]["param_names"] == ["3.weight", "4.weight"]


def test_a_model_without_matrices_gives_one_group():
    (spared,) = acmo.param_groups(nn.LayerNorm(3), weight_decay=0.1)
    assert spared["weight_decay"] == 0.0
    assert all(isinstance(p, torch.Tensor) for _, p in spared["params"])
