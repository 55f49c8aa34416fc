"""The rivals as torch's test machinery sees them. Few configurations each: what they share is ACMo's and torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, StepLR
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
)

from acmo.rivals import SM3, SWATS, AdaBound, FullMatrixAdagrad, NDAdam, PAdam

from .acmo_info import Skip, _error

SCHEDULERS = (
    [lambda opt: StepLR(opt, gamma=0.9, step_size=10)],
    [lambda opt: LinearLR(opt, start_factor=0.4, end_factor=0.8, total_iters=4)],
    [lambda opt: CosineAnnealingLR(opt, T_max=20), lambda opt: ReduceLROnPlateau(opt)],
)


def _configurations(half: dict[str, Any], kinds: dict[str, dict[str, Any]]) -> Callable[..., list[OptimizerInput]]:
    """`half`: options without which an epsilon would vanish in float16."""

    def configurations(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
        narrow = half if dtype is torch.float16 else {}
        return [OptimizerInput(params=None, kwargs={**kwargs, **narrow}, desc=desc) for desc, kwargs in kinds.items()]

    return configurations


def _errors(*own: tuple[str, dict[str, Any]]) -> Callable[..., list[ErrorOptimizerInput]]:
    """What every optimizer refuses, and what this one does: (text of the error, options)."""

    def errors(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
        common = (r"lr.*-0\.1", {"lr": -0.1}), (r"weight_decay.*-1", {"weight_decay": -1.0})
        return [
            *get_error_inputs_for_all_optims(device, dtype),
            _error([], "empty parameter list"),
            *(_error(None, regex, **kwargs) for regex, kwargs in (*common, *own)),
        ]

    return errors


_OF_ADAMS = (
    (r"betas\[0\].*1\.0", {"betas": (1.0, 0.999)}),
    (r"betas\[1\].*-0\.5", {"betas": (0.9, -0.5)}),
    (r"betas.*pair.*0\.9", {"betas": (0.9,)}),
    (r"eps.*-1", {"eps": -1.0}),
)


def _info(
    cls: type[Optimizer],
    kinds: dict[str, dict[str, Any]],
    errors: Callable[..., list[ErrorOptimizerInput]],
    newer: tuple[str, ...],
    half: dict[str, Any] | None = None,
    impls: tuple[str, ...] = (),
) -> OptimizerInfo:
    return OptimizerInfo(
        cls,
        optim_inputs_func=_configurations(half or {}, kinds),
        optim_error_inputs_func=errors,
        scheduler_inputs=SCHEDULERS,
        supported_impls=impls,
        supports_fused_on=(),
        not_og_supported_flags=(*newer, "maximize", *impls),
    )


_MAXIMIZE: dict[str, Any] = {"weight_decay": 0.1, "maximize": True}

PADAM = _info(
    PAdam,
    {"default": {}, "corrected": {"bias_correction": True, "partial": 0.5, "lr": 0.01}, "maximize": _MAXIMIZE},
    _errors(*_OF_ADAMS, (r"partial.*0\.7", {"partial": 0.7}), (r"partial.*0", {"partial": 0.0})),
    newer=("bias_correction",),
    half={"eps": 1e-3},
    impls=("foreach",),
)
ADABOUND = _info(
    AdaBound,
    {
        "default": {},
        "amsbound, decoupled": {"amsbound": True, "weight_decay": 0.1, "decoupled_weight_decay": True},
        "maximize": _MAXIMIZE,
    },
    _errors(
        *_OF_ADAMS, (r"gamma.*1\.5", {"gamma": 1.5}), (r"final_lr.*-1", {"final_lr": -1.0}), (r"lr.*0", {"lr": 0.0})
    ),
    newer=("amsbound", "decoupled_weight_decay", "base_lr"),
    half={"eps": 1e-3},
    impls=("foreach",),
)
ND_ADAM = _info(
    NDAdam,
    {"default": {}, "vectors": {"vector_axes": (-1,), "lr": 0.05}, "maximize": _MAXIMIZE},
    _errors(*_OF_ADAMS),
    newer=("vector_axes",),
)
SWATS_INFO = _info(
    # the second configuration switches as soon as it may
    SWATS,
    {"default": {}, "switched": {"tolerance": 1.0, "lr": 0.01}, "maximize": _MAXIMIZE},
    _errors(*_OF_ADAMS, (r"tolerance.*-1", {"tolerance": -1.0})),
    newer=("tolerance",),
)
SM3_INFO = _info(
    SM3,
    {"default": {}, "no momentum, maximize": {"momentum": 0.0, **_MAXIMIZE}},
    _errors((r"momentum.*1\.0", {"momentum": 1.0})),
    newer=("momentum",),
)
FULL_MATRIX_ADAGRAD = _info(
    FullMatrixAdagrad,
    {"default": {}, "maximize": _MAXIMIZE},
    _errors((r"size_limit.*0", {"size_limit": 0})),
    newer=("size_limit",),
)

_UNSCALING = Skip("test_unscaling_by_itself_*", "*", "as torch's optimizers, they leave that to the GradScaler")
_UNIT = "vectors are of length 1 after any step, whatever it was made of"

RIVALS: tuple[tuple[OptimizerInfo, tuple[Skip, ...]], ...] = (
    (PADAM, (_UNSCALING,)),
    (
        ADABOUND,
        (_UNSCALING, Skip("test_a_group_without_lr_*", "*", "the bounds are final_lr's, relative to the first lr")),
    ),
    (
        ND_ADAM,
        (
            _UNSCALING,
            Skip("test_complex*", "vectors-*", "vectors of complex parameters are an error"),
            Skip("test_a_step_with_zero_gradients_*", "vectors-*", _UNIT),
            Skip("test_a_group_without_lr_*", "vectors-*", _UNIT),
            Skip("test_tensor_lr_filled_*", "vectors-*", "made 1 again, a length changes by rounding"),
            Skip("test_weight_decay_of_a_group_*", "vectors-*", _UNIT),
        ),
    ),
    (
        SWATS_INFO,
        (
            _UNSCALING,
            Skip("test_a_group_without_lr_*", "switched-*", "after the switch there is one rate for all"),
            Skip("test_state_loaded_for_another_dtype_*", "switched-*", "a native state of 1 step is still Adam's"),
        ),
    ),
    (SM3_INFO, (_UNSCALING, Skip("test_complex*", "*", "SM3 refuses complex parameters: their cover is not defined"))),
    (FULL_MATRIX_ADAGRAD, (_UNSCALING,)),
)
