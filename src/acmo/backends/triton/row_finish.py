"""What is written after a step by row: t, the counts of steps, and the record of each tensor, in one program."""

import triton
import triton.language as tl

from acmo.backends.triton.fields import (
    CHUNKS,
    EVER_TAKEN,
    FIELDS,
    FIRST_CHUNK,
    LR,
    LR_ADDRESS,
    NUMBERS,
    ROW_COS_MIN,
    ROW_GRAD_SQ,
    ROW_MOMENT_SQ,
    ROW_NEW_SQ,
    ROW_RAW_SQ,
    ROW_SKIPPED,
    ROW_STATS,
    STEP,
    STEPS_SKIPPED,
    STEPS_TAKEN,
)
from acmo.backends.triton.scalar_functions import load_number


@triton.jit(do_not_specialize=["n", "n_groups", "slots"])
def finish_rows(
    tensors, numbers, stats, found, norms, flags, counts, applied, found_inf, n, n_groups, slots, COUNT: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Add up what the programs report of each tensor's rows; with COUNT also write t and count the step."""
    overflow = 0.0
    if found_inf is not None:
        overflow = tl.load(found_inf).to(tl.float32)
    if overflow != 0:
        if COUNT:
            tl.store(applied, 0)
            tl.store(counts + STEPS_SKIPPED, tl.load(counts + STEPS_SKIPPED) + 1)
        return
    tile = tl.arange(0, TILE)
    skipped = tl.zeros([TILE], tl.float64)
    raw = tl.zeros([TILE], tl.float64)
    newest = tl.zeros([TILE], tl.float32)
    for j_0 in range(0, n, TILE):
        j = j_0 + tile
        known = j < n
        tensor = tensors + j * FIELDS
        first = tl.load(tensor + FIRST_CHUNK, known, 0)
        count = tl.load(tensor + CHUNKS, known, 0)
        longest = tl.max(count)
        for k in tl.static_range(ROW_STATS):
            total = tl.zeros([TILE], tl.float64)
            if k == ROW_COS_MIN:
                total += float("inf")
            for i in range(0, longest, TILE):
                lane = i + tile
                at = stats + k * slots + first[:, None] + lane[None, :]
                here = lane[None, :] < count[:, None]
                if k == ROW_COS_MIN:
                    total = tl.minimum(total, tl.min(tl.load(at, here, float("inf")), 1))
                else:
                    total += tl.sum(tl.load(at, here, 0.0), 1)
            tl.store(found + k * n + j, total, known)
            if k == ROW_SKIPPED:
                skipped += total
            if k == ROW_RAW_SQ:
                raw += total
                tl.store(norms + j, total, known)
            if k == ROW_GRAD_SQ:
                tl.store(norms + n + j, total, known)
            if k == ROW_MOMENT_SQ:
                tl.store(norms + 2 * n + j, total, known)
            if k == ROW_NEW_SQ:
                tl.store(norms + 3 * n + j, total, known)
                tl.store(norms + 4 * n + j, total * float("nan"), known)
        if COUNT:
            t = tl.load(tl.load(tensor + STEP, known, 0).to(tl.pointer_type(tl.float32)), known, 0.0)
            newest = tl.maximum(newest, t)
    if COUNT:
        nonzero_lr = tl.zeros([TILE], tl.int32)
        for k_0 in range(0, n_groups, TILE):
            k = k_0 + tile
            lr = load_number(numbers + (1 + k) * NUMBERS, LR, LR_ADDRESS, k < n_groups)
            nonzero_lr += tl.where((k < n_groups) & (lr != 0), 1, 0)
        any_skipped = tl.sum(skipped) != 0
        idle = (tl.sum(raw) == 0) & (any_skipped == 0) & (tl.max(newest) == 0) & (tl.sum(nonzero_lr) == 0)
        taken = idle == 0  # torch.distributed.checkpoint makes state by a first step with lr 0 and gradients 0
        tl.store(applied, taken.to(tl.int8))
        tl.store(counts + STEPS_TAKEN, tl.load(counts + STEPS_TAKEN) + taken.to(tl.int32))
        tl.store(counts + STEPS_SKIPPED, tl.load(counts + STEPS_SKIPPED) + (taken & any_skipped).to(tl.int32))
        if taken:
            tl.store(flags + EVER_TAKEN, 1)
            tl.debug_barrier()
            for j_0 in range(0, n, TILE):
                j = j_0 + tile
                at = tl.load(tensors + j * FIELDS + STEP, j < n, 0).to(tl.pointer_type(tl.float32))
                tl.store(at, tl.load(at, j < n, 0.0) + 1.0, j < n)
