"""Every variant of the kernels that steps launch, with the types of its arguments: to compile them ahead of time."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton.language as tl

from acmo.backends.triton import (
    column_kernels,
    fields,
    pass_kernels,
    row_finish,
    row_kernels,
    row_steps,
    row_tables,
    scalar_kernels,
    spectral_kernels,
    steps,
    tensor_kernels,
)

POINTERS = {
    "tensors": "*i64",
    "owners": "*i64",
    "clocks": "*i64",
    "numbers": "*fp64",
    "partials": "*fp64",
    "sums": "*fp64",
    "groups": "*fp64",
    "coefficients": "*fp64",
    "norms": "*fp64",
    "clip_scale": "*fp64",
    "flags": "*i32",
    "counts": "*i32",
    "applied": "*i8",
    "grad_scale": "*fp32",
    "found_inf": "*fp32",
    "chunk_0": "i32",
    "chunks": "i32",
    "n": "i32",
    "n_groups": "i32",
    "stats": "*fp64",
    "found": "*fp64",
    "factor": "*fp64",
    "program_0": "i32",
    "programs": "i32",
    "slots": "i32",
    "lines": "i32",
    "units": "*i64",
    "directions": "*i64",
}
PAIRS = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.float64, torch.float64),
]
ROW_PAIRS = [*PAIRS, (torch.float32, torch.int8), (torch.bfloat16, torch.int8)]
ROW_PAIRS.remove((torch.float16, torch.float16))  # float16 moments are not for rows


class Variant(NamedTuple):
    """A kernel with its constants, ready to be compiled."""

    name: str
    kernel: Any
    arguments: dict[str, str]
    constants: dict[str, Any]
    warps: int


def list_variants() -> Iterator[Variant]:
    """List the variants: the passes by dtypes and options, and the scalars by scope."""
    for p, m in PAIRS:
        name = f"{p} {m}".replace("torch.", "")
        types = {"P": steps.TYPES[p], "M": steps.TYPES[m], "G": steps.TYPES[p], "WIDE": steps.wide_type(p)}
        for coupled in (False, True):
            for inner in (False, True):
                options = {"COUPLED": coupled, "INNER": inner, "MOMENTS": False, "BLOCK": steps.BLOCK}
                label = " coupled" * coupled + " unit" * inner
                yield make(f"sum_chunks {name}{label}", pass_kernels.sum_chunks, {**types, **options}, steps.WARPS)
            options = {"COUPLED": coupled, "RANDOM": False, "BLOCK": steps.BLOCK}
            label = " coupled" * coupled
            yield make(f"update_chunks {name}{label}", pass_kernels.update_chunks, {**types, **options}, steps.WARPS)
        if p == torch.bfloat16:
            options = {"COUPLED": False, "RANDOM": True, "BLOCK": steps.BLOCK}
            yield make(f"update_chunks {name} random", pass_kernels.update_chunks, {**types, **options}, steps.WARPS)
    kept = {"M": tl.float32, "BLOCK": steps.BLOCK}
    yield make("sum_kept_moments float32", pass_kernels.sum_kept_moments, kept, steps.WARPS)
    for scope, code in steps.SCOPES.items():
        for rest in (False, True):
            flags = dict.fromkeys(("COUPLED", "UNIT", "SQRT", "CLIP", "MOMENTS"), rest)
            sizes = {"CHECK": True, "LEVEL": 1e-6, "TILE": steps.TILE, "LANES": steps.LANES}
            constants = {"SCOPE": code.value, **flags, **sizes}
            name = f"find_scalars {scope}" + " all options" * rest
            yield make(name, scalar_kernels.find_scalars, constants, 8)
    yield make("finish_step", tensor_kernels.finish_step, {"SQRT": True, "TILE": steps.TILE}, 4)
    totals = {"ROWS_OF_SUMS": fields.SUMS.value, "FIRST": 0, "TILE": steps.TILE}
    yield make("sum_tensors", tensor_kernels.sum_tensors, totals, 4)
    yield from list_row_variants()


def list_row_variants() -> Iterator[Variant]:
    """List the variants by row: those of unit steps, without and with coupled decay, aligned and not."""
    for p, m in ROW_PAIRS:
        name = f"{p} {m}".replace("torch.", "")
        wide = row_steps.wide_dtype(p, m)
        types = {"P": steps.TYPES[p], "M": steps.TYPES[m], "G": steps.TYPES[p], "WIDE": steps.TYPES[wide]}
        for aligned, coupled in ((True, False), (True, True), (False, False)):
            options = {"COUPLED": coupled, "UNIT": True, "RANDOM": False, "ALIGNED": aligned}
            label = " coupled" * coupled + " unaligned" * (not aligned)
            tile = {"PROPAGATE": False, "LEVEL": row_steps.rounding_level(p, m, False), "LANES": row_tables.LANES}
            yield make(f"step_rows {name}{label}", row_kernels.step_rows, {**types, **options, **tile}, row_steps.WARPS)
            kernel = column_kernels.update_lines
            lines = {**types, **options, "units": None, "D": tl.float32}
            yield make(f"update_lines {name}{label}", kernel, lines, 8)
        if p == torch.bfloat16 and m == torch.bfloat16:
            yield make(
                f"step_rows {name} random",
                row_kernels.step_rows,
                {**types, **options, **tile, "RANDOM": True, "ALIGNED": True},
                row_steps.WARPS,
            )
        product = tl.float64 if p == torch.float64 else tl.bfloat16
        units = {**types, **options, "ALIGNED": True, "D": product}
        yield make(f"update_lines {name} spectral", column_kernels.update_lines, units, 8)
        along = {"P": types["P"], "WIDE": types["WIDE"], "D": product, "RANDOM": False, "ALIGNED": True}
        yield make(f"step_along {name}", spectral_kernels.step_along, along, 8)
    constants = {"UNIT": True, "PROPAGATE": False, "LEVEL": 1e-6}
    yield make("find_line_scalars", column_kernels.find_line_scalars, constants, 8)
    yield make("finish_rows", row_finish.finish_rows, {"COUNT": True, "TILE": steps.TILE}, 8)


def make(name: str, kernel: Any, constants: dict[str, Any], warps: int) -> Variant:
    """Return a variant whose pointers have the types that steps pass."""
    arguments = {key: POINTERS[key] for key in kernel.arg_names if key not in constants}
    return Variant(name, kernel, arguments, constants, warps)
