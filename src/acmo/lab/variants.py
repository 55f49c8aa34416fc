"""Ways to make ACMo that the lab's presets compare; named there as ``acmo.lab.variants:…``."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from acmo.optimizer import ACMo


def by_kind(params: Iterable[Tensor], **options: Any) -> ACMo:
    """Return ACMo on two groups, as `acmo.param_groups` forms them: matrices and kernels; biases and norms.

    Args:
      params: the parameters.
      **options: of `ACMo`, the same for both groups.
    """
    params = list(params)
    groups = [[p for p in params if p.ndim >= 2], [p for p in params if p.ndim < 2]]
    return ACMo([{"params": group} for group in groups if group], **options)
