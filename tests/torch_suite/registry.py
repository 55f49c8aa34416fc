"""The optimizers that go through the suite: one entry each, and the decorator that runs a check over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from zlib import crc32

import pytest
import torch
from torch.optim import Optimizer
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

from .acmo_info import ACMO, ACMO_SKIPS, KERNEL_IS_MISSING, Skip
from .rival_infos import RIVALS

FLAGS: dict[str, dict[str, bool]] = {
    "reference": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "differentiable": {"differentiable": True},
}
BACKENDS = ("reference", "foreach", "fused")  # those that must agree
EVERY_WAY = tuple(FLAGS)


@dataclass(frozen=True)
class Entry:
    """An optimizer under test.

    Args:
      info: torch's own record of it: class, configurations, error inputs, schedulers, what it supports.
      skips: the checks that cannot apply, each with its reason.
      default_backend: what runs on the CPU when neither `foreach` nor `fused` is given.
      fills_from_constructor: whether options that a loaded state lacks come from the constructor.
      spares_gradients: whether scaled gradients are left as they were (torch's fused unscales them in place).
    """

    info: OptimizerInfo
    skips: tuple[Skip, ...] = ()
    default_backend: str = "reference"
    fills_from_constructor: bool = False
    spares_gradients: bool = False

    @property
    def name(self) -> str:
        return self.info.name


@dataclass(frozen=True)
class Case:
    """One configuration of one optimizer, executed in one way."""

    entry: Entry
    index: int
    backend: str

    @property
    def info(self) -> OptimizerInfo:
        return self.entry.info

    @property
    def desc(self) -> str:
        return f"{self.info.optim_inputs_func(device='cpu')[self.index].desc}-{self.backend}"

    def kwargs(self, backend: str | None = None, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        """The constructor's arguments, new each time: a Tensor lr is changed by schedulers."""
        flags = FLAGS[backend or self.backend]
        given = self.info.optim_inputs_func(device="cpu", dtype=dtype)[self.index].kwargs
        return given | {name: on for name, on in flags.items() if name in self.info.supported_impls}

    def build(
        self, params: Any, backend: str | None = None, dtype: torch.dtype = torch.float32, **overrides: Any
    ) -> Optimizer:
        return self.info.optim_cls(params, **(self.kwargs(backend, dtype) | overrides))


def optimizers(*backends: str, configurations: int | None = None) -> Callable[[Callable[..., None]], Any]:
    """Run a check, as argument `case`, over every configuration of every optimizer, in the given ways.

    A check runs each configuration in one way, and the ways rotate over configurations and checks: every check meets
    every configuration and every way, and every configuration meets every way in some check. All other cases are
    nightly.

    Where options cannot matter, `configurations=1` takes each optimizer's first alone.
    """

    def decorate(check: Callable[..., None]) -> Any:
        params, turn = [], crc32(check.__name__.encode())  # the same turn whichever files are collected
        for entry in ENTRIES:
            for index in range(len(entry.info.optim_inputs_func(device="cpu")[:configurations])):
                ways = [b for b in backends if b == "reference" or b in entry.info.supported_impls]
                cases = [Case(entry, index, backend) for backend in ways]
                applicable = [case for case in cases if not _skips(check, case)] or cases
                first = (turn + index) % len(applicable) if applicable else 0
                chosen = applicable if configurations else applicable[first : first + 1]
                for case in cases:
                    marks = _skips(check, case) + ([] if case in chosen else [pytest.mark.nightly])
                    params.append(pytest.param(case, id=f"{entry.name}-{case.desc}", marks=marks))
        return pytest.mark.parametrize("case", params)(check)

    return decorate


def optimizer_entries(check: Callable[..., None]) -> Any:
    """Run a check once an optimizer, as argument `entry`."""
    return pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in ENTRIES])(check)


def _skips(check: Callable[..., None], case: Case) -> list[pytest.MarkDecorator]:
    return [
        pytest.mark.skip(reason=skip.reason)
        for skip in case.entry.skips
        if fnmatchcase(check.__name__, skip.check) and fnmatchcase(case.desc, skip.case)
    ]


def _of_torch(cls: type[Optimizer]) -> OptimizerInfo:
    return next(info for info in optim_db if info.optim_cls is cls)


OF_TORCH = (
    Skip("test_strided_parameters_*", "*-fused", "torch's fused kernels read a strided parameter as if contiguous"),
    *(
        Skip("test_unscaling_by_itself_*", f"*-{backend}", "torch's optimizers leave that to the GradScaler, but fused")
        for backend in ("reference", "foreach")
    ),
)

ENTRIES = [
    Entry(
        ACMO,
        skips=ACMO_SKIPS,
        default_backend="foreach" if KERNEL_IS_MISSING else "fused",
        fills_from_constructor=True,
        spares_gradients=True,
    ),
    Entry(
        _of_torch(torch.optim.SGD),
        skips=(
            *OF_TORCH,
            Skip("test_*_survives_an_inf_*", "*-fused", "torch's SGD goes on with a buffer that was never written"),
            Skip("test_every_parameter_that_was_stepped_has_state", "*", "torch's SGD has none without momentum"),
            *[
                Skip("test_fused_matches_*_half_precision", pattern, "torch's fused SGD is off there: 90 entries")
                for pattern in ("*momentum*-fused", "dampening*-fused", "nesterov*-fused")
            ],
            Skip("test_they_match_with_matrices_*", "*", "torch's SGD computes in half precision where it stores so"),
        ),
    ),
    Entry(
        _of_torch(torch.optim.Adam),
        skips=(
            *OF_TORCH,
            Skip("test_*tensor_lr_*", "*-foreach", "torch's Adam takes a Tensor lr with foreach on a GPU alone"),
            Skip("test_they_match_whatever_the_default_dtype_is", "*-fused", "torch's fused Adam has a float32 step"),
        ),
    ),
    *(Entry(info, skips=skips, fills_from_constructor=True) for info, skips in RIVALS),
]
