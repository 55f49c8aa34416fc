"""A step by column, of one long row or of a matrix: sums over chunks of rows, coefficients of lines, the update.

A line is a column. All lines share their norms in a long row, which is laid out in lines of `SPLIT_WIDTH` entries, and
in a matrix that is orthogonalised: its update writes m and the matrix to orthogonalise, and `step_along` moves θ.
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
    FIRST_LINE,
    FIRST_PARTIAL,
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
    ROW_CHUNKS,
    ROWS,
    SCALE,
    SIZE,
    SPLIT_KIND,
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

HEIGHT = tl.constexpr(8)  # rows of a tile
SUM_HEIGHT = tl.constexpr(4)  # in the sums, whose float64 take many registers
WIDTH = tl.constexpr(256)  # lines of a program
DEPTH = tl.constexpr(16)  # chunks that are added up at once


@triton.jit
def sum_lines(
    tensor, numbers, partials, lines, index, s, P: tl.constexpr, M: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr,
    COUPLED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Sum WIDTH lines over one chunk of rows, in float64; where lines share their norms, also over the lines."""
    columns, p_at, m_at, g_at = locate(tensor, P, M, G, ALIGNED)
    size = tl.load(tensor + SIZE)
    if ALIGNED:
        size = size // 8 * 8
    across = (columns + WIDTH - 1) // WIDTH
    chunk = index // across
    column = (index - chunk * across) * WIDTH + tl.arange(0, WIDTH)
    height = tl.load(tensor + BLOCKS)
    first = chunk * height
    last = tl.minimum(first + height, tl.load(tensor + ROWS))
    decay = tl.load(numbers_of(numbers, tensor) + LAMBDA).to(WIDE)
    raw = tl.zeros([SUM_HEIGHT, WIDTH], tl.float64)
    grad = tl.zeros([SUM_HEIGHT, WIDTH], tl.float64)
    moment = tl.zeros([SUM_HEIGHT, WIDTH], tl.float64)
    inner = tl.zeros([SUM_HEIGHT, WIDTH], tl.float64)
    for i in range(first, last, SUM_HEIGHT):
        row = i + tl.arange(0, SUM_HEIGHT)
        at = (row * columns)[:, None] + column[None, :]
        here = (row < last)[:, None] & (column < columns)[None, :] & (at < size)
        g = tl.load(g_at + at, here, 0.0).to(WIDE)
        m = tl.load(m_at + at, here, 0.0).to(WIDE)
        if M == tl.int8:
            scale_at = tl.load(tensor + SCALE).to(tl.pointer_type(tl.float32)) + row
            m = m * tl.load(scale_at, row < last, 0.0).to(WIDE)[:, None]
        wide_g = g.to(tl.float64)
        raw += wide_g * wide_g
        g = g * s.to(WIDE)
        if COUPLED:
            g = add_decay(g, decay, tl.load(p_at + at, here, 0.0).to(WIDE))
        wide_g = g.to(tl.float64)
        wide_m = m.to(tl.float64)
        if COUPLED:
            grad += wide_g * wide_g
        moment += wide_m * wide_m
        inner += wide_g * wide_m
    raw_sq = tl.sum(raw, 0) * s * s
    grad_sq = tl.sum(grad, 0) if COUPLED else raw_sq
    moment_sq = tl.sum(moment, 0)
    products = tl.sum(inner, 0)
    first_out = partials + tl.load(tensor + FIRST_PARTIAL)
    if tl.load(tensor + KIND) >= SPLIT_KIND:
        own = first_out + index
        tl.store(own + LINE_RAW_SQ * lines, tl.sum(raw_sq))
        tl.store(own + LINE_GRAD_SQ * lines, tl.sum(grad_sq))
        tl.store(own + LINE_MOMENT_SQ * lines, tl.sum(moment_sq))
        tl.store(own + LINE_INNER * lines, tl.sum(products))
    else:
        out = first_out + chunk * columns + column
        real = column < columns
        tl.store(out + LINE_RAW_SQ * lines, raw_sq, real)
        tl.store(out + LINE_GRAD_SQ * lines, grad_sq, real)
        tl.store(out + LINE_MOMENT_SQ * lines, moment_sq, real)
        tl.store(out + LINE_INNER * lines, products, real)


@triton.jit
def add_up(first, rows, stride, lane, real, total, shares):
    """Return the sums of WIDTH lines over their chunks; where lines share their norms, the sum of all."""
    deep = tl.arange(0, DEPTH)
    result = tl.zeros([WIDTH], tl.float64)
    for i in range(0, rows, DEPTH):
        at = ((i + deep) * stride)[:, None] + lane[None, :]
        here = (i + deep < rows)[:, None] & real[None, :] & (at < total)
        result += tl.sum(tl.load(first + at, here, 0.0), 0)
    return tl.where(shares, tl.sum(result), result)


@triton.jit(do_not_specialize=["programs", "slots", "lines"])
def find_line_scalars(
    tensors, owners, numbers, stats, partials, coefficients, found_inf, programs, slots, lines, UNIT: tl.constexpr,
    PROPAGATE: tl.constexpr, LEVEL: tl.constexpr,
):  # fmt: skip
    """Lines 4 and 5 for WIDTH columns, or for all lines of a tensor that share their norms."""
    if found_inf is not None:
        if tl.load(found_inf).to(tl.float32) != 0:
            return
    program = tl.program_id(0).to(tl.int64)
    tensor = tensors + tl.load(owners + program) * FIELDS
    index = tl.load(owners + programs + program)
    columns = tl.load(tensor + COLUMNS)
    chunks = tl.load(tensor + ROW_CHUNKS)
    row = numbers_of(numbers, tensor)
    lanes = tl.arange(0, WIDTH)
    shares = tl.load(tensor + KIND) >= SPLIT_KIND
    across = (columns + WIDTH - 1) // WIDTH
    total = tl.where(shares, chunks * across, chunks * columns)
    rows = tl.where(shares, (total + WIDTH - 1) // WIDTH, chunks)
    stride = tl.where(shares, WIDTH, columns)
    lane = index * WIDTH + lanes
    # Not `| shares`: Triton 3.9's interpreter makes integers of a vector and a scalar of bits.
    real = lane < tl.where(shares, (index + 1) * WIDTH, columns)
    first = partials + tl.load(tensor + FIRST_PARTIAL)
    raw_sq = add_up(first + LINE_RAW_SQ * lines, rows, stride, lane, real, total, shares)
    grad_sq = add_up(first + LINE_GRAD_SQ * lines, rows, stride, lane, real, total, shares)
    moment_sq = add_up(first + LINE_MOMENT_SQ * lines, rows, stride, lane, real, total, shares)
    inner = add_up(first + LINE_INNER * lines, rows, stride, lane, real, total, shares)
    beta = tl.load(row + BETA)
    delta = tl.load(row + DELTA)
    moves, decays, weight, divisor = weigh(raw_sq, grad_sq, moment_sq, beta, delta, PROPAGATE)
    part = weight / divisor
    new_sq = grad_sq + 2.0 * part * inner + part * part * moment_sq
    new_sq = tl.where(new_sq < 0, 0.0, new_sq)
    entries = tl.load(tensor + ENTRIES).to(tl.float64)
    length = find_row_length(new_sq, grad_sq, moves, entries, UNIT, LEVEL)
    last = tl.where(shares, columns, index * WIDTH + 1)  # one program then writes the coefficients of all lines
    for i in range(index * WIDTH, last, WIDTH):
        own = coefficients + (tl.load(tensor + FIRST_LINE) + i + lanes) * LINE_COEFFICIENTS
        here = i + lanes < columns
        tl.store(own + LINE_WEIGHT, weight, here)
        tl.store(own + LINE_DIVISOR, divisor, here)
        tl.store(own + LINE_LENGTH, length, here)
        tl.store(own + LINE_MOVES, moves.to(tl.float64), here)
        tl.store(own + LINE_DECAYS, decays.to(tl.float64), here)
    known = (lane < columns) & (tl.where(shares, lanes, 0) == 0)
    out = stats + tl.load(tensor + FIRST_CHUNK) + index
    report_rows(out, slots, known, moves, decays, raw_sq, grad_sq, moment_sq, new_sq, weight, divisor)


@triton.jit(do_not_specialize=["program_0", "programs"])
def update_lines(
    tensors, owners, numbers, coefficients, units, grad_scale, factor, found_inf, program_0, programs, P: tl.constexpr,
    M: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, COUPLED: tl.constexpr, UNIT: tl.constexpr,
    RANDOM: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write m and θ of HEIGHT rows; an int8 moment is read twice, for the scales of its rows.

    ``units`` has the addresses of m_t/‖m_t‖, which is written as D in the place of θ; None: θ is stepped here.
    """
    if found_inf is not None:
        if tl.load(found_inf).to(tl.float32) != 0:
            return
    program = program_0 + tl.program_id(0).to(tl.int64)
    j = tl.load(owners + program)
    tensor = tensors + j * FIELDS
    columns, p_at, m_at, g_at = locate(tensor, P, M, G, ALIGNED)
    size = tl.load(tensor + SIZE)
    if ALIGNED:
        size = size // 8 * 8
    if units is not None:
        u_at = tl.load(units + j).to(tl.pointer_type(D))
        if ALIGNED:
            u_at = tl.multiple_of(u_at, 16)
        root = tl.sqrt(tl.load(tensor + ENTRIES).to(tl.float64))
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
                length = tl.load(own + LINE_LENGTH, real, 0.0)
                moves = tl.load(own + LINE_MOVES, real, 0.0) != 0
                at = (row * columns)[:, None] + column[None, :]
                here = known[:, None] & real[None, :] & (at < size)
                g = tl.load(g_at + at, here, 0.0).to(WIDE) * s
                m = tl.load(m_at + at, here, 0.0).to(WIDE)
                if M == tl.int8:
                    m = m * scale[:, None]
                if COUPLED or (sweep == 1 and units is None):
                    theta = tl.load(p_at + at, here, 0.0).to(WIDE)
                if COUPLED:
                    g = add_decay(g, decay, theta)
                new = g + (m / divisor[None, :]) * weight[None, :]
                if UNIT:
                    new = tl.where((length != 0)[None, :], new, 0.0)
                stored = tl.where(moves[None, :], new, m)
                if sweep == 0:
                    step = tl.maximum(step, tl.max(tl.where(here, tl.abs(stored), 0.0), 1))
                    changes = tl.maximum(changes, tl.max((here & moves[None, :]).to(tl.int32), 1))
                else:
                    if units is None:
                        decays = tl.load(own + LINE_DECAYS, real, 0.0) != 0
                        factors = tl.where(decays, kappa, 1.0).to(WIDE)
                        theta = move(theta, new, length.to(WIDE)[None, :], alpha, factors[None, :])
                        # Columns that do not move are written as they were: a mask per column would cost wide stores.
                        tl.store(p_at + at, round_theta(theta, tensor, at, P, RANDOM), here)
                    else:
                        unit = tl.where((length != 0)[None, :], new * (length / root).to(WIDE)[None, :], 0.0)
                        tl.store(u_at + at, unit.to(D), here)
                    if M == tl.int8:
                        tl.store(m_at + at, to_bytes(stored, step[:, None]), here & (changes != 0)[:, None])
                    else:
                        tl.store(m_at + at, to_moment(stored, M), here)
        if sweep == 0 and M == tl.int8:
            step = (step / 127.0).to(tl.float32).to(WIDE)
    if M == tl.int8:
        tl.store(scale_at, step.to(tl.float32), known & (changes != 0))
