"""How a step on a GPU is executed: by the Triton kernels as a whole, part by part beside foreach, or not by them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from acmo import native
from acmo.backends import foreach, foreach_rows, rows, two_pass
from acmo.backends.triton import availability, fit
from acmo.step_data import GroupOptions, Part, StepFunction, StepOptions


def is_on_gpu(parts: Sequence[Part]) -> bool:
    """Return whether a part is on a device that the kernels are for."""
    return any([part.params[0].device.type in availability.DEVICE_TYPES for part in parts])  # noqa: C419


def choose(
    parts: Sequence[Part],
    groups: Sequence[GroupOptions],
    options: StepOptions,
    by_row: bool,
    required: bool,
    tables: dict[Any, Any],
) -> StepFunction:
    """Return the function that executes this step.

    Args:
      parts: of the step; some are on a GPU.
      groups: of the optimizer.
      options: of the step.
      by_row: whether it goes by row.
      required: ``fused=True``: raise where the kernels cannot be used.
      tables: the kernels' cache, which the optimizer keeps.
    """
    if torch.compiler.is_compiling():
        return choose_compiled(parts, groups, by_row)
    able = list_able(parts, groups, by_row, tables)
    if required and not all(able):
        fit.require(parts, groups, able, by_row)
    alone = options.sum_over_shards is None and options.process_group is None
    together = len({part.params[0].device for part in parts}) == 1
    if not any(able):
        return fall_back(parts, by_row)
    if by_row:
        from acmo.backends.triton import row_steps

        if all(able) and alone and together and row_steps.can_step_together(parts, options):
            return partial(row_steps.step, cache=tables)
        ways: list[rows.StepPart] = []
        for part, ok in zip(parts, able, strict=True):
            if ok and part.scope == "spectral":
                from acmo.backends.triton import spectral_steps

                ways.append(partial(spectral_steps.step_part, cache=tables))
            else:
                ways.append(partial(row_steps.step_part, cache=tables) if ok else foreach_rows.step_part)
        return partial(rows.step, ways=ways)
    from acmo.backends.triton import ops, steps

    if all(able) and alone and together:
        return partial(steps.step, cache=tables)
    passes = [ops if ok else foreach for ok in able]
    return partial(two_pass.step, passes=passes)


def list_able(
    parts: Sequence[Part], groups: Sequence[GroupOptions], by_row: bool, tables: dict[Any, Any]
) -> list[bool]:
    """Return which parts the kernels can step; as long as nothing but addresses changes, that is known."""
    usable = [availability.is_usable(part.params[0].device) for part in parts]
    layouts = [part.layout for part in parts]
    key = usable, by_row, [group.first_number for group in groups]
    known = tables.get("able")
    if known is None or None in layouts or known[:2] != (layouts, key):
        can_step = fit.can_step_rows if by_row else fit.can_step
        able = [ok and can_step(part, groups[part.group]) for ok, part in zip(usable, parts, strict=True)]
        tables["able"] = known = (layouts, key, able)
    result: list[bool] = known[2]
    return result


def choose_compiled(parts: Sequence[Part], groups: Sequence[GroupOptions], by_row: bool) -> StepFunction:
    """Return the function to compile: passes as custom ops; by row foreach, which the compiler fuses."""
    if by_row or not all([fit.can_compile(part, groups[part.group]) for part in parts]):  # noqa: C419
        return fall_back(parts, by_row)
    from acmo.backends.triton import ops

    return partial(two_pass.step, passes=[ops] * len(parts))


def prepare(params: Sequence[Tensor]) -> None:
    """Find out whether the kernels can be used for parameters: a compiled step cannot try it."""
    for kind in availability.DEVICE_TYPES:
        for device in {p.device for p in params if p.device.type == kind}:
            availability.usable[str(device)] = availability.is_usable(device)


def fall_back(parts: Sequence[Part], by_row: bool) -> StepFunction:
    """Return the step by foreach."""
    if by_row:
        return partial(rows.step, ways=[foreach_rows.step_part] * len(parts))
    return partial(two_pass.step, passes=[foreach] * len(parts))


def require_kernel(params: Sequence[Tensor]) -> None:
    """For ``fused=True``: raise where the kernel for the parameters' devices is missing, and say what is."""
    for p in params:
        if p.device.type in availability.DEVICE_TYPES:
            why = availability.explain_unusable(p.device)
            if why is not None:
                raise RuntimeError(f"fused=True, but the Triton kernel cannot be used: {why}.")
        elif p.is_cpu:
            native.required()
