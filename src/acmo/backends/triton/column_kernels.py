"""A step by column, or of one long row, in three launches: sums over chunks of rows, coefficients of lines, the update.

A line is a column; of a long row, which is laid out in lines of `SPLIT_WIDTH` entries, all lines share their norms.
"""

import triton
import triton.language as tl

from acmo.backends.triton.fields import (
    BETA,
    BLOCKS,
    COLUMNS,
    DELTA,
    ENTRIES,
    FIELDS,
    FIRST_CHUNK,
    FIRST_INDEX,
    FIRST_LINE,
    FIRST_PARTIAL,
    GRAD,
    KAPPA,
    KAPPA_ADDRESS,
    KIND,
    LAMBDA,
    LINE_COEFFICIENTS,
    LINE_DECAYS,
    LINE_DIVISOR,
    LINE_GRAD_SQ,
    LINE_INNER,
    LINE_LENGTH,
    LINE_MOMENT_SQ,
    LINE_MOVES,
    LINE_RAW_SQ,
    LINE_WEIGHT,
    LR,
    LR_ADDRESS,
    MOMENT,
    PARAM,
    ROW_CHUNKS,
    ROWS,
    SCALE,
    SIZE,
    SPLIT_KIND,
)
from acmo.backends.triton.pass_kernels import round_randomly
from acmo.backends.triton.row_arithmetic import (
    find_factor,
    find_row_length,
    find_seed,
    numbers_of,
    read_number,
    report_rows,
    to_bytes,
    weigh,
)

HEIGHT = tl.constexpr(8)  # rows of a tile
WIDTH = tl.constexpr(256)  # lines of a program
DEPTH = tl.constexpr(16)  # chunks that are added up at once


@triton.jit
def sum_lines(
    tensor, numbers, partials, lines, index, s, P: tl.constexpr, M: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr,
    COUPLED: tl.constexpr,
):  # fmt: skip
    """Sum WIDTH lines over one chunk of rows, in float64."""
    columns = tl.load(tensor + COLUMNS)
    size = tl.load(tensor + SIZE)
    across = (columns + WIDTH - 1) // WIDTH
    chunk = index // across
    column = (index - chunk * across) * WIDTH + tl.arange(0, WIDTH)
    height = tl.load(tensor + BLOCKS)
    first = chunk * height
    last = tl.minimum(first + height, tl.load(tensor + ROWS))
    p_at = tl.load(tensor + PARAM).to(tl.pointer_type(P))
    m_at = tl.load(tensor + MOMENT).to(tl.pointer_type(M))
    g_at = tl.load(tensor + GRAD).to(tl.pointer_type(G))
    decay = tl.load(numbers_of(numbers, tensor) + LAMBDA).to(WIDE)
    raw = tl.zeros([HEIGHT, WIDTH], tl.float64)
    grad = tl.zeros([HEIGHT, WIDTH], tl.float64)
    moment = tl.zeros([HEIGHT, WIDTH], tl.float64)
    inner = tl.zeros([HEIGHT, WIDTH], tl.float64)
    for i in range(first, last, HEIGHT):
        row = i + tl.arange(0, HEIGHT)
        at = (row * columns)[:, None] + column[None, :]
        here = (row < last)[:, None] & (column < columns)[None, :] & (at < size)
        g = tl.load(g_at + at, here, 0.0).to(WIDE)
        wide_g = g.to(tl.float64)
        raw += wide_g * wide_g
        g = g * s.to(WIDE)
        if COUPLED:
            g += tl.where(decay != 0, decay * tl.load(p_at + at, here, 0.0).to(WIDE), 0.0)
        m = tl.load(m_at + at, here, 0.0).to(WIDE)
        if M == tl.int8:
            scale_at = tl.load(tensor + SCALE).to(tl.pointer_type(tl.float32)) + row
            m = m * tl.load(scale_at, row < last, 0.0).to(WIDE)[:, None]
        wide_g = g.to(tl.float64)
        wide_m = m.to(tl.float64)
        grad += wide_g * wide_g
        moment += wide_m * wide_m
        inner += wide_g * wide_m
    out = partials + tl.load(tensor + FIRST_PARTIAL) + chunk * columns + column
    real = column < columns
    tl.store(out + LINE_RAW_SQ * lines, tl.sum(raw, 0) * s * s, real)
    tl.store(out + LINE_GRAD_SQ * lines, tl.sum(grad, 0), real)
    tl.store(out + LINE_MOMENT_SQ * lines, tl.sum(moment, 0), real)
    tl.store(out + LINE_INNER * lines, tl.sum(inner, 0), real)


@triton.jit(do_not_specialize=["programs", "slots", "lines"])
def find_line_scalars(
    tensors, owners, numbers, stats, partials, coefficients, found_inf, programs, slots, lines, UNIT: tl.constexpr,
    PROPAGATE: tl.constexpr, LEVEL: tl.constexpr,
):  # fmt: skip
    """Lines 4 and 5 for WIDTH columns, or for one long row."""
    if found_inf is not None:
        if tl.load(found_inf).to(tl.float32) != 0:
            return
    program = tl.program_id(0).to(tl.int64)
    tensor = tensors + tl.load(owners + program) * FIELDS
    index = tl.load(owners + programs + program)
    columns = tl.load(tensor + COLUMNS)
    chunks = tl.load(tensor + ROW_CHUNKS)
    row = numbers_of(numbers, tensor)
    first = partials + tl.load(tensor + FIRST_PARTIAL)
    lanes = tl.arange(0, WIDTH)
    column = index * WIDTH + lanes
    real = column < columns
    raw_sq = tl.zeros([WIDTH], tl.float64)
    grad_sq = tl.zeros([WIDTH], tl.float64)
    moment_sq = tl.zeros([WIDTH], tl.float64)
    inner = tl.zeros([WIDTH], tl.float64)
    is_split = tl.load(tensor + KIND) == SPLIT_KIND
    deep = tl.arange(0, DEPTH)
    if is_split:
        for i in range(0, chunks * columns, DEPTH * WIDTH):
            at = i + (deep * WIDTH)[:, None] + lanes[None, :]
            here = at < chunks * columns
            raw_sq += tl.sum(tl.load(first + LINE_RAW_SQ * lines + at, here, 0.0), 0)
            grad_sq += tl.sum(tl.load(first + LINE_GRAD_SQ * lines + at, here, 0.0), 0)
            moment_sq += tl.sum(tl.load(first + LINE_MOMENT_SQ * lines + at, here, 0.0), 0)
            inner += tl.sum(tl.load(first + LINE_INNER * lines + at, here, 0.0), 0)
        raw_sq = tl.sum(raw_sq) + tl.zeros([WIDTH], tl.float64)
        grad_sq = tl.sum(grad_sq) + tl.zeros([WIDTH], tl.float64)
        moment_sq = tl.sum(moment_sq) + tl.zeros([WIDTH], tl.float64)
        inner = tl.sum(inner) + tl.zeros([WIDTH], tl.float64)
    else:
        for i in range(0, chunks, DEPTH):
            at = first + ((i + deep) * columns)[:, None] + column[None, :]
            here = (i + deep < chunks)[:, None] & real[None, :]
            raw_sq += tl.sum(tl.load(at + LINE_RAW_SQ * lines, here, 0.0), 0)
            grad_sq += tl.sum(tl.load(at + LINE_GRAD_SQ * lines, here, 0.0), 0)
            moment_sq += tl.sum(tl.load(at + LINE_MOMENT_SQ * lines, here, 0.0), 0)
            inner += tl.sum(tl.load(at + LINE_INNER * lines, here, 0.0), 0)
    beta = tl.load(row + BETA)
    delta = tl.load(row + DELTA)
    moves, decays, weight, divisor = weigh(raw_sq, grad_sq, moment_sq, beta, delta, PROPAGATE)
    part = weight / divisor
    new_sq = grad_sq + 2.0 * part * inner + part * part * moment_sq
    new_sq = tl.where(new_sq < 0, 0.0, new_sq)
    entries = tl.load(tensor + ENTRIES).to(tl.float64)
    length = find_row_length(new_sq, grad_sq, moves, entries, UNIT, LEVEL)
    last = tl.where(is_split, columns, index * WIDTH + 1)  # a long row has one program, which writes all of its lines
    for i in range(index * WIDTH, last, WIDTH):
        own = coefficients + (tl.load(tensor + FIRST_LINE) + i + lanes) * LINE_COEFFICIENTS
        here = i + lanes < columns
        tl.store(own + LINE_WEIGHT, weight, here)
        tl.store(own + LINE_DIVISOR, divisor, here)
        tl.store(own + LINE_LENGTH, length, here)
        tl.store(own + LINE_MOVES, moves.to(tl.float64), here)
        tl.store(own + LINE_DECAYS, decays.to(tl.float64), here)
    known = real & (tl.where(is_split, lanes, 0) == 0)
    out = stats + tl.load(tensor + FIRST_CHUNK) + index
    report_rows(out, slots, known, moves, decays, raw_sq, grad_sq, moment_sq, new_sq, weight, divisor)


@triton.jit(do_not_specialize=["program_0", "programs"])
def update_lines(
    tensors, owners, numbers, coefficients, grad_scale, factor, found_inf, program_0, programs, P: tl.constexpr,
    M: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr, COUPLED: tl.constexpr, UNIT: tl.constexpr,
    RANDOM: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write m and θ of HEIGHT rows; an int8 moment is read twice, for the scales of its rows."""
    if found_inf is not None:
        if tl.load(found_inf).to(tl.float32) != 0:
            return
    program = program_0 + tl.program_id(0).to(tl.int64)
    tensor = tensors + tl.load(owners + program) * FIELDS
    columns = tl.load(tensor + COLUMNS)
    size = tl.load(tensor + SIZE)
    p_at = tl.load(tensor + PARAM).to(tl.pointer_type(P))
    m_at = tl.load(tensor + MOMENT).to(tl.pointer_type(M))
    g_at = tl.load(tensor + GRAD).to(tl.pointer_type(G))
    if ALIGNED:
        columns = columns // 8 * 8
        size = size // 8 * 8
        p_at = tl.multiple_of(p_at, 16)
        m_at = tl.multiple_of(m_at, 8 if M == tl.int8 else 16)
        g_at = tl.multiple_of(g_at, 16)
    row = tl.load(owners + programs + program) * HEIGHT + tl.arange(0, HEIGHT)
    known = row < tl.load(tensor + ROWS)
    group = numbers_of(numbers, tensor)
    s = find_factor(group, grad_scale, factor).to(WIDE)
    decay = tl.load(group + LAMBDA).to(WIDE)
    alpha = read_number(group, LR, LR_ADDRESS).to(WIDE)
    kappa = read_number(group, KAPPA, KAPPA_ADDRESS)
    lines = coefficients + tl.load(tensor + FIRST_LINE) * LINE_COEFFICIENTS
    step = tl.zeros([HEIGHT], WIDE)
    changes = tl.zeros([HEIGHT], tl.int32)
    scale = tl.full([HEIGHT], 1.0, WIDE)
    if M == tl.int8:
        scale_at = tl.load(tensor + SCALE).to(tl.pointer_type(tl.float32)) + row
        scale = tl.load(scale_at, known, 0.0).to(WIDE)
    for sweep in tl.static_range(2):
        if sweep == 1 or M == tl.int8:
            for i in range(0, columns, WIDTH):
                column = i + tl.arange(0, WIDTH)
                real = column < columns
                own = lines + column * LINE_COEFFICIENTS
                weight = tl.load(own + LINE_WEIGHT, real, 0.0).to(WIDE)
                divisor = tl.load(own + LINE_DIVISOR, real, 1.0).to(WIDE)
                length = tl.load(own + LINE_LENGTH, real, 0.0).to(WIDE)
                moves = tl.load(own + LINE_MOVES, real, 0.0) != 0
                at = (row * columns)[:, None] + column[None, :]
                here = known[:, None] & real[None, :] & (at < size)
                g = tl.load(g_at + at, here, 0.0).to(WIDE) * s
                m = tl.load(m_at + at, here, 0.0).to(WIDE)
                if M == tl.int8:
                    m = m * scale[:, None]
                if COUPLED or sweep == 1:
                    theta = tl.load(p_at + at, here, 0.0).to(WIDE)
                if COUPLED:
                    g += tl.where(decay != 0, decay * theta, 0.0)
                new = g + (m / divisor[None, :]) * weight[None, :]
                if UNIT:
                    new = tl.where((length != 0)[None, :], new, 0.0)
                stored = tl.where(moves[None, :], new, m)
                if sweep == 0:
                    step = tl.maximum(step, tl.max(tl.where(here, tl.abs(stored), 0.0), 1))
                    changes = tl.maximum(changes, tl.max((here & moves[None, :]).to(tl.int32), 1))
                else:
                    decays = tl.load(own + LINE_DECAYS, real, 0.0) != 0
                    factors = tl.where(decays, kappa, 1.0)
                    theta = theta * factors.to(WIDE)[None, :]
                    theta = tl.where((length != 0)[None, :], theta - alpha * (new * length[None, :]), theta)
                    if RANDOM:
                        value = round_randomly(
                            theta.to(tl.float32), tl.load(tensor + FIRST_INDEX) + at, find_seed(tensor)
                        )
                    else:
                        value = theta.to(P)
                    # Columns that do not move are written as they were: a mask per column would cost wide stores.
                    tl.store(p_at + at, value, here)
                    if M == tl.int8:
                        tl.store(m_at + at, to_bytes(stored, step[:, None]), here & (changes != 0)[:, None])
                    else:
                        tl.store(m_at + at, stored.to(M), here)
        if sweep == 0 and M == tl.int8:
            step = (step / 127.0).to(tl.float32).to(WIDE)
    if M == tl.int8:
        tl.store(scale_at, step.to(tl.float32), known & (changes != 0))
