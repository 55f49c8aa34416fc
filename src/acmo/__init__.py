"""ACMo: angle-calibrated moment methods for stochastic optimization (Huang et al., AAAI 2021), for PyTorch."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acmo import projections
    from acmo.groups import param_groups
    from acmo.iterates import IterateSampler
    from acmo.optimizer import ACMo

try:
    __version__ = version("acmo")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["ACMo", "IterateSampler", "__version__", "param_groups", "projections"]

_HOMES = {"ACMo": "acmo.optimizer", "IterateSampler": "acmo.iterates", "param_groups": "acmo.groups"}


def __getattr__(name: str) -> Any:
    # At first use: the command line answers --help without the seconds that importing torch takes.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "projections":
        return import_module("acmo.projections")
    raise AttributeError(f"module 'acmo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
