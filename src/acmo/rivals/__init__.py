"""The optimizers that ACMo is compared with: those that torch lacks, and a registry of all."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acmo.rivals.registry import REGISTRY, Entry

if TYPE_CHECKING:
    from acmo.rivals.adabound import AdaBound
    from acmo.rivals.authors_acmo import AuthorsACMo
    from acmo.rivals.full_matrix_adagrad import FullMatrixAdagrad
    from acmo.rivals.muon import MuonAdamW
    from acmo.rivals.ndadam import NDAdam, vector_groups
    from acmo.rivals.padam import PAdam
    from acmo.rivals.sm3 import SM3
    from acmo.rivals.swats import SWATS
    from acmo.rivals.unit_momentum import UnitMomentum

__all__ = [
    "REGISTRY",
    "SM3",
    "SWATS",
    "AdaBound",
    "AuthorsACMo",
    "Entry",
    "FullMatrixAdagrad",
    "MuonAdamW",
    "NDAdam",
    "PAdam",
    "UnitMomentum",
    "vector_groups",
]

_HOMES = {
    "AdaBound": "acmo.rivals.adabound",
    "AuthorsACMo": "acmo.rivals.authors_acmo",
    "FullMatrixAdagrad": "acmo.rivals.full_matrix_adagrad",
    "MuonAdamW": "acmo.rivals.muon",
    "NDAdam": "acmo.rivals.ndadam",
    "PAdam": "acmo.rivals.padam",
    "SM3": "acmo.rivals.sm3",
    "SWATS": "acmo.rivals.swats",
    "UnitMomentum": "acmo.rivals.unit_momentum",
    "vector_groups": "acmo.rivals.ndadam",
}


def __getattr__(name: str) -> Any:
    # At first use: the registry is read where nothing is trained, and torch takes seconds to import.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'acmo.rivals' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
