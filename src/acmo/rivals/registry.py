"""The optimizers that the paper speaks of, under one roof: how each is made, and over what it is tuned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from acmo.optimizer import ACMo
from acmo.rivals.adabound import AdaBound
from acmo.rivals.full_matrix_adagrad import FullMatrixAdagrad
from acmo.rivals.ndadam import NDAdam, vector_groups
from acmo.rivals.padam import PAdam
from acmo.rivals.sm3 import SM3
from acmo.rivals.swats import SWATS

Grid = Mapping[str, tuple[Any, ...]]

# The paper's section 5, "Hyperparameter Tuning"; it is silent on weight decay and on final_lr.
LR: Grid = {"lr": (1e-1, 5e-2, 1e-2, 5e-3, 1e-3, 5e-4, 1e-4, 5e-5)}
MOMENTUM: Grid = {"momentum": (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)}
BETAS: Grid = {"betas": tuple(product((0.9, 0.99), (0.99, 0.999)))}
PARTIAL: Grid = {"partial": (1 / 4, 1 / 8, 1 / 16)}
FINAL_LR: Grid = {"final_lr": (0.1, 1.0)}
COUPLED: Grid = {"weight_decay": (0.0, 1e-4, 5e-4, 1e-3, 5e-3)}
DECOUPLED: Grid = {"weight_decay": (0.0, 1e-3, 1e-2, 1e-1, 1.0)}


@dataclass(frozen=True)
class Entry:
    """An optimizer that can be compared.

    Args:
      name: its key in `REGISTRY`.
      title: its name in tables and figures.
      factory: makes it from ``params`` and options.
      defaults: options that are set unless overridden.
      grid: for each option that is tuned, the values that are tried.
      reference: where it comes from.
    """

    name: str
    title: str
    factory: Callable[..., Optimizer]
    defaults: Mapping[str, Any]
    grid: Grid
    reference: str

    def build(self, params: ParamsT, **options: Any) -> Optimizer:
        """The optimizer of these parameters, with the defaults but for ``options``."""
        return self.factory(params, **{**self.defaults, **options})

    def points(self) -> list[dict[str, Any]]:
        """Every combination of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    def __len__(self) -> int:
        """How many points the grid has."""
        return prod(len(values) for values in self.grid.values())


def nd_adam(params: ParamsT, lr: float = 1e-3, **options: Any) -> NDAdam:
    """ND-Adam with a vector for each row of a weight, at 50 times the lr of the rest."""
    return NDAdam(vector_groups(params, lr), lr=lr, **options)


def _entry(
    name: str,
    title: str,
    factory: Callable[..., Optimizer],
    reference: str,
    defaults: Mapping[str, Any],
    *grids: Grid,
) -> Entry:
    grid = {option: values for part in (LR, *grids) for option, values in part.items()}
    return Entry(name, title, factory, MappingProxyType(dict(defaults)), MappingProxyType(grid), reference)


_FUSED = {"fused": True}
_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
_SGD = {"lr": 0.1, "momentum": 0.9}

REGISTRY: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            _entry("acmo", "ACMo", ACMo, "Huang et al., 2021", {"lr": 0.1}, COUPLED),
            _entry("sgd-momentum", "SGD-momentum", torch.optim.SGD, "Polyak, 1964", _SGD | _FUSED, MOMENTUM, COUPLED),
            _entry(
                "nag",
                "NAG",
                torch.optim.SGD,
                "Nesterov, 1983; Sutskever et al., 2013",
                _SGD | _FUSED | {"nesterov": True},
                MOMENTUM,
                COUPLED,
            ),
            _entry(
                "adagrad",
                "Adagrad",
                torch.optim.Adagrad,
                "Duchi et al., 2011",
                {"lr": 1e-2, "eps": 1e-8} | _FUSED,
                COUPLED,
            ),
            _entry(
                "rmsprop",
                "RMSProp",
                torch.optim.RMSprop,  # torch has none that is fused
                "Tieleman and Hinton, 2012",
                {"lr": 1e-3, "alpha": 0.99, "eps": 1e-8},
                COUPLED,
            ),
            _entry("adam", "Adam", torch.optim.Adam, "Kingma and Ba, 2015", _ADAM | _FUSED, BETAS, COUPLED),
            _entry(
                "amsgrad",
                "AMSGrad",
                torch.optim.Adam,
                "Reddi et al., 2018",
                _ADAM | _FUSED | {"amsgrad": True},
                BETAS,
                COUPLED,
            ),
            _entry(
                "adamw",
                "AdamW",
                torch.optim.AdamW,
                "Loshchilov and Hutter, 2019",
                _ADAM | _FUSED | {"weight_decay": 1e-2},
                BETAS,
                DECOUPLED,
            ),
            _entry(
                "padam",
                "PAdam",
                PAdam,
                "Chen et al., 2018",
                _ADAM | {"lr": 0.1, "partial": 1 / 8},
                BETAS,
                PARTIAL,
                COUPLED,
            ),
            _entry(
                "adabound",
                "AdaBound",
                AdaBound,
                "Luo et al., 2019",
                _ADAM | {"final_lr": 0.1, "gamma": 1e-3},
                BETAS,
                FINAL_LR,
                COUPLED,
            ),
            _entry(
                "amsbound",
                "AMSBound",
                AdaBound,
                "Luo et al., 2019",
                _ADAM | {"final_lr": 0.1, "gamma": 1e-3, "amsbound": True},
                BETAS,
                FINAL_LR,
                COUPLED,
            ),
            _entry("nd-adam", "ND-Adam", nd_adam, "Zhang et al., 2017", _ADAM, BETAS, COUPLED),
            # ε 1e-9 is the SWATS paper's own.
            _entry("swats", "SWATS", SWATS, "Keskar and Socher, 2017", _ADAM | {"eps": 1e-9}, BETAS, COUPLED),
            _entry("sm3", "SM3", SM3, "Anil et al., 2019", _SGD, COUPLED),
            _entry(
                "full-matrix-adagrad",
                "full-matrix Adagrad",
                FullMatrixAdagrad,
                "Duchi et al., 2011",
                {"lr": 1e-2},
                COUPLED,
            ),
        )
    }
)
