"""ACMo as torch's test machinery sees it: its configurations, its errors, what it cannot do."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
)

from acmo import ACMo, native
from acmo.projections import L2Ball

KERNEL_IS_MISSING = native.kernel() is None
# The defaults of SpectralACMo, but a larger lr.
SPECTRAL: dict[str, Any] = {
    "norm_scope": "auto", "unit_step": "spectral", "lr": 0.01, "delta": 0.0, "decoupled_weight_decay": True
}  # fmt: skip


class Skip(NamedTuple):
    """A check (pattern of its name) that cannot apply to some cases (pattern of their names), and why."""

    check: str
    case: str
    reason: str


def configurations(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    kinds: dict[str, dict[str, Any]] = {
        "default": {},
        "lr": {"lr": 0.01},
        "tensor lr": {"lr": torch.tensor(0.01)},
        "no momentum": {"momentum": 0.0},
        "bisector": {"momentum": 1.0, "delta": 0.0},
        "coupled decay": {"weight_decay": 0.1},
        "decoupled decay": {"weight_decay": 0.1, "decoupled_weight_decay": True},
        "maximize": {"weight_decay": 0.1, "maximize": True},
        "scope group": {"norm_scope": "group", "weight_decay": 0.1},
        "scope tensor": {"norm_scope": "tensor"},
        "psi sqrt": {"psi": "sqrt"},
        # not with momentum 1: a single number's m then cancels, to 0 or to a rounding error as luck will have it
        "psi sqrt, scope tensor": {"psi": "sqrt", "norm_scope": "tensor"},
        "clipped": {"max_grad_norm": 0.5, "weight_decay": 0.1},
        "projected": {"projection": L2Ball(10.0)},
        "wide moment": {"momentum_dtype": torch.float64},
        "propagate": {"nonfinite": "propagate"},
        "rows": {"norm_scope": "auto"},
        "rows, unit steps": {"norm_scope": "auto", "unit_step": True, "lr": 0.01, "delta": 0.0},
        "columns, unit steps, decay": {"norm_scope": "column", "unit_step": True, "lr": 0.01, "weight_decay": 0.1},
        "unit steps": {"unit_step": True, "lr": 0.01},
        "spectral unit steps": SPECTRAL,
        "spectral unit steps, decay": {**SPECTRAL, "weight_decay": 0.1},
        "spectral unit steps, 3 iterations": {**SPECTRAL, "ns_steps": 3, "maximize": True},
    }
    return [OptimizerInput(params=None, kwargs=kwargs, desc=desc) for desc, kwargs in kinds.items()]


def _error(params: Any, error_regex: str, error_type: type[Exception] = ValueError, **kwargs: Any) -> Any:
    given = OptimizerInput(params=params, kwargs=kwargs, desc=error_regex)
    return ErrorOptimizerInput(given, error_type=error_type, error_regex=error_regex)


def _error_on_step(grad: torch.Tensor, error_regex: str, **kwargs: Any) -> Any:
    param = torch.nn.Parameter(torch.zeros(grad.shape))
    param.grad = grad
    error = _error([param], error_regex, FloatingPointError, **kwargs)
    error.error_on = OptimizerErrorEnum.STEP_ERROR
    return error


def errors(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    """Bad input, each with the error's text: it names the argument and quotes the value."""
    one, two = (torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for _ in range(2))

    def unlike(**option: Any) -> list[dict[str, Any]]:
        return [{"params": [one]}, {"params": [two], **option}]

    return [
        *get_error_inputs_for_all_optims(device, dtype),
        _error([], "empty parameter list"),
        _error(None, r"lr.*-0\.1", lr=-0.1),
        _error(None, r"momentum.*-0\.5", momentum=-0.5),
        _error(None, r"momentum.*1\.2", momentum=1.2),
        _error(None, r"delta.*-1", delta=-1.0),
        _error(None, r"weight_decay.*-1", weight_decay=-1.0),
        _error(None, r"norm_scope.*layer", norm_scope="layer"),
        _error(None, r"psi.*cube", psi="cube"),
        _error(None, r"nonfinite.*ignore", nonfinite="ignore"),
        _error(None, r"max_grad_norm.*-2", max_grad_norm=-2.0),
        _error(None, r"momentum_dtype.*int32", momentum_dtype=torch.int32),
        _error(unlike(norm_scope="tensor"), r"norm_scope.*tensor"),
        _error(unlike(psi="sqrt"), r"psi.*sqrt"),
        _error(unlike(max_grad_norm=1.0), r"max_grad_norm.*1\.0"),
        _error(unlike(nonfinite="raise"), r"nonfinite.*raise"),
        _error(unlike(foreach=True), r"foreach.*True"),
        _error(unlike(momentum=1.2), r"momentum.*1\.2"),
        _error([one], "foreach.*differentiable|differentiable.*foreach", Exception, foreach=True, differentiable=True),
        _error([one], "fused.*differentiable|differentiable.*fused", Exception, fused=True, differentiable=True),
        _error([one], "foreach.*fused|fused.*foreach", Exception, foreach=True, fused=True),
        _error_on_step(torch.tensor([1.0, torch.nan]), "parameter 0.*not finite", nonfinite="raise"),
    ]


SCHEDULERS = (
    [lambda opt: StepLR(opt, gamma=0.9, step_size=10)],
    [lambda opt: LinearLR(opt, start_factor=0.4, end_factor=0.8, total_iters=4)],
    [lambda opt: CosineAnnealingLR(opt, T_max=20)],
    [lambda opt: ExponentialLR(opt, gamma=0.99), lambda opt: ReduceLROnPlateau(opt)],
    # these two cycle `momentum` as well
    [lambda opt: OneCycleLR(opt, max_lr=0.1, total_steps=21)],
    [lambda opt: CyclicLR(opt, base_lr=0.01, max_lr=0.1, step_size_up=5)],
)

ACMO = OptimizerInfo(
    ACMo,
    optim_inputs_func=configurations,
    optim_error_inputs_func=errors,
    scheduler_inputs=SCHEDULERS,
    supported_impls=("foreach", "fused", "differentiable"),
    supports_fused_on=("cpu",),
    supports_sparse=True,  # by making them dense
    # what a state saved by torch's SGD lacks
    not_og_supported_flags=(
        "delta",
        "decoupled_weight_decay",
        "norm_scope",
        "psi",
        "max_grad_norm",
        "momentum_dtype",
        "nonfinite",
        "maximize",
        "foreach",
        "fused",
        "differentiable",
    ),
)

_ONE_NORM = "a complex parameter is one tensor, its real and imaginary parts are two: {} are of one tensor"
ACMO_SKIPS = (
    Skip("test_complex*", "wide moment-*", "momentum_dtype is a real dtype: with complex parameters it is an error"),
    Skip("test_complex_parameter_equals_two*", "*scope tensor-*", _ONE_NORM.format("the norms")),
    Skip("test_complex_parameter_equals_two*", "projected-*", _ONE_NORM.format("projections")),
    Skip("test_complex_parameter_equals_two*", "rows*", _ONE_NORM.format("the norms")),
    Skip("test_complex_parameter_equals_two*", "columns*", _ONE_NORM.format("the norms")),
    Skip("test_complex_parameter*", "*unit steps*", "n of a unit step counts complex entries once"),
    Skip(
        "test_weight_decay_of_a_group*", "rows*", "a row with a zero gradient takes no part, so it has no coupled decay"
    ),
    Skip("test_weight_decay_of_a_group*", "columns*", "a column with a zero gradient has no coupled decay"),
    Skip("test_strided_parameters*", "*unit steps*", "a unit step does not shrink, so rounding grows near the minimum"),
    *([Skip("*", "*-fused", "the C kernel was not built: no fused backend")] if KERNEL_IS_MISSING else []),
)
