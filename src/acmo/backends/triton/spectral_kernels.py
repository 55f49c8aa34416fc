"""What a spectral step needs beside `acmo.backends.triton.column_kernels`, which writes what is orthogonalised."""

import triton
import triton.language as tl

from acmo.backends.triton.column_kernels import HEIGHT, WIDTH
from acmo.backends.triton.fields import (
    COLUMNS,
    ENTRIES,
    FIELDS,
    FIRST_LINE,
    KAPPA,
    KAPPA_ADDRESS,
    LINE_COEFFICIENTS,
    LINE_DECAYS,
    LINE_LENGTH,
    LR,
    LR_ADDRESS,
    PARAM,
    ROWS,
)
from acmo.backends.triton.row_arithmetic import move, numbers_of, read_number, round_theta


@triton.jit(do_not_specialize=["program_0", "programs"])
def step_along(
    tensors, owners, numbers, coefficients, directions, found_inf, program_0, programs, P: tl.constexpr,
    WIDE: tl.constexpr, D: tl.constexpr, RANDOM: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Lines 7 and 8 for HEIGHT rows of a matrix: θ moves along its direction, an orthogonalised moment of dtype D."""
    if found_inf is not None:
        if tl.load(found_inf).to(tl.float32) != 0:
            return
    program = program_0 + tl.program_id(0).to(tl.int64)
    j = tl.load(owners + program)
    tensor = tensors + j * FIELDS
    group = numbers_of(numbers, tensor)
    own = coefficients + tl.load(tensor + FIRST_LINE) * LINE_COEFFICIENTS
    length = tl.load(own + LINE_LENGTH)
    moved = tl.where(length != 0, tl.sqrt(tl.load(tensor + ENTRIES).to(tl.float64)) + length * 0.0, 0.0).to(WIDE)
    kappa = tl.where(tl.load(own + LINE_DECAYS) != 0, read_number(group, KAPPA, KAPPA_ADDRESS), 1.0).to(WIDE)
    alpha = read_number(group, LR, LR_ADDRESS).to(WIDE)
    columns = tl.load(tensor + COLUMNS)
    p_at = tl.load(tensor + PARAM).to(tl.pointer_type(P))
    o_at = tl.load(directions + j).to(tl.pointer_type(D))
    if ALIGNED:
        columns = columns // 8 * 8
        p_at = tl.multiple_of(p_at, 16)
        o_at = tl.multiple_of(o_at, 16)
    row = tl.load(owners + programs + program) * HEIGHT + tl.arange(0, HEIGHT)
    known = row < tl.load(tensor + ROWS)
    for i in range(0, columns, WIDTH):
        column = i + tl.arange(0, WIDTH)
        at = (row * columns)[:, None] + column[None, :]
        here = known[:, None] & (column < columns)[None, :]
        theta = move(
            tl.load(p_at + at, here, 0.0).to(WIDE), tl.load(o_at + at, here, 0.0).to(WIDE), moved, alpha, kappa
        )
        tl.store(p_at + at, round_theta(theta, tensor, at, P, RANDOM), here)
