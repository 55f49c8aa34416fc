"""The two passes over the tensors: sums of each chunk, and the update of m and θ. A program has one chunk.

Full blocks of aligned tensors are loaded 16 bytes at a time: a mask with a bound that the compiler does not know, or an
address without a hint, would prevent it. The hint marks the value itself, so other blocks have addresses of their own.
"""

import triton
import triton.language as tl

from acmo.backends.triton.fields import (
    ALIGNED,
    ALPHA,
    BLOCKS,
    COEFFICIENTS,
    DECAY,
    DECAYED_SQ,
    FIELDS,
    FIRST_CHUNK,
    FIRST_INDEX,
    GRAD,
    GRAD_FACTOR,
    GRAD_MOMENT,
    GRAD_THETA,
    GROUP,
    LAMBDA,
    LENGTH,
    MOMENT,
    MOMENT_SQ,
    NUMBER,
    NUMBERS,
    PARAM,
    RAW_SQ,
    ROOT,
    SIGN,
    SIZE,
    STEP,
    TAKEN,
    THETA_FACTOR,
    THETA_SQ,
)


@triton.jit
def mix_bits(h):
    """Return a hash of 32 bits, as `acmo.rounding.mix_bits` does."""
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    return h * 0x846CA68B


@triton.jit
def to_moment(m, M: tl.constexpr):
    """Return m in the dtype of moments; float16 saturates, since an infinite m would be NaN after the next step."""
    if M == tl.float16:
        m = tl.where(m == m, tl.minimum(tl.maximum(m, -65504.0), 65504.0), m)
    return m.to(M)


@triton.jit
def round_randomly(x, index, seed):
    """Return float32 as bfloat16, rounded up with the probability of what is dropped, as native/row_convert.h does."""
    random = mix_bits(index.to(tl.uint32) ^ seed) >> 16
    bits = x.to(tl.uint32, bitcast=True) + random
    bits = tl.where(x != x, 0x7FC00000, bits)
    return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def find_seed(tensor):
    """Return the 32 bits that key the stochastic rounding of a tensor in this step; its t is still that of the last."""
    t = tl.load(tl.load(tensor + STEP).to(tl.pointer_type(tl.float32)))
    return mix_bits(mix_bits(t.to(tl.uint32)) ^ tl.load(tensor + NUMBER).to(tl.uint32))


@triton.jit(do_not_specialize=["chunk_0", "chunks"])
def sum_chunks(
    tensors,
    owners,
    numbers,
    partials,
    grad_scale,
    chunk_0,
    chunks,
    P: tl.constexpr,
    M: tl.constexpr,
    G: tl.constexpr,
    WIDE: tl.constexpr,
    COUPLED: tl.constexpr,
    INNER: tl.constexpr,
    MOMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum g² over one chunk in float64; where asked m², ⟨g, m⟩, and with λθ what lines 3 and 4 need."""
    chunk = chunk_0 + tl.program_id(0).to(tl.int64)
    tensor = tensors + tl.load(owners + chunk) * FIELDS
    blocks = tl.load(tensor + BLOCKS)
    begin = (chunk - tl.load(tensor + FIRST_CHUNK)) * blocks * BLOCK
    left = tl.load(tensor + SIZE) - begin
    end = begin + tl.minimum(left, blocks * BLOCK)
    full = begin + tl.where(tl.load(tensor + ALIGNED) != 0, tl.minimum(left // BLOCK, blocks), 0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    s = 1.0
    decay = 0.0
    if COUPLED or INNER:
        group = numbers + (1 + tl.load(tensor + GROUP)) * NUMBERS
        s = tl.load(group + SIGN)
        if grad_scale is not None:
            s = s / tl.load(grad_scale).to(tl.float64)
        s = s.to(WIDE)
        decay = tl.load(group + LAMBDA).to(WIDE)

    raw = tl.zeros([BLOCK], tl.float64)
    moment = tl.zeros([BLOCK], tl.float64)
    decayed = tl.zeros([BLOCK], tl.float64)
    grad_theta = tl.zeros([BLOCK], tl.float64)
    theta_sq = tl.zeros([BLOCK], tl.float64)
    grad_moment = tl.zeros([BLOCK], tl.float64)
    for masked in tl.static_range(2):
        p_at = tl.load(tensor + PARAM).to(tl.pointer_type(P))
        m_at = tl.load(tensor + MOMENT).to(tl.pointer_type(M))
        g_at = tl.load(tensor + GRAD).to(tl.pointer_type(G))
        if masked == 0:
            p_at = tl.multiple_of(p_at, 16)
            m_at = tl.multiple_of(m_at, 16)
            g_at = tl.multiple_of(g_at, 16)
            first = begin
            last = full
        else:
            first = full
            last = end
        for i in range(first, last, BLOCK):
            if masked == 0:
                g = tl.load(g_at + i + lanes).to(WIDE)
            else:
                here = lanes < last - i
                g = tl.load(g_at + i + lanes, here, 0.0).to(WIDE)
            wide_g = g.to(tl.float64)
            raw += wide_g * wide_g
            if COUPLED:
                theta = tl.load(p_at + i + lanes) if masked == 0 else tl.load(p_at + i + lanes, here, 0.0)
                wide_theta = theta.to(tl.float64)
                grad_theta += wide_g * wide_theta
                theta_sq += wide_theta * wide_theta
                g = s * g + tl.where(decay != 0, decay * theta.to(WIDE), 0.0)
                wide_g = g.to(tl.float64)
                decayed += wide_g * wide_g
            elif INNER:
                wide_g = (s * g).to(tl.float64)
            if MOMENTS or INNER:
                m = tl.load(m_at + i + lanes) if masked == 0 else tl.load(m_at + i + lanes, here, 0.0)
                wide_m = m.to(tl.float64)
                moment += wide_m * wide_m
                grad_moment += wide_g * wide_m
    tl.store(partials + RAW_SQ * chunks + chunk, tl.sum(raw))
    if MOMENTS or INNER:
        tl.store(partials + MOMENT_SQ * chunks + chunk, tl.sum(moment))
    if COUPLED:
        tl.store(partials + DECAYED_SQ * chunks + chunk, tl.sum(decayed))
        tl.store(partials + GRAD_THETA * chunks + chunk, tl.sum(grad_theta))
        tl.store(partials + THETA_SQ * chunks + chunk, tl.sum(theta_sq))
    if INNER:
        tl.store(partials + GRAD_MOMENT * chunks + chunk, tl.sum(grad_moment))


@triton.jit(do_not_specialize=["chunk_0", "chunks"])
def update_chunks(
    tensors,
    owners,
    coefficients,
    partials,
    flags,
    chunk_0,
    chunks,
    P: tl.constexpr,
    M: tl.constexpr,
    G: tl.constexpr,
    WIDE: tl.constexpr,
    COUPLED: tl.constexpr,
    RANDOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write m = a g + λθ + β̂m and θ = κθ − α u over one chunk, if the step is taken; sum ‖m‖² as it is stored."""
    if tl.load(flags + TAKEN) == 0:
        return
    chunk = chunk_0 + tl.program_id(0).to(tl.int64)
    j = tl.load(owners + chunk)
    tensor = tensors + j * FIELDS
    blocks = tl.load(tensor + BLOCKS)
    begin = (chunk - tl.load(tensor + FIRST_CHUNK)) * blocks * BLOCK
    left = tl.load(tensor + SIZE) - begin
    end = begin + tl.minimum(left, blocks * BLOCK)
    full = begin + tl.where(tl.load(tensor + ALIGNED) != 0, tl.minimum(left // BLOCK, blocks), 0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    own = coefficients + j * COEFFICIENTS
    a = tl.load(own + GRAD_FACTOR).to(WIDE)
    decay = tl.load(own + DECAY).to(WIDE)
    root = tl.load(own + ROOT).to(WIDE)
    kappa = tl.load(own + THETA_FACTOR).to(WIDE)
    alpha = tl.load(own + ALPHA).to(WIDE)
    length = tl.load(own + LENGTH).to(WIDE)
    if RANDOM:
        seed = find_seed(tensor)
        first_index = tl.load(tensor + FIRST_INDEX)

    squares = tl.zeros([BLOCK], tl.float64)
    for masked in tl.static_range(2):
        p_at = tl.load(tensor + PARAM).to(tl.pointer_type(P))
        m_at = tl.load(tensor + MOMENT).to(tl.pointer_type(M))
        g_at = tl.load(tensor + GRAD).to(tl.pointer_type(G))
        if masked == 0:
            p_at = tl.multiple_of(p_at, 16)
            m_at = tl.multiple_of(m_at, 16)
            g_at = tl.multiple_of(g_at, 16)
            first = begin
            last = full
        else:
            first = full
            last = end
        for i in range(first, last, BLOCK):
            if masked == 0:
                g = tl.load(g_at + i + lanes).to(WIDE)
                old = tl.load(m_at + i + lanes).to(WIDE)
                theta = tl.load(p_at + i + lanes).to(WIDE)
            else:
                here = lanes < last - i
                g = tl.load(g_at + i + lanes, here, 0.0).to(WIDE)
                old = tl.load(m_at + i + lanes, here, 0.0).to(WIDE)
                theta = tl.load(p_at + i + lanes, here, 0.0).to(WIDE)
            m = a * g + (old * root) * root
            if COUPLED:  # without decay an infinite θ must not make m NaN
                m += tl.where(decay != 0, decay * theta, 0.0)
            theta = kappa * theta - alpha * (m * length)
            stored = to_moment(m, M)
            if RANDOM:
                new = round_randomly(theta.to(tl.float32), first_index + i + lanes, seed)
            else:
                new = theta.to(P)
            if masked == 0:
                tl.store(m_at + i + lanes, stored)
                tl.store(p_at + i + lanes, new)
            else:
                tl.store(m_at + i + lanes, stored, here)
                tl.store(p_at + i + lanes, new, here)
            wide_m = stored.to(tl.float64)
            squares += wide_m * wide_m
    tl.store(partials + MOMENT_SQ * chunks + chunk, tl.sum(squares))


@triton.jit(do_not_specialize=["chunk_0", "chunks"])
def sum_kept_moments(tensors, owners, partials, flags, chunk_0, chunks, M: tl.constexpr, BLOCK: tl.constexpr):
    """Sum m² over one chunk, if the step is not taken: `update_chunks` does it otherwise."""
    if tl.load(flags + TAKEN) != 0:
        return
    chunk = chunk_0 + tl.program_id(0).to(tl.int64)
    tensor = tensors + tl.load(owners + chunk) * FIELDS
    blocks = tl.load(tensor + BLOCKS)
    begin = (chunk - tl.load(tensor + FIRST_CHUNK)) * blocks * BLOCK
    end = tl.minimum(tl.load(tensor + SIZE), begin + blocks * BLOCK)
    m_at = tl.load(tensor + MOMENT).to(tl.pointer_type(M))
    lanes = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float64)
    for i in range(begin, end, BLOCK):
        m = tl.load(m_at + i + lanes, lanes < end - i, 0.0).to(tl.float64)
        squares += m * m
    tl.store(partials + MOMENT_SQ * chunks + chunk, tl.sum(squares))
