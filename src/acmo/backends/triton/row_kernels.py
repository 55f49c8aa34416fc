"""A step by row in one launch: a program reads its rows once, keeps them in registers, and writes m and θ.

Rows of up to 1,024 entries fit into a tile; longer ones are read twice, the second time from the cache. Tensors by
column, and long tensors that are one row, are only summed here: `acmo.backends.triton.column_kernels` has the rest.
"""

import triton
import triton.language as tl

from acmo.backends.triton.column_kernels import sum_lines
from acmo.backends.triton.fields import (
    BETA,
    DELTA,
    ENTRIES,
    FIELDS,
    FIRST_CHUNK,
    KAPPA,
    KAPPA_ADDRESS,
    KIND,
    LAMBDA,
    LONG_ROW,
    LR,
    LR_ADDRESS,
    ROWS,
    SCALE,
)
from acmo.backends.triton.pass_kernels import to_moment
from acmo.backends.triton.row_arithmetic import (
    add_decay,
    find_factor,
    find_row_length,
    locate,
    move,
    numbers_of,
    read_number,
    report_rows,
    round_theta,
    to_bytes,
    weigh,
)


@triton.jit
def step_tile(
    tensor, numbers, out, slots, index, s, P: tl.constexpr, M: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr,
    COUPLED: tl.constexpr, UNIT: tl.constexpr, PROPAGATE: tl.constexpr, RANDOM: tl.constexpr, ALIGNED: tl.constexpr,
    LEVEL: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Step HEIGHT rows of up to WIDTH entries."""
    columns, p_at, m_at, g_at = locate(tensor, P, M, G, ALIGNED)
    rows = index * HEIGHT + tl.arange(0, HEIGHT)
    lanes = tl.arange(0, WIDTH)
    known = rows < tl.load(tensor + ROWS)
    here = known[:, None] & (lanes < columns)[None, :]
    at = (rows * columns)[:, None] + lanes[None, :]
    row = numbers_of(numbers, tensor)
    stored = tl.load(g_at + at, here, 0.0)
    g = stored.to(WIDE) * s.to(WIDE)
    m = tl.load(m_at + at, here, 0.0).to(WIDE)
    theta = tl.load(p_at + at, here, 0.0).to(WIDE)
    if M == tl.int8:
        scale_at = tl.load(tensor + SCALE).to(tl.pointer_type(tl.float32)) + rows
        m = m * tl.load(scale_at, known, 0.0).to(WIDE)[:, None]
    wide_g = stored.to(tl.float64)
    raw_sq = tl.sum(wide_g * wide_g, 1) * s * s
    if COUPLED:
        g = add_decay(g, tl.load(row + LAMBDA).to(WIDE), theta)
    wide_g = g.to(tl.float64)
    wide_m = m.to(tl.float64)
    grad_sq = tl.sum(wide_g * wide_g, 1)
    moment_sq = tl.sum(wide_m * wide_m, 1)
    beta = tl.load(row + BETA)
    delta = tl.load(row + DELTA)
    moves, decays, weight, divisor = weigh(raw_sq, grad_sq, moment_sq, beta, delta, PROPAGATE)
    new = g + (m / divisor.to(WIDE)[:, None]) * weight.to(WIDE)[:, None]
    wide_new = new.to(tl.float64)
    new_sq = tl.sum(wide_new * wide_new, 1)
    entries = tl.load(tensor + ENTRIES).to(tl.float64)
    length = find_row_length(new_sq, grad_sq, moves, entries, UNIT, LEVEL)
    if UNIT:
        new = tl.where((length != 0)[:, None], new, 0.0)
    alpha = read_number(row, LR, LR_ADDRESS).to(WIDE)
    kappa = tl.where(decays, read_number(row, KAPPA, KAPPA_ADDRESS), 1.0)
    theta = move(theta, new, length.to(WIDE)[:, None], alpha, kappa.to(WIDE)[:, None])
    writes = known & ((length != 0) | (kappa != 1.0))
    tl.store(p_at + at, round_theta(theta, tensor, at, P, RANDOM), here & writes[:, None])
    if M == tl.int8:
        step = (tl.max(tl.abs(new), 1) / 127.0).to(tl.float32)
        tl.store(m_at + at, to_bytes(new, step.to(WIDE)[:, None]), here & moves[:, None])
        tl.store(scale_at, step, known & moves)
    else:
        tl.store(m_at + at, to_moment(new, M), here & moves[:, None])
    report_rows(out, slots, known, moves, decays, raw_sq, grad_sq, moment_sq, new_sq, weight, divisor)


@triton.jit
def step_long_row(
    tensor, numbers, out, slots, index, s, P: tl.constexpr, M: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr,
    COUPLED: tl.constexpr, UNIT: tl.constexpr, PROPAGATE: tl.constexpr, RANDOM: tl.constexpr, ALIGNED: tl.constexpr,
    LEVEL: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Step one row of any length, which is read twice; three times for an int8 moment, or where g and m cancel."""
    columns, p_at, m_at, g_at = locate(tensor, P, M, G, ALIGNED)
    p_at += index * columns
    m_at += index * columns
    g_at += index * columns
    row = numbers_of(numbers, tensor)
    lanes = tl.arange(0, LANES)
    decay = tl.load(row + LAMBDA).to(WIDE)
    scale = tl.full([1], 1.0, WIDE)
    if M == tl.int8:
        scale_at = tl.load(tensor + SCALE).to(tl.pointer_type(tl.float32)) + index + tl.arange(0, 1)
        scale = tl.load(scale_at).to(WIDE)
    raws = tl.zeros([LANES], tl.float64)
    grads = tl.zeros([LANES], tl.float64)
    moments = tl.zeros([LANES], tl.float64)
    inners = tl.zeros([LANES], tl.float64)
    for i in range(0, columns, LANES):
        here = lanes < columns - i
        g = tl.load(g_at + i + lanes, here, 0.0).to(WIDE)
        wide_g = g.to(tl.float64)
        raws += wide_g * wide_g
        g = g * s.to(WIDE)
        if COUPLED:
            g = add_decay(g, decay, tl.load(p_at + i + lanes, here, 0.0).to(WIDE))
        wide_g = g.to(tl.float64)
        wide_m = (tl.load(m_at + i + lanes, here, 0.0).to(WIDE) * scale).to(tl.float64)
        grads += wide_g * wide_g
        moments += wide_m * wide_m
        inners += wide_g * wide_m
    raw_sq = tl.sum(raws) * s * s + tl.zeros([1], tl.float64)
    grad_sq = tl.sum(grads) + tl.zeros([1], tl.float64)
    moment_sq = tl.sum(moments) + tl.zeros([1], tl.float64)
    moves, decays, weight, divisor = weigh(
        raw_sq, grad_sq, moment_sq, tl.load(row + BETA), tl.load(row + DELTA), PROPAGATE
    )
    part = weight / divisor
    new_sq = grad_sq + 2.0 * part * tl.sum(inners) + part * part * moment_sq
    largest = tl.zeros([LANES], WIDE)
    squares = tl.zeros([LANES], tl.float64)
    cancels = tl.sum((new_sq < 1e-3 * (grad_sq + part * part * moment_sq)).to(tl.int32)) != 0
    if cancels or M == tl.int8:
        for i in range(0, columns, LANES):
            here = lanes < columns - i
            g = tl.load(g_at + i + lanes, here, 0.0).to(WIDE) * s.to(WIDE)
            if COUPLED:
                g = add_decay(g, decay, tl.load(p_at + i + lanes, here, 0.0).to(WIDE))
            m = tl.load(m_at + i + lanes, here, 0.0).to(WIDE) * scale
            new = g + (m / divisor.to(WIDE)) * weight.to(WIDE)
            wide_new = new.to(tl.float64)
            squares += wide_new * wide_new
            largest = tl.maximum(largest, tl.abs(new))
        new_sq = tl.sum(squares) + tl.zeros([1], tl.float64)
    new_sq = tl.where(new_sq < 0, 0.0, new_sq)
    entries = tl.load(tensor + ENTRIES).to(tl.float64)
    length = find_row_length(new_sq, grad_sq, moves, entries, UNIT, LEVEL)
    alpha = read_number(row, LR, LR_ADDRESS).to(WIDE)
    kappa = tl.where(decays, read_number(row, KAPPA, KAPPA_ADDRESS), 1.0).to(WIDE)
    peak = tl.max(largest) + tl.zeros([1], WIDE)
    if UNIT:
        peak = tl.where(length != 0, peak, 0.0)
    step = (peak / 127.0).to(tl.float32)
    known = tl.arange(0, 1) < 1
    for i in range(0, columns, LANES):
        here = lanes < columns - i
        theta = tl.load(p_at + i + lanes, here, 0.0).to(WIDE)
        g = tl.load(g_at + i + lanes, here, 0.0).to(WIDE) * s.to(WIDE)
        if COUPLED:
            g = add_decay(g, decay, theta)
        m = tl.load(m_at + i + lanes, here, 0.0).to(WIDE) * scale
        new = g + (m / divisor.to(WIDE)) * weight.to(WIDE)
        if UNIT:
            new = tl.where(length != 0, new, 0.0)
        theta = move(theta, new, length.to(WIDE), alpha, kappa)
        value = round_theta(theta, tensor, index * columns + i + lanes, P, RANDOM)
        tl.store(p_at + i + lanes, value, here & ((length != 0) | (kappa != 1.0)))
        if M == tl.int8:
            tl.store(m_at + i + lanes, to_bytes(new, step.to(WIDE)), here & moves)
        else:
            tl.store(m_at + i + lanes, to_moment(new, M), here & moves)
    if M == tl.int8:
        tl.store(scale_at, step, moves)
    report_rows(out, slots, known, moves, decays, raw_sq, grad_sq, moment_sq, new_sq, weight, divisor)


@triton.jit(do_not_specialize=["program_0", "programs", "slots", "lines"])
def step_rows(
    tensors, owners, numbers, stats, partials, grad_scale, factor, found_inf, program_0, programs, slots, lines,
    P: tl.constexpr, M: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr, COUPLED: tl.constexpr, UNIT: tl.constexpr,
    PROPAGATE: tl.constexpr, RANDOM: tl.constexpr, ALIGNED: tl.constexpr, LEVEL: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Step some rows of one tensor, or sum a chunk of its columns, as its kind asks."""
    if found_inf is not None:
        if tl.load(found_inf).to(tl.float32) != 0:
            return
    program = program_0 + tl.program_id(0).to(tl.int64)
    tensor = tensors + tl.load(owners + program) * FIELDS
    index = tl.load(owners + programs + program)
    kind = tl.load(tensor + KIND)
    s = find_factor(numbers_of(numbers, tensor), grad_scale, factor)
    out = stats + tl.load(tensor + FIRST_CHUNK) + index
    if kind == 0:
        step_tile(tensor, numbers, out, slots, index, s, P, M, G, WIDE, COUPLED, UNIT, PROPAGATE, RANDOM, ALIGNED,
                  LEVEL, LANES // 128, 128)  # fmt: skip
    elif kind == 1:
        step_tile(tensor, numbers, out, slots, index, s, P, M, G, WIDE, COUPLED, UNIT, PROPAGATE, RANDOM, ALIGNED,
                  LEVEL, LANES // 256, 256)  # fmt: skip
    elif kind == 2:
        step_tile(tensor, numbers, out, slots, index, s, P, M, G, WIDE, COUPLED, UNIT, PROPAGATE, RANDOM, ALIGNED,
                  LEVEL, LANES // 512, 512)  # fmt: skip
    elif kind == 3:
        step_tile(tensor, numbers, out, slots, index, s, P, M, G, WIDE, COUPLED, UNIT, PROPAGATE, RANDOM, ALIGNED,
                  LEVEL, LANES // 1024, 1024)  # fmt: skip
    elif kind == LONG_ROW:
        step_long_row(tensor, numbers, out, slots, index, s, P, M, G, WIDE, COUPLED, UNIT, PROPAGATE, RANDOM, ALIGNED,
                      LEVEL, LANES)  # fmt: skip
    else:
        sum_lines(tensor, numbers, partials, lines, index, s, P, M, G, WIDE, COUPLED, ALIGNED)
