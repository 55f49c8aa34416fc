"""What the kernels by row share: how moments are written, which rows move and how far, and what is reported."""

import triton
import triton.language as tl

from acmo.backends.triton.fields import (
    COLUMNS,
    FIRST_INDEX,
    GRAD,
    GROUP,
    LR_IS_64,
    MOMENT,
    NUMBERS,
    PARAM,
    ROW_COS_MIN,
    ROW_COS_SUM,
    ROW_COUNT,
    ROW_GRAD_SQ,
    ROW_MOMENT_SQ,
    ROW_NEW_SQ,
    ROW_RAW_SQ,
    ROW_SKIPPED,
    ROW_TOOK_PART,
    ROW_TURNED,
    SIGN,
)
from acmo.backends.triton.pass_kernels import find_seed, round_randomly


@triton.jit
def find_factor(row, grad_scale, factor):
    """Return the factor of lines 1 and 2 on the stored gradient."""
    s = tl.load(row + SIGN)
    if grad_scale is not None:
        s = s / tl.load(grad_scale).to(tl.float64)
    if factor is not None:
        s = s * tl.load(factor).to(tl.float64)
    return s


@triton.jit
def read_number(row, value, address):
    """Return a group's number: that in the table, or that which a tensor on the device holds."""
    at = tl.load((row + address).to(tl.pointer_type(tl.int64), bitcast=True))
    result = tl.load(row + value)
    if at != 0:
        if tl.load(row + LR_IS_64) != 0:
            result = tl.load(at.to(tl.pointer_type(tl.float64)))
        else:
            result = tl.load(at.to(tl.pointer_type(tl.float32))).to(tl.float64)
    return result


@triton.jit
def to_bytes(m, step):
    """Return int8: multiples of a scale, nearest, ties to even (adding 1.5 · 2²³ leaves the integer)."""
    usable = (step > 0) & (step < float("inf"))
    x = (m / tl.where(usable, step, 1.0)).to(tl.float32)
    x = tl.where(usable & (x == x), tl.minimum(tl.maximum(x, -127.0), 127.0), 0.0)
    return ((x + 12582912.0) - 12582912.0).to(tl.int8)


@triton.jit
def weigh(raw_sq, grad_sq, moment_sq, beta, delta, PROPAGATE: tl.constexpr):
    """Lines 4 and 5 of rows: return which move, which decay, βG where m counts, and M + δ (1 where it does not)."""
    grad = tl.sqrt(grad_sq)
    moment = tl.sqrt(moment_sq)
    decays = grad_sq - grad_sq == 0  # NaN and infinity are not
    if PROPAGATE:
        decays = (grad_sq == 0) | (grad_sq != 0)  # all of them
    moves = decays & (raw_sq != 0)
    counts = moves & (moment_sq != 0)
    weight = tl.where(counts, beta * grad, 0.0)
    divisor = tl.where(counts, moment + delta, 1.0)
    return moves, decays, weight, divisor


@triton.jit
def find_row_length(new_sq, grad_sq, moves, entries, UNIT: tl.constexpr, LEVEL: tl.constexpr):
    """Return √n/N of unit steps, 1 of others; 0 where a row does not step: then m_t is rounding."""
    if UNIT:
        new = tl.sqrt(new_sq)
        finite = grad_sq - grad_sq == 0
        vanishes = finite & (new <= LEVEL * tl.sqrt(grad_sq))
        length = tl.where(vanishes, 0.0, tl.sqrt(entries) / tl.where(vanishes, 1.0, new))
        length = tl.minimum(length, 3.4e38)
        length = tl.where(finite, length, float("nan"))  # what "propagate" lets through spreads
    else:
        length = new_sq * 0.0 + 1.0
        length = tl.where(length == length, length, 1.0)
    return tl.where(moves, length, 0.0)


@triton.jit
def report_rows(out, slots, known, moves, decays, raw_sq, grad_sq, moment_sq, new_sq, weight, divisor):
    """Write the sums and cosines of some rows. ⟨m_t, g⟩ follows from the norms: ‖m_t − g‖ = βG · M/(M + δ)."""
    part = weight / divisor
    inner = (new_sq + grad_sq - part * part * moment_sq) * 0.5
    lengths = tl.sqrt(grad_sq) * tl.sqrt(new_sq)
    cos = tl.where(lengths > 0, inner / tl.where(lengths > 0, lengths, 1.0), 0.0)
    cos = tl.minimum(tl.maximum(cos, -1.0), 1.0)
    took = known & moves
    turned = took & (moment_sq != 0) & (inner < grad_sq)
    tl.store(out + ROW_RAW_SQ * slots, tl.sum(tl.where(took, raw_sq, 0.0)))
    tl.store(out + ROW_GRAD_SQ * slots, tl.sum(tl.where(took, grad_sq, 0.0)))
    tl.store(out + ROW_MOMENT_SQ * slots, tl.sum(tl.where(took, moment_sq, 0.0)))
    tl.store(out + ROW_NEW_SQ * slots, tl.sum(tl.where(took, new_sq, 0.0)))
    tl.store(out + ROW_COUNT * slots, tl.sum(known.to(tl.int32)).to(tl.float64))
    tl.store(out + ROW_TOOK_PART * slots, tl.sum(took.to(tl.int32)).to(tl.float64))
    tl.store(out + ROW_SKIPPED * slots, tl.sum((known & (decays == 0)).to(tl.int32)).to(tl.float64))
    tl.store(out + ROW_COS_MIN * slots, tl.min(tl.where(took, cos, float("inf"))))
    tl.store(out + ROW_COS_SUM * slots, tl.sum(tl.where(took, cos, 0.0)))
    tl.store(out + ROW_TURNED * slots, tl.sum(turned.to(tl.int32)).to(tl.float64))


@triton.jit
def locate(tensor, P: tl.constexpr, M: tl.constexpr, G: tl.constexpr, ALIGNED: tl.constexpr):
    """Return a tensor's columns, and where θ, m and g are. ALIGNED: 8 entries are there or not, together."""
    columns = tl.load(tensor + COLUMNS)
    p_at = tl.load(tensor + PARAM).to(tl.pointer_type(P))
    m_at = tl.load(tensor + MOMENT).to(tl.pointer_type(M))
    g_at = tl.load(tensor + GRAD).to(tl.pointer_type(G))
    if ALIGNED:
        columns = columns // 8 * 8
        p_at = tl.multiple_of(p_at, 16)
        m_at = tl.multiple_of(m_at, 8 if M == tl.int8 else 16)
        g_at = tl.multiple_of(g_at, 16)
    return columns, p_at, m_at, g_at


@triton.jit
def add_decay(g, decay, theta):
    """Line 3: without decay an infinite θ must not make g NaN."""
    return g + tl.where(decay != 0, decay * theta, 0.0)


@triton.jit
def move(theta, new, length, alpha, kappa):
    """Lines 7 and 8: return θ, decayed, and stepped where the length is not 0."""
    theta = theta * kappa
    return tl.where(length != 0, theta - alpha * (new * length), theta)


@triton.jit
def round_theta(theta, tensor, index, P: tl.constexpr, RANDOM: tl.constexpr):
    """Return θ as it is stored; ``index`` numbers its entries in memory."""
    if RANDOM:
        value = round_randomly(theta.to(tl.float32), tl.load(tensor + FIRST_INDEX) + index, find_seed(tensor))
    else:
        value = theta.to(P)
    return value


@triton.jit
def numbers_of(numbers, tensor):
    """Return where a tensor's group has its numbers."""
    return numbers + (1 + tl.load(tensor + GROUP)) * NUMBERS
