"""The optimizers that can be compared: how each is built, and over what it is tuned.

Nothing of torch is imported before an optimizer is built: titles and grids are read where no one trains.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.optimizer import ParamsT

Grid = Mapping[str, tuple[Any, ...]]

# The paper's section 5, "Hyperparameter Tuning". It names no values of weight decay and final_lr: those are ours.
LR: Grid = {"lr": (1e-1, 5e-2, 1e-2, 5e-3, 1e-3, 5e-4, 1e-4, 5e-5)}
MOMENTUM: Grid = {"momentum": (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)}
BETAS: Grid = {"betas": tuple(product((0.9, 0.99), (0.99, 0.999)))}
PARTIAL: Grid = {"partial": (1 / 4, 1 / 8, 1 / 16)}
FINAL_LR: Grid = {"final_lr": (0.1, 1.0)}
COUPLED: Grid = {"weight_decay": (0.0, 1e-4, 5e-4, 1e-3, 5e-3)}
DECOUPLED: Grid = {"weight_decay": (0.0, 1e-3, 1e-2, 1e-1, 1.0)}

# Ours: four half a decade apart, as many for everyone, around the value that each one's reference uses.
UP_TO_1 = (1.0, 0.3, 0.1, 0.03)
UP_TO_1E_1 = (1e-1, 3e-2, 1e-2, 3e-3)
UP_TO_1E_2 = (1e-2, 3e-3, 1e-3, 3e-4)
UP_TO_2E_2 = (2e-2, 6e-3, 2e-3, 6e-4)
UP_TO_1E_3 = (1e-3, 3e-4, 1e-4, 3e-5)
PLAIN_MOMENTUM: Grid = {"momentum": (0.9, 0.95)}


@dataclass(frozen=True)
class Entry:
    """Describe an optimizer that can be compared.

    Args:
      name: its key in `REGISTRY`.
      title: its name in tables and figures.
      reference: where it comes from.
      class_path: ``module:Class`` of its class, which is where its defaults are.
      overrides: the options that differ from the class's defaults.
      rates: the learning rates that are tried where nothing else is asked for.
      grid: for each option that is tuned, the paper's values; ours for what it does not have.
      builder: ``module:function`` of what builds it from ``params`` and options, if the class alone does not.
      scopes: whether it is to have the groups of `acmo.param_groups` with ``scopes=True``: which matrices are tables,
        heads and hidden layers.
      schedule: the only schedule that fits it; None: any.
    """

    name: str
    title: str
    reference: str
    class_path: str
    overrides: Mapping[str, Any]
    rates: tuple[float, ...]
    grid: Grid
    builder: str | None = None
    scopes: bool = False
    schedule: str | None = None

    @property
    def optimizer(self) -> "type[Optimizer]":
        """Return its class, imported now."""
        found: type[Optimizer] = _import(self.class_path)
        return found

    @property
    def defaults(self) -> dict[str, Any]:
        """Return every option that is set if none is given: the class's defaults, with the overrides."""
        return {**class_defaults(self.optimizer), **self.overrides}

    def build(self, params: "ParamsT", **options: Any) -> "Optimizer":
        """Build the optimizer of these parameters, with the defaults except for ``options``."""
        factory: Callable[..., Optimizer] = _import(self.builder or self.class_path)
        return factory(params, **{**self.overrides, **options})

    def build_for(self, model: "nn.Module", **options: Any) -> "Optimizer":
        """Build the optimizer of a model's trainable parameters.

        With `scopes`, only matrices and kernels are decayed, and a ``norm_scope`` among the options is for all groups.
        """
        if not self.scopes:
            return self.build([p for p in model.parameters() if p.requires_grad], **options)
        from acmo.parameter_groups import param_groups

        groups = param_groups(model, options.get("weight_decay"), scopes="norm_scope" not in options)
        return self.build(groups, **options)

    def points(self) -> list[dict[str, Any]]:
        """Return every combination of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    def __len__(self) -> int:
        """Return how many points the grid has."""
        return prod(len(values) for values in self.grid.values())


def class_defaults(optimizer: "type[Optimizer]") -> dict[str, Any]:
    """Return the options of an optimizer's constructor that have a default, with it."""
    parameters = inspect.signature(optimizer).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _import(class_path: str) -> Any:
    module, _, name = class_path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{name} needs the package {error.name}: pip install {error.name}") from error


def _entry(
    name: str,
    title: str,
    reference: str,
    class_path: str,
    rates: tuple[float, ...],
    *grids: Grid,
    own_rates: bool = False,
    builder: str | None = None,
    scopes: bool = False,
    schedule: str | None = None,
    **overrides: Any,
) -> Entry:
    lr: Grid = {"lr": rates} if own_rates else LR
    grid = {option: values for part in (lr, *grids) for option, values in part.items()}
    class_path = class_path if ":" in class_path else f"torch.optim:{class_path}"
    options, values = MappingProxyType(overrides), MappingProxyType(grid)
    return Entry(name, title, reference, class_path, options, rates, values, builder, scopes, schedule)


# torch's own are fused where torch can: RMSprop cannot. Momentum 0.9 is the first value of the paper's grid.
_ENTRIES = (
    _entry("acmo", "ACMo", "Huang et al., 2021", "acmo.optimizer:ACMo", UP_TO_1, COUPLED),
    _entry(
        "acmo-authors", "ACMo, authors' code", "github.com/Xunpeng746/ACMo, CIFAR",
        "acmo.rivals.authors_acmo:AuthorsACMo", UP_TO_1, COUPLED, own_rates=True,
    ),
    _entry(
        "acmo-authors-nmt", "ACMo, authors' NMT code", "github.com/Xunpeng746/ACMo, translation",
        "acmo.rivals.authors_acmo:AuthorsACMo", UP_TO_1, COUPLED, factor=0.9, norm_scope="global", own_rates=True,
    ),
    _entry(
        "row-acmo", "RowACMo", "this package", "acmo.row_acmo:RowACMo", UP_TO_1E_2, DECOUPLED, scopes=True,
        own_rates=True,
    ),
    _entry(
        "spectral-acmo", "SpectralACMo", "this package; Jordan et al., 2024", "acmo.spectral_acmo:SpectralACMo",
        UP_TO_2E_2, DECOUPLED, scopes=True, own_rates=True,
    ),
    _entry(
        "row-momentum", "row momentum", "Glentis et al., 2025", "acmo.rivals.unit_momentum:UnitMomentum",
        UP_TO_1E_2, PLAIN_MOMENTUM, DECOUPLED, scopes=True, own_rates=True,
    ),
    _entry(
        "spectral-momentum", "spectral momentum", "Jordan et al., 2024", "acmo.rivals.unit_momentum:UnitMomentum",
        UP_TO_2E_2, PLAIN_MOMENTUM, DECOUPLED, scopes=True, unit_step="spectral", own_rates=True,
        weight_decay=0.5,  # that of SpectralACMo, which it is compared with
    ),
    _entry(
        "muon", "Muon + AdamW", "Jordan et al., 2024; Liu et al., 2025", "acmo.rivals.muon:MuonAdamW", UP_TO_1E_2,
        DECOUPLED, scopes=True, own_rates=True,
    ),
    _entry("lion", "Lion", "Chen et al., 2023", "pytorch_optimizer:Lion", UP_TO_1E_3, DECOUPLED, own_rates=True),
    _entry(
        "schedule-free", "Schedule-Free AdamW", "Defazio et al., 2024", "schedulefree:AdamWScheduleFree", UP_TO_1E_2,
        DECOUPLED, schedule="constant", own_rates=True,
    ),
    _entry("sgd-momentum", "SGD-momentum", "Polyak, 1964", "SGD", UP_TO_1, MOMENTUM, COUPLED, momentum=0.9, fused=True),
    _entry(
        "nag", "NAG", "Nesterov, 1983; Sutskever et al., 2013", "SGD", UP_TO_1, MOMENTUM, COUPLED,
        momentum=0.9, nesterov=True, fused=True,
    ),
    _entry("adagrad", "Adagrad", "Duchi et al., 2011", "Adagrad", UP_TO_1E_1, COUPLED, fused=True),
    _entry("rmsprop", "RMSProp", "Tieleman and Hinton, 2012", "RMSprop", UP_TO_1E_2, COUPLED),
    _entry("adam", "Adam", "Kingma and Ba, 2015", "Adam", UP_TO_1E_2, BETAS, COUPLED, fused=True),
    _entry("amsgrad", "AMSGrad", "Reddi et al., 2018", "Adam", UP_TO_1E_2, BETAS, COUPLED, amsgrad=True, fused=True),
    _entry("adamw", "AdamW", "Loshchilov and Hutter, 2019", "AdamW", UP_TO_1E_2, BETAS, DECOUPLED, fused=True),
    _entry(
        "padam", "PAdam", "Chen et al., 2018", "acmo.rivals.padam:PAdam", UP_TO_1, BETAS, PARTIAL, COUPLED,
        bias_correction=True,
    ),
    _entry(
        "adabound", "AdaBound", "Luo et al., 2019", "acmo.rivals.adabound:AdaBound", UP_TO_1E_2, BETAS,
        FINAL_LR, COUPLED,
    ),
    _entry(
        "amsbound", "AMSBound", "Luo et al., 2019", "acmo.rivals.adabound:AdaBound", UP_TO_1E_2, BETAS, FINAL_LR,
        COUPLED, amsbound=True,
    ),
    _entry(
        "nd-adam", "ND-Adam", "Zhang et al., 2017", "acmo.rivals.ndadam:NDAdam", UP_TO_1E_2, BETAS, COUPLED,
        builder="acmo.rivals.ndadam:build_nd_adam",
    ),
    _entry("swats", "SWATS", "Keskar and Socher, 2017", "acmo.rivals.swats:SWATS", UP_TO_1E_2, BETAS, COUPLED),
    _entry("sm3", "SM3", "Anil et al., 2019", "acmo.rivals.sm3:SM3", UP_TO_1, COUPLED),
    _entry(
        "full-matrix-adagrad", "full-matrix Adagrad", "Duchi et al., 2011",
        "acmo.rivals.full_matrix_adagrad:FullMatrixAdagrad", UP_TO_1E_1, COUPLED,
    ),
)  # fmt: skip
REGISTRY: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
