"""What is added up and written for each tensor: sums over its chunks; after a step t, β̂ and the record."""

import triton
import triton.language as tl

from acmo.backends.triton.fields import (
    BETA_HAT,
    CHUNKS,
    COEFFICIENTS,
    FIELDS,
    FIRST_CHUNK,
    GRAD_SQ,
    KEPT,
    MOMENT_SQ,
    NEW_BETA_HAT,
    RAW_SQ,
    STEP,
    TAKEN,
    T,
)


@triton.jit(do_not_specialize=["n", "chunks"])
def sum_tensors(
    tensors, partials, sums, n, chunks, ROWS_OF_SUMS: tl.constexpr, FIRST: tl.constexpr, TILE: tl.constexpr
):
    """Add up the chunks of TILE tensors: what a sharded step reduces over ranks, or ‖m‖² after an update."""
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    known = j < n
    first = tl.load(tensors + j * FIELDS + FIRST_CHUNK, known, 0)
    count = tl.load(tensors + j * FIELDS + CHUNKS, known, 0)
    longest = tl.max(count)
    for k in tl.static_range(ROWS_OF_SUMS):
        total = tl.zeros([TILE], tl.float64)
        for i in range(0, longest, TILE):
            lane = i + tl.arange(0, TILE)
            at = partials + (FIRST + k) * chunks + first[:, None] + lane[None, :]
            total += tl.sum(tl.load(at, lane[None, :] < count[:, None], 0.0), 1)
        tl.store(sums + k * n + j, total, known)


@triton.jit(do_not_specialize=["n", "chunks"])
def finish_step(tensors, partials, sums, coefficients, norms, flags, n, chunks, SQRT: tl.constexpr, TILE: tl.constexpr):
    """Write t, β̂ and the record of TILE tensors, if the step is taken. The rows of norms are those of `TensorNorms`."""
    if tl.load(flags + TAKEN) == 0:
        return
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    known = j < n
    tensor = tensors + j * FIELDS
    first = tl.load(tensor + FIRST_CHUNK, known, 0)
    count = tl.load(tensor + CHUNKS, known, 0)
    longest = tl.max(count)
    total = tl.zeros([TILE], tl.float64)
    for i in range(0, longest, TILE):
        lane = i + tl.arange(0, TILE)
        at = partials + MOMENT_SQ * chunks + first[:, None] + lane[None, :]
        total += tl.sum(tl.load(at, lane[None, :] < count[:, None], 0.0), 1)
    own = coefficients + j * COEFFICIENTS
    tl.store(norms + j, tl.load(sums + RAW_SQ * n + j, known, 0.0), known)
    tl.store(norms + n + j, tl.load(own + GRAD_SQ, known, 0.0), known)
    tl.store(norms + 2 * n + j, tl.load(sums + MOMENT_SQ * n + j, known, 0.0), known)
    tl.store(norms + 3 * n + j, total, known)
    tl.store(norms + 4 * n + j, tl.load(own + NEW_BETA_HAT, known, 0.0), known)
    tl.store(sums + MOMENT_SQ * n + j, total, known)  # the next step starts from it
    t_at = tl.load(tensor + STEP, known, 0).to(tl.pointer_type(tl.float32))
    tl.store(t_at, tl.load(own + T, known, 0.0).to(tl.float32), known)
    if SQRT:
        kept_at = tl.load(tensor + BETA_HAT, known, 0).to(tl.pointer_type(tl.float64))
        tl.store(kept_at, tl.load(own + KEPT, known, 0.0), known)
