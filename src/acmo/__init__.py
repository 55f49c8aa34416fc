"""ACMo: angle-calibrated moment methods for stochastic optimization (Huang et al., AAAI 2021), for PyTorch."""

from importlib.metadata import PackageNotFoundError, version

from acmo import projections
from acmo.groups import param_groups
from acmo.iterates import IterateSampler
from acmo.optimizer import ACMo

try:
    __version__ = version("acmo")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["ACMo", "IterateSampler", "__version__", "param_groups", "projections"]
