"""ACMo: angle-calibrated moment methods for stochastic optimization (Huang et al., AAAI 2021), for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acmo import projections
    from acmo.backward import step_in_backward
    from acmo.iterate_sampler import IterateSampler
    from acmo.optimizer import ACMo
    from acmo.parameter_groups import param_groups
    from acmo.row_acmo import RowACMo
    from acmo.spectral_acmo import SpectralACMo

    __version__: str

__all__ = [
    "ACMo",
    "IterateSampler",
    "RowACMo",
    "SpectralACMo",
    "__version__",
    "param_groups",
    "projections",
    "step_in_backward",
]

_HOMES = {
    "ACMo": "acmo.optimizer",
    "IterateSampler": "acmo.iterate_sampler",
    "RowACMo": "acmo.row_acmo",
    "SpectralACMo": "acmo.spectral_acmo",
    "param_groups": "acmo.parameter_groups",
    "step_in_backward": "acmo.backward",
}


def __getattr__(name: str) -> Any:
    # At first use: the command line answers --help without the seconds that importing torch takes.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "projections":
        return import_module("acmo.projections")
    if name == "__version__":
        return _read_version()
    raise AttributeError(f"module 'acmo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def _read_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("acmo")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
