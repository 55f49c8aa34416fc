"""The registry: everything that the paper speaks of is there, can be made, and has the paper's grid."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch
from torch import nn

from acmo import ACMo
from acmo.rivals import REGISTRY, Entry, NDAdam, vector_groups

LRS = (1e-1, 5e-2, 1e-2, 5e-3, 1e-3, 5e-4, 1e-4, 5e-5)
OF_TORCH = {"sgd-momentum", "nag", "adagrad", "rmsprop", "adam", "amsgrad", "adamw"}
OF_OURS = {
    "acmo",
    "acmo-authors",
    "acmo-authors-nmt",
    "row-acmo",
    "spectral-acmo",
    "row-momentum",
    "spectral-momentum",
    "muon",
    "padam",
    "adabound",
    "amsbound",
    "nd-adam",
    "swats",
    "sm3",
    "full-matrix-adagrad",
}

OF_OTHERS = {"lion": "pytorch_optimizer", "schedule-free": "schedulefree"}  # and the package each one is in
DECOUPLED = {"adamw", "row-acmo", "spectral-acmo", "row-momentum", "spectral-momentum", "muon", *OF_OTHERS}
OWN_LRS = {"acmo-authors", "acmo-authors-nmt", *DECOUPLED} - {"adamw"}

# What differs from the class's own defaults. Everything else has one home, the class.
OVERRIDES = {
    "acmo-authors-nmt": {"factor": 0.9, "norm_scope": "global"},
    "spectral-momentum": {"unit_step": "spectral", "weight_decay": 0.5},
    "padam": {"bias_correction": True},
    "sgd-momentum": {"momentum": 0.9, "fused": True},
    "nag": {"momentum": 0.9, "nesterov": True, "fused": True},
    "adagrad": {"fused": True},
    "adam": {"fused": True},
    "amsgrad": {"amsgrad": True, "fused": True},
    "adamw": {"fused": True},
    "amsbound": {"amsbound": True},
}

MISSING = {name for name, package in OF_OTHERS.items() if not find_spec(package)}
MISSING |= set() if hasattr(torch.optim, "Muon") else {"muon"}  # it came with torch 2.9
INSTALLED = {name: entry for name, entry in REGISTRY.items() if name not in MISSING}
entries = pytest.mark.parametrize("entry", INSTALLED.values(), ids=INSTALLED)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_it_holds_every_optimizer_that_the_paper_speaks_of():
    assert set(REGISTRY) == OF_TORCH | OF_OURS | set(OF_OTHERS)
    assert all(name == entry.name for name, entry in REGISTRY.items())


@entries
def test_defaults_train(entry: Entry):
    net = model()
    x = torch.randn(16, 3)
    optimizer = entry.build(net.named_parameters() if entry.name != "lion" else net.parameters())  # Lion takes no names
    if hasattr(optimizer, "train"):
        optimizer.train()
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@entries
def test_defaults_are_the_classs_except_for_overrides(entry: Entry):
    overrides = OVERRIDES.get(entry.name, {})
    assert entry.overrides == overrides
    params = list(model().parameters())
    own = entry.optimizer(params).defaults
    given = inspect.signature(entry.optimizer).parameters
    assert all(given[option].default != value for option, value in overrides.items()), "it changes nothing"
    group = entry.build(params).param_groups[-1]  # ND-Adam's last group has no vectors, and so the plain lr
    changed = {"vector_axes", "lr_scale", "delta"}  # ND-Adam's own; what the authors' factor changes
    assert {option: group[option] for option in own if option not in changed} == {
        option: value for option, value in {**own, **overrides}.items() if option in own and option not in changed
    }
    assert entry.defaults == {k: p.default for k, p in given.items() if p.default is not p.empty} | overrides


def test_acmo_has_the_classs_learning_rate():
    lr = inspect.signature(ACMo).parameters["lr"].default
    assert REGISTRY["acmo"].build(model().parameters()).param_groups[0]["lr"] == lr == REGISTRY["acmo"].defaults["lr"]


def test_vector_groups_have_nd_adams_learning_rate():
    assert inspect.signature(vector_groups).parameters["lr"].default == REGISTRY["nd-adam"].defaults["lr"]


@entries
def test_every_grid_value_is_accepted_by_its_optimizer(entry: Entry):
    params = list(model().parameters())
    for option, values in entry.grid.items():
        for value in values:
            optimizer = entry.build(params, **{option: value})
            assert any(group[option] == value for group in optimizer.param_groups)


@entries
def test_the_points_of_a_grid_are_all_its_combinations(entry: Entry):
    points = entry.points()
    assert len(points) == len(entry) == len({tuple(point.items()) for point in points})
    assert all(point.keys() == entry.grid.keys() for point in points)


def test_the_grids_are_those_of_the_paper():
    assert all(entry.grid["lr"] == LRS for name, entry in REGISTRY.items() if name not in OWN_LRS)
    for name in ("sgd-momentum", "nag"):
        assert REGISTRY[name].grid["momentum"] == (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
    for name in ("adam", "amsgrad", "adamw", "padam", "adabound"):
        assert set(REGISTRY[name].grid["betas"]) == {(0.9, 0.99), (0.9, 0.999), (0.99, 0.99), (0.99, 0.999)}
        assert REGISTRY[name].defaults["eps"] == 1e-8
    assert REGISTRY["padam"].grid["partial"] == (1 / 4, 1 / 8, 1 / 16)
    assert REGISTRY["adabound"].grid["final_lr"] == (0.1, 1.0)
    assert REGISTRY["acmo"].grid.keys() == {"lr", "weight_decay"}


@entries
def test_rates_are_four_and_half_a_decade_apart(entry: Entry):
    assert len(entry.rates) == 4
    assert all(2.9 < high / low < 3.4 for high, low in pairwise(entry.rates))


@pytest.mark.parametrize("name", sorted(OWN_LRS | {"acmo", "adam", "adamw", "padam", "adabound"}))
def test_rates_lie_around_the_default(name: str):
    if name in OF_OTHERS:
        pytest.importorskip(OF_OTHERS[name])
    rates = REGISTRY[name].rates
    assert rates[-1] < REGISTRY[name].defaults["lr"] < rates[0]
    assert name not in OWN_LRS or REGISTRY[name].grid["lr"] == rates


@entries
def test_weight_decay_is_tuned_over_the_values_of_its_kind(entry: Entry):
    expected = (0.0, 1e-3, 1e-2, 1e-1, 1.0) if entry.name in DECOUPLED else (0.0, 1e-4, 5e-4, 1e-3, 5e-3)
    assert entry.grid["weight_decay"] == expected


@entries
def test_torchs_own_are_fused_where_torch_can(entry: Entry):
    group = entry.build(model().parameters()).param_groups[0]
    if entry.name in OF_TORCH - {"rmsprop"}:
        assert group["fused"] is True
    else:
        assert not group.get("fused")


def test_names_mean_what_they_say():
    params = list(model().parameters())
    groups = {name: entry.build(params).param_groups[0] for name, entry in INSTALLED.items()}
    assert groups["nag"]["nesterov"] is True
    assert groups["sgd-momentum"]["nesterov"] is False
    assert (groups["amsgrad"]["amsgrad"], groups["adam"]["amsgrad"]) == (True, False)
    assert (groups["amsbound"]["amsbound"], groups["adabound"]["amsbound"]) == (True, False)
    assert isinstance(REGISTRY["acmo"].build(params), ACMo)
    nd_adam = REGISTRY["nd-adam"].build(params)
    assert isinstance(nd_adam, NDAdam)
    assert {g["vector_axes"]: g["lr"] for g in nd_adam.param_groups} == {(1,): 0.05, None: 0.001}


@entries
def test_a_model_gets_scopes_where_the_entry_asks_for_them(entry: Entry):
    net = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 40))
    net[1].bias.requires_grad_(False)
    optimizer = entry.build_for(net, weight_decay=0.1)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4
    by_column = [p for g in optimizer.param_groups if g.get("norm_scope") == "column" for p in g["params"]]
    if entry.scopes:
        assert {id(p) for p in by_column} == {id(net[0].weight), id(net[2].weight)}
        assert sorted(group["weight_decay"] for group in optimizer.param_groups) == [0.0, 0.1, 0.1]
    else:
        assert not by_column


def test_a_scope_among_the_options_is_for_all_groups():
    net = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))
    optimizer = REGISTRY["row-acmo"].build_for(net, norm_scope="row")
    assert {group["norm_scope"] for group in optimizer.param_groups} == {"row"}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    with pytest.raises(ImportError, match="pip install schedulefree"):
        REGISTRY["schedule-free"].build(model().parameters())


def test_importing_acmo_imports_no_rival():
    code = "import sys, acmo; sys.exit(any(name.startswith('acmo.rivals') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_spectral_momentum_decays_as_spectral_acmo_does():
    decays = []
    for name in ("spectral-acmo", "spectral-momentum"):
        groups = (
            REGISTRY[name].build_for(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 2))).param_groups
        )
        decays.append([(len(group["params"]), group["weight_decay"]) for group in groups])
    assert decays[0] == decays[1]
    assert {decay for _, decay in decays[0]} == {0.0, 0.5}
