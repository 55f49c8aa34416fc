"""The scalars between the two passes, lines 2, 4 and 5, in one program.

The same formulas as `acmo.backends.scalars`, in float64. Tensors, then groups, are the lanes of vectors; sums over the
chunks of a tensor and over the tensors of a group go by tiles, in a fixed order.
"""

import triton
import triton.language as tl

from acmo.backends.triton.fields import (
    ALPHA,
    BETA,
    BETA_HAT,
    CHUNKS,
    CLOCKS,
    COEFFICIENTS,
    DECAY,
    DECAYED_SQ,
    DELTA,
    ENTRIES,
    EVER_TAKEN,
    FIELDS,
    FIRST_CHUNK,
    FIRST_CLOCK,
    FIRST_TENSOR,
    GLOBAL_SCOPE,
    GRAD_FACTOR,
    GRAD_MOMENT,
    GRAD_SQ,
    GRAD_THETA,
    GROUP,
    GROUP_BETA_HAT,
    GROUP_ENTRIES,
    GROUP_FIELDS,
    GROUP_GRAD_SQ,
    GROUP_INNER,
    GROUP_KEPT,
    GROUP_LENGTH,
    GROUP_MOMENT_SQ,
    GROUP_NEWEST,
    GROUP_PREVIOUS,
    GROUP_T,
    KAPPA,
    KAPPA_ADDRESS,
    KEPT,
    LAMBDA,
    LENGTH,
    LR,
    LR_ADDRESS,
    MAX_NORM,
    MOMENT_SQ,
    NEW_BETA_HAT,
    NUMBERS,
    RAW_SQ,
    ROOT,
    SIGN,
    STEP,
    STEPS_SKIPPED,
    STEPS_TAKEN,
    SUMS,
    TAKEN,
    TENSOR_SCOPE,
    TENSORS,
    THETA_FACTOR,
    THETA_SQ,
    T,
)
from acmo.backends.triton.scalar_functions import calibrate, find_length, load_number


@triton.jit(do_not_specialize=["n", "chunks", "n_groups"])
def find_scalars(
    tensors, clocks, numbers, partials, sums, groups, coefficients, clip_scale, flags, counts, applied, grad_scale,
    found_inf, n, chunks, n_groups, SCOPE: tl.constexpr, COUPLED: tl.constexpr, UNIT: tl.constexpr,
    SQRT: tl.constexpr, CLIP: tl.constexpr, CHECK: tl.constexpr, MOMENTS: tl.constexpr, LEVEL: tl.constexpr,
    TILE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Lines 2, 4 and 5 for all tensors, t, and whether the step is taken. One program."""
    lanes = tl.arange(0, LANES)
    tile = tl.arange(0, TILE)
    unscale = 1.0
    if grad_scale is not None:
        unscale = 1.0 / tl.load(grad_scale).to(tl.float64)

    # The sums of each tensor over its chunks. ‖m‖² is already known unless MOMENTS.
    raw_lanes = tl.zeros([TILE], tl.float64)
    for j_0 in range(0, n, TILE):
        j = j_0 + tile
        known = j < n
        first = tl.load(tensors + j * FIELDS + FIRST_CHUNK, known, 0)
        count = tl.load(tensors + j * FIELDS + CHUNKS, known, 0)
        longest = tl.max(count)
        for k in tl.static_range(SUMS):
            if (
                k == RAW_SQ
                or (MOMENTS and k == MOMENT_SQ)
                or (UNIT and k == GRAD_MOMENT)
                or (COUPLED and (k == DECAYED_SQ or k == GRAD_THETA or k == THETA_SQ))
            ):
                total = tl.zeros([TILE], tl.float64)
                for i in range(0, longest, TILE):
                    lane = i + tile
                    at = partials + k * chunks + first[:, None] + lane[None, :]
                    total += tl.sum(tl.load(at, lane[None, :] < count[:, None], 0.0), 1)
                if k == RAW_SQ:
                    total = total * unscale * unscale
                    raw_lanes += total
                tl.store(sums + k * n + j, total, known)
    tl.debug_barrier()
    raw_total = tl.sum(raw_lanes)

    # 2  c = min(1, C / (‖g‖ + 1e-6))
    c = 1.0
    if CLIP:
        quotient = tl.load(numbers + MAX_NORM) / (tl.sqrt(raw_total) + 1e-6)
        c = tl.where(quotient > 1.0, 1.0, quotient)

    # Line 4's ‖g‖² of each tensor: that of pass 1 where c = 1, so that g ≈ −λθ does not cancel there.
    grad_lanes = tl.zeros([LANES], tl.float64)
    for j_0 in range(0, n, LANES):
        j = j_0 + lanes
        known = j < n
        raw = tl.load(sums + RAW_SQ * n + j, known, 0.0)
        grad_sq = raw * c * c
        if COUPLED:
            row = numbers + (1 + tl.load(tensors + j * FIELDS + GROUP, known, 0)) * NUMBERS
            decay = tl.load(row + LAMBDA, known, 0.0)
            decayed = tl.load(sums + DECAYED_SQ * n + j, known, 0.0)
            if CLIP:
                inner = tl.load(sums + GRAD_THETA * n + j, known, 0.0) * unscale * tl.load(row + SIGN, known, 1.0)
                theta_sq = tl.load(sums + THETA_SQ * n + j, known, 0.0)
                clipped = c * c * raw + 2.0 * c * decay * inner + decay * decay * theta_sq
                decayed = tl.where(c == 1.0, decayed, tl.where(clipped < 0, 0.0, clipped))
            grad_sq = tl.where(decay != 0, decayed, grad_sq)
        tl.store(coefficients + j * COEFFICIENTS + GRAD_SQ, grad_sq, known)
        grad_lanes += tl.where(known, grad_sq, 0.0)
    tl.debug_barrier()
    grad_total = tl.sum(grad_lanes)

    # Sums, the newest t and its β̂ of each group; the lanes of a tile are groups and their tensors.
    newest_lanes = tl.zeros([TILE], tl.float64)
    moment_lanes = tl.zeros([TILE], tl.float64)
    inner_lanes = tl.zeros([TILE], tl.float64)
    entry_lanes = tl.zeros([TILE], tl.float64)
    nonzero_lr = tl.zeros([TILE], tl.int32)
    for k_0 in range(0, n_groups, TILE):
        k = k_0 + tile
        known = k < n_groups
        row = numbers + (1 + k) * NUMBERS
        whole = row.to(tl.pointer_type(tl.int64), bitcast=True)
        nonzero_lr += tl.where(known & (load_number(row, LR, LR_ADDRESS, known) != 0), 1, 0)
        first = tl.load(whole + FIRST_TENSOR, known, 0)
        count = tl.load(whole + TENSORS, known, 0)
        longest = tl.max(count)
        grad_sq = tl.zeros([TILE], tl.float64)
        moment_sq = tl.zeros([TILE], tl.float64)
        inner = tl.zeros([TILE], tl.float64)
        entries = tl.zeros([TILE], tl.float64)
        if SCOPE != TENSOR_SCOPE:
            for i in range(0, longest, TILE):
                lane = i + tile
                j = first[:, None] + lane[None, :]
                here = lane[None, :] < count[:, None]
                grad_sq += tl.sum(tl.load(coefficients + j * COEFFICIENTS + GRAD_SQ, here, 0.0), 1)
                moment_sq += tl.sum(tl.load(sums + MOMENT_SQ * n + j, here, 0.0), 1)
                if UNIT:
                    inner += tl.sum(tl.load(sums + GRAD_MOMENT * n + j, here, 0.0), 1)
                    entries += tl.sum(tl.load(tensors + j * FIELDS + ENTRIES, here, 0).to(tl.float64), 1)
        first = tl.load(whole + FIRST_CLOCK, known, 0)
        count = tl.load(whole + CLOCKS, known, 0)
        longest = tl.max(count)
        newest = tl.zeros([TILE], tl.float64)
        previous = tl.zeros([TILE], tl.float64)
        for i in range(0, longest, TILE):
            lane = i + tile
            here = lane[None, :] < count[:, None]
            at = tl.load(clocks + 2 * (first[:, None] + lane[None, :]), here, 0)
            step = tl.load(at.to(tl.pointer_type(tl.float32)), here, 0.0).to(tl.float64)
            newest = tl.maximum(newest, tl.max(step, 1))
        if SQRT and SCOPE != TENSOR_SCOPE:
            for i in range(0, longest, TILE):
                lane = i + tile
                here = lane[None, :] < count[:, None]
                at = clocks + 2 * (first[:, None] + lane[None, :])
                step = tl.load(tl.load(at, here, 0).to(tl.pointer_type(tl.float32)), here, 0.0).to(tl.float64)
                kept = tl.load(tl.load(at + 1, here, 0).to(tl.pointer_type(tl.float64)), here, 0.0)
                previous = tl.maximum(previous, tl.max(tl.where(here & (step == newest[:, None]), kept, 0.0), 1))
        own = groups + k * GROUP_FIELDS
        tl.store(own + GROUP_GRAD_SQ, grad_sq, known)
        tl.store(own + GROUP_MOMENT_SQ, moment_sq, known)
        tl.store(own + GROUP_INNER, inner, known)
        tl.store(own + GROUP_ENTRIES, entries, known)
        tl.store(own + GROUP_NEWEST, newest, known)
        tl.store(own + GROUP_PREVIOUS, previous, known)
        newest_lanes = tl.maximum(newest_lanes, newest)
        moment_lanes += moment_sq
        inner_lanes += inner
        entry_lanes += entries
    tl.debug_barrier()
    newest_of_all = tl.max(newest_lanes)

    # Whether the step is taken. torch.distributed.checkpoint makes state by a first step with lr 0 and gradients 0.
    makes_state = (newest_of_all == 0) & (raw_total == 0) & (tl.sum(nonzero_lr) == 0)
    taken = makes_state == 0
    if found_inf is not None:
        taken = taken & (tl.load(found_inf).to(tl.float32) == 0)
    if CHECK:  # inf − inf and NaN are not 0
        taken = taken & (raw_total - raw_total == 0) & (grad_total - grad_total == 0)
    tl.store(flags + TAKEN, taken.to(tl.int32))
    tl.store(applied, taken.to(tl.int8))
    tl.store(counts + STEPS_TAKEN, tl.load(counts + STEPS_TAKEN) + taken.to(tl.int32))
    skipped = (taken == 0) & (raw_total != 0)
    tl.store(counts + STEPS_SKIPPED, tl.load(counts + STEPS_SKIPPED) + skipped.to(tl.int32))
    if taken:
        tl.store(flags + EVER_TAKEN, 1)
        tl.store(clip_scale, c)

    # 4, 5 by group: at global scope the norms are those of all groups, at group scope their own.
    if SCOPE != TENSOR_SCOPE:
        moment_total = tl.sum(moment_lanes)
        inner_total = tl.sum(inner_lanes)
        entry_total = tl.sum(entry_lanes)
        for k_0 in range(0, n_groups, TILE):
            k = k_0 + tile
            known = k < n_groups
            own = groups + k * GROUP_FIELDS
            row = numbers + (1 + k) * NUMBERS
            if SCOPE == GLOBAL_SCOPE:
                grad_sq = tl.zeros([TILE], tl.float64) + grad_total
                moment_sq = tl.zeros([TILE], tl.float64) + moment_total
                inner = tl.zeros([TILE], tl.float64) + inner_total
                entries = tl.zeros([TILE], tl.float64) + entry_total
                t = tl.zeros([TILE], tl.float64) + newest_of_all + 1.0
            else:
                grad_sq = tl.load(own + GROUP_GRAD_SQ, known, 0.0)
                moment_sq = tl.load(own + GROUP_MOMENT_SQ, known, 0.0)
                inner = tl.load(own + GROUP_INNER, known, 0.0)
                entries = tl.load(own + GROUP_ENTRIES, known, 0.0)
                t = tl.load(own + GROUP_NEWEST, known, 0.0) + 1.0
            previous = tl.load(own + GROUP_PREVIOUS, known, 0.0)
            beta = tl.load(row + BETA, known, 0.0)
            delta = tl.load(row + DELTA, known, 0.0)
            beta_hat, kept = calibrate(tl.sqrt(grad_sq), tl.sqrt(moment_sq), beta, delta, t, previous, SQRT)
            length = tl.zeros([TILE], tl.float64) + 1.0
            if UNIT:
                length = find_length(grad_sq, moment_sq, inner, entries, beta_hat, LEVEL)
            tl.store(own + GROUP_BETA_HAT, beta_hat, known)
            tl.store(own + GROUP_KEPT, kept, known)
            tl.store(own + GROUP_LENGTH, length, known)
            tl.store(own + GROUP_T, t, known)
        tl.debug_barrier()

    # The coefficients of each tensor.
    for j_0 in range(0, n, LANES):
        j = j_0 + lanes
        known = j < n
        tensor = tensors + j * FIELDS
        k = tl.load(tensor + GROUP, known, 0)
        row = numbers + (1 + k) * NUMBERS
        own = coefficients + j * COEFFICIENTS
        moment_sq = tl.load(sums + MOMENT_SQ * n + j, known, 0.0)
        grad_sq = tl.load(own + GRAD_SQ, known, 0.0)
        if SCOPE == TENSOR_SCOPE:
            t = (
                tl.load(tl.load(tensor + STEP, known, 0).to(tl.pointer_type(tl.float32)), known, 0.0).to(tl.float64)
                + 1.0
            )
            previous = tl.zeros([LANES], tl.float64)
            if SQRT:
                previous = tl.load(tl.load(tensor + BETA_HAT, known, 0).to(tl.pointer_type(tl.float64)), known, 0.0)
            beta = tl.load(row + BETA, known, 0.0)
            delta = tl.load(row + DELTA, known, 0.0)
            beta_hat, kept = calibrate(tl.sqrt(grad_sq), tl.sqrt(moment_sq), beta, delta, t, previous, SQRT)
            length = tl.zeros([LANES], tl.float64) + 1.0
            if UNIT:
                inner = tl.load(sums + GRAD_MOMENT * n + j, known, 0.0)
                entries = tl.load(tensor + ENTRIES, known, 0).to(tl.float64)
                length = find_length(grad_sq, moment_sq, inner, entries, beta_hat, LEVEL)
        else:
            group = groups + k * GROUP_FIELDS
            beta_hat = tl.load(group + GROUP_BETA_HAT, known, 0.0)
            kept = tl.load(group + GROUP_KEPT, known, 0.0)
            length = tl.load(group + GROUP_LENGTH, known, 1.0)
            t = tl.load(group + GROUP_T, known, 1.0)
        remains = length != 0  # else m_t is rounding, and becomes 0
        a = tl.load(row + SIGN, known, 1.0) * unscale * c
        tl.store(own + GRAD_FACTOR, tl.where(remains, a, 0.0), known)
        tl.store(own + DECAY, tl.where(remains, tl.load(row + LAMBDA, known, 0.0), 0.0), known)
        tl.store(own + ROOT, tl.where(remains, tl.minimum(tl.sqrt(beta_hat), 3.4e38), 0.0), known)
        tl.store(own + THETA_FACTOR, load_number(row, KAPPA, KAPPA_ADDRESS, known), known)
        tl.store(own + ALPHA, load_number(row, LR, LR_ADDRESS, known), known)
        tl.store(own + LENGTH, tl.minimum(length, 3.4e38), known)
        tl.store(own + T, t, known)
        tl.store(own + KEPT, kept, known)
        tl.store(own + NEW_BETA_HAT, beta_hat, known)
