/* The loops over rows and columns in one arithmetic; row_loops.c includes this once with REAL = float, once with double.
 *
 * It defines NAME(…) for: the vector type V of REAL, its bits U, ENTRIES per vector, load and store, and add_products. */
#define FULL (n - n % LANES)
#define EACH_VECTOR _Pragma("GCC unroll 16") for (int k = 0; k < LANES / NAME(ENTRIES); k++)
#define AT(x) (x + i + k * NAME(ENTRIES))

INLINE NAME(V) NAME(load)(const REAL *x, int64_t left) {
    if (left >= LANES) { NAME(V) v; memcpy(&v, x, sizeof v); return v; }
    return NAME(load_first)(x, left);
}
INLINE void NAME(store)(REAL *x, NAME(V) v, int64_t left) {
    if (left >= LANES) memcpy(x, &v, sizeof v);
    else NAME(store_first)(x, v, left);
}

/* A call's numbers in this arithmetic. */
typedef struct { REAL s, lambda, kappa; NAME(bits) decays; int plain; } NAME(numbers);
INLINE NAME(numbers) NAME(numbers_of)(const acmo_row_options *o) {
    NAME(numbers) x = {(REAL)o->s, (REAL)o->lambda, (REAL)o->kappa, 0, o->plain};
    if (x.lambda != 0) x.decays--;
    return x;
}
/* Lines 1 to 3. Without decay the product is masked, so that an infinite θ does not make the gradient NaN. */
INLINE NAME(V) NAME(gradient)(NAME(V) g, NAME(V) theta, const NAME(numbers) *x) {
    return x->s * g + (NAME(V))((NAME(U))(x->lambda * theta) & x->decays);
}
INLINE NAME(V) NAME(new_moment)(const REAL *p, const REAL *m, const REAL *g, int64_t left, const NAME(numbers) *x, int plain,
                                int scaled, REAL b1, REAL b2, NAME(V) *theta, int needs_theta) {
    NAME(V) gradient = NAME(load)(g, left);
    if (needs_theta || !plain) *theta = NAME(load)(p, left);
    if (!plain) gradient = NAME(gradient)(gradient, *theta, x);
    NAME(V) moment = NAME(load)(m, left);
    return gradient + (scaled ? moment * b1 : moment) * b2;
}

/* left counts from the first entry of the lanes: LANES where all exist; else that of vector k is shifted by its place. */
#define LEFT (left >= LANES ? (int64_t)LANES : left - k * NAME(ENTRIES))

INLINE void NAME(add_row)(const REAL *p, const REAL *m, const REAL *g, int64_t left, const NAME(numbers) *x, int plain,
                          lanes sum[ACMO_ROW_SUMS]) {
    const int64_t i = 0;
    EACH_VECTOR {
        NAME(V) g_k = NAME(load)(AT(g), LEFT), m_k = NAME(load)(AT(m), LEFT);
        if (!plain) {
            NAME(add_products)(&sum[ACMO_RAW], k, g_k, g_k);
            g_k = NAME(gradient)(g_k, NAME(load)(AT(p), LEFT), x);
        }
        NAME(add_products)(&sum[ACMO_GG], k, g_k, g_k);
        NAME(add_products)(&sum[ACMO_GM], k, g_k, m_k);
        NAME(add_products)(&sum[ACMO_MM], k, m_k, m_k);
    }
}

/* While g and m are summed, they are prefetched into the first-level cache; θ is prefetched during the update. Where rows are long and
 * the gradient is plain, θ is prefetched with g and m, and the update brings the next group's g into the second level. */
INLINE void NAME(sum_rows)(const acmo_row_block *block, const NAME(numbers) *x, int plain, int is_long, acmo_row_sums out) {
    const REAL *p = block->p, *m = block->m, *g = block->g;
    const int64_t n = block->n, full = FULL;
    for (int64_t r = 0; r < block->rows; r++, p += n, m += n, g += n) {
        lanes sum[ACMO_ROW_SUMS];
        for (int k = plain; k < ACMO_ROW_SUMS; k++) sum[k] = no_sum();
        for (int64_t i = 0; i < full; i += LANES) {
            if (is_long) __builtin_prefetch(p + i, 1, 3);
            __builtin_prefetch(g + i + AHEAD, 0, 3);
            __builtin_prefetch(m + i + AHEAD, 1, 3);
            NAME(add_row)(p + i, m + i, g + i, LANES, x, plain, sum);
        }
        if (full < n) NAME(add_row)(p + full, m + full, g + full, n - full, x, plain, sum);
        for (int k = ACMO_GG; k < ACMO_ROW_SUMS; k++) out[k][r] = total(&sum[k]);
        out[ACMO_RAW][r] = plain ? out[ACMO_GG][r] : total(&sum[ACMO_RAW]);
    }
}
static void NAME(sums)(const acmo_row_block *block, const acmo_row_options *o, acmo_row_sums out) {
    NAME(numbers) x = NAME(numbers_of)(o);
    if (!x.plain) NAME(sum_rows)(block, &x, 0, 0, out);
    else if (block->n < LONG_ROW) NAME(sum_rows)(block, &x, 1, 0, out);
    else NAME(sum_rows)(block, &x, 1, 1, out);
}

static double NAME(new_square)(const acmo_row_block *block, const acmo_row_options *o, double b1, double b2) {
    const REAL *p = block->p, *m = block->m, *g = block->g;
    const NAME(numbers) x = NAME(numbers_of)(o);
    lanes sum = no_sum();
    for (int64_t i = 0; i < block->n; i += LANES) {
        int64_t left = block->n - i;
        EACH_VECTOR {
            NAME(V) theta, fresh;
            fresh = NAME(new_moment)(AT(p), AT(m), AT(g), LEFT, &x, x.plain, 1, (REAL)b1, (REAL)b2, &theta, 0);
            NAME(add_products)(&sum, k, fresh, fresh);
        }
    }
    return total(&sum);
}

/* `scaled`: b1 or a1 is not 1. */
INLINE void NAME(update_lanes)(REAL *p, REAL *m, const REAL *g, int64_t left, const NAME(numbers) *x, int plain, int scaled,
                               REAL b1, REAL b2, REAL a1, REAL a2) {
    const int64_t i = 0;
    EACH_VECTOR {
        NAME(V) theta, fresh = NAME(new_moment)(AT(p), AT(m), AT(g), LEFT, x, plain, scaled, b1, b2, &theta, 1);
        NAME(store)(AT(p), x->kappa * theta - (scaled ? fresh * a1 : fresh) * a2, LEFT);
        NAME(store)(AT(m), fresh, LEFT);
    }
}
INLINE void NAME(update_row)(REAL *p, REAL *m, const REAL *g, int64_t n, int64_t ahead, const NAME(numbers) *x,
                             int plain, int scaled, REAL b1, REAL b2, REAL a1, REAL a2) {
    const int64_t full = FULL;
    for (int64_t i = 0; i < full; i += LANES) {
        if (n < LONG_ROW) __builtin_prefetch(p + i + AHEAD, 1, 3);
        else __builtin_prefetch(g + i + ahead, 0, 2);
        NAME(update_lanes)(p + i, m + i, g + i, LANES, x, plain, scaled, b1, b2, a1, a2);
    }
    if (full < n) NAME(update_lanes)(p + full, m + full, g + full, n - full, x, plain, scaled, b1, b2, a1, a2);
}
/* An exception: θ = κθ unless the row is skipped; m = 0 where it cancelled. */
static void NAME(rest_row)(REAL *p, REAL *m, int64_t n, REAL kappa, int state) {
    if (state == ACMO_SKIPPED) return;
    if (kappa != 1)
        for (int64_t i = 0; i < n; i++) p[i] *= kappa;
    if (state == ACMO_CANCELLED) memset(m, 0, (size_t)n * sizeof *m);
}
static void NAME(update)(const acmo_row_block *block, const acmo_row_options *o, const acmo_row_factors *f) {
    REAL *p = block->p, *m = block->m;
    const REAL *g = block->g;
    const NAME(numbers) x = NAME(numbers_of)(o);
    const int64_t n = block->n;
    const int64_t ahead = n * block->rows;
    for (int64_t r = 0; r < block->rows; r++, p += n, m += n, g += n) {
        REAL b1 = (REAL)f->b1[r], b2 = (REAL)f->b2[r], a1 = (REAL)f->a1[r], a2 = (REAL)f->a2[r];
        if (f->state[r] != ACMO_STEPS) NAME(rest_row)(p, m, n, x.kappa, f->state[r]);
        else if (b1 != 1 || a1 != 1) NAME(update_row)(p, m, g, n, ahead, &x, x.plain, 1, b1, b2, a1, a2);
        else if (x.plain) NAME(update_row)(p, m, g, n, ahead, &x, 1, 0, b1, b2, a1, a2);
        else NAME(update_row)(p, m, g, n, ahead, &x, 0, 0, b1, b2, a1, a2);
    }
}

/* Update a block of ordinary rows while as many rows of the next block are summed, with the operations of `update` and `sums`. All five
 * streams are contiguous, so what is ahead of them is asked for at an even rate. */
static void NAME(update_and_sum)(const acmo_row_block *block, const acmo_row_block *next, const acmo_row_options *o,
                                 const acmo_row_factors *f, acmo_row_sums out) {
    REAL *p = block->p, *m = block->m;
    const REAL *g = block->g, *next_m = next->m, *next_g = next->g;
    const NAME(numbers) x = NAME(numbers_of)(o);
    const int64_t n = block->n, full = FULL;
    for (int64_t r = 0; r < block->rows; r++, p += n, m += n, g += n, next_m += n, next_g += n) {
        const REAL b = (REAL)f->b2[r], a = (REAL)f->a2[r];
        lanes sum[ACMO_ROW_SUMS];
        for (int k = ACMO_GG; k < ACMO_ROW_SUMS; k++) sum[k] = no_sum();
        for (int64_t i = 0; i < full; i += LANES) {
            __builtin_prefetch(p + i + MERGED_AHEAD, 1, 3);
            __builtin_prefetch(next_m + i + MERGED_AHEAD, 1, 3);
            __builtin_prefetch(next_g + i + MERGED_AHEAD, 0, 3);
            NAME(update_lanes)(p + i, m + i, g + i, LANES, &x, 1, 0, 1, b, 1, a);
            NAME(add_row)(p + i, next_m + i, next_g + i, LANES, &x, 1, sum);
        }
        if (full < n) {
            NAME(update_lanes)(p + full, m + full, g + full, n - full, &x, 1, 0, 1, b, 1, a);
            NAME(add_row)(p + full, next_m + full, next_g + full, n - full, &x, 1, sum);
        }
        for (int k = ACMO_GG; k < ACMO_ROW_SUMS; k++) out[k][r] = total(&sum[k]);
        out[ACMO_RAW][r] = out[ACMO_GG][r];
    }
}

/* Columns. Lanes are columns here: each has its own sum, which stays in a register over `rows` rows. The loops over sums and rows
 * are unrolled where `rows` is a constant: else gcc keeps the sums on the stack, and stores them for every row. What lies ahead is
 * prefetched in the order of memory where whole rows are read and they are short or read one by one: that is faster than row by row. */
#define EACH_SUM _Pragma("GCC unroll 4") for (int k = plain; k < ACMO_ROW_SUMS; k++)
INLINE void NAME(sum_columns)(const acmo_row_block *block, int64_t first, int64_t rows, int64_t stride, const NAME(numbers) *x,
                              int plain, double *const out[ACMO_ROW_SUMS]) {
    const REAL *p = (const REAL *)block->p + first, *m = (const REAL *)block->m + first, *g = (const REAL *)block->g + first;
    const int64_t n = block->n, full = FULL;
    const int in_order = stride == n && (rows == 1 || n <= COLUMNS_AHEAD);
    for (int64_t i = 0; i < full; i += LANES) {
        lanes sum[ACMO_ROW_SUMS];
        EACH_SUM sum[k] = load_lanes(out[k] + i);
        _Pragma("GCC unroll 4") for (int64_t r = 0; r < rows; r++) {
            const int64_t at = i + r * stride;
            if (in_order) {
                const int64_t ahead = rows * (i + COLUMNS_AHEAD) + r * LANES;
                __builtin_prefetch(g + ahead, 0, 3);
                __builtin_prefetch(m + ahead, 0, 3);
            } else { /* of later rows: they are too short for the hardware */
                __builtin_prefetch(g + at + 2 * rows * stride, 0, 2);
                __builtin_prefetch(m + at + 2 * rows * stride, 0, 2);
            }
            NAME(add_row)(p + at, m + at, g + at, LANES, x, plain, sum);
        }
        EACH_SUM store_lanes(out[k] + i, &sum[k]);
    }
    if (full == n) return;
    lanes sum[ACMO_ROW_SUMS];
    EACH_SUM sum[k] = load_lanes(out[k] + full);
    for (int64_t r = 0, at = full; r < rows; r++, at += stride)
        NAME(add_row)(p + at, m + at, g + at, n - full, x, plain, sum);
    EACH_SUM store_lanes(out[k] + full, &sum[k]);
}
static void NAME(column_sums)(const acmo_row_block *block, int64_t stride, int one_by_one, const acmo_row_options *o,
                              double *const out[ACMO_ROW_SUMS]) {
    const NAME(numbers) x = NAME(numbers_of)(o);
    int64_t r = 0;
    for (; !one_by_one && r + ACMO_COLUMN_ROWS <= block->rows; r += ACMO_COLUMN_ROWS)
        if (x.plain) NAME(sum_columns)(block, r * stride, ACMO_COLUMN_ROWS, stride, &x, 1, out);
        else NAME(sum_columns)(block, r * stride, ACMO_COLUMN_ROWS, stride, &x, 0, out);
    for (; r < block->rows; r++)
        if (x.plain) NAME(sum_columns)(block, r * stride, 1, stride, &x, 1, out);
        else NAME(sum_columns)(block, r * stride, 1, stride, &x, 0, out);
}
#undef EACH_SUM

INLINE NAME(V) NAME(column_moment)(const REAL *p, const REAL *m, const REAL *g, int64_t left, const NAME(numbers) *x, int plain,
                                   NAME(V) live, const REAL *b1, const REAL *b2, NAME(V) *theta) {
    NAME(V) gradient = NAME(load)(g, left);
    *theta = NAME(load)(p, left);
    if (!plain) gradient = NAME(gradient)(gradient, *theta, x);
    gradient = (NAME(V))((NAME(U))gradient & (NAME(U))live);
    return gradient + NAME(load)(m, left) * NAME(load)(b1, left) * NAME(load)(b2, left);
}
static void NAME(column_new_squares)(const acmo_row_block *block, int64_t stride, const acmo_row_options *o,
                                     const acmo_column_factors *f, double *out) {
    const REAL *p = block->p, *m = block->m, *g = block->g, *live = f->live, *b1 = f->b1, *b2 = f->b2;
    const NAME(numbers) x = NAME(numbers_of)(o);
    for (int64_t i = 0; i < block->n; i += LANES) {
        int64_t left = block->n - i;
        lanes sum;
        memcpy(&sum, out + i, sizeof sum);
        for (int64_t r = 0; r < block->rows; r++)
            EACH_VECTOR {
                const REAL *p_r = AT(p) + r * stride, *m_r = AT(m) + r * stride, *g_r = AT(g) + r * stride;
                NAME(V) theta, mask = NAME(load)(AT(live), LEFT);
                NAME(V) fresh = NAME(column_moment)(p_r, m_r, g_r, LEFT, &x, x.plain, mask, AT(b1), AT(b2), &theta);
                NAME(add_products)(&sum, k, fresh, fresh);
            }
        memcpy(out + i, &sum, sizeof sum);
    }
}
INLINE void NAME(step_columns)(const acmo_row_block *block, const acmo_column_factors *f, const NAME(numbers) *x, int plain,
                               int64_t i, int64_t left) {
    REAL *p = block->p, *m = block->m;
    const REAL *g = block->g, *live = f->live, *b1 = f->b1, *b2 = f->b2, *a1 = f->a1, *a2 = f->a2, *keep = f->keep;
    EACH_VECTOR {
        NAME(V) theta, mask = NAME(load)(AT(live), LEFT);
        NAME(V) fresh = NAME(column_moment)(AT(p), AT(m), AT(g), LEFT, x, plain, mask, AT(b1), AT(b2), &theta);
        NAME(V) step = fresh * NAME(load)(AT(a1), LEFT) * NAME(load)(AT(a2), LEFT);
        step = (NAME(V))((NAME(U))step & (NAME(U))mask);
        NAME(store)(AT(p), NAME(load)(AT(keep), LEFT) * theta - step, LEFT);
        NAME(store)(AT(m), fresh, LEFT);
    }
}
/* All columns step, and no factor is extreme: the same bits from two arrays instead of six. */
INLINE void NAME(step_ordinary_columns)(const acmo_row_block *block, const acmo_column_factors *f, const NAME(numbers) *x,
                                        int plain, int64_t i) {
    REAL *p = block->p, *m = block->m;
    const REAL *g = block->g, *b = f->b2, *a = f->a2;
    __builtin_prefetch(p + i + UPDATE_AHEAD, 1, 3);
    __builtin_prefetch(m + i + UPDATE_AHEAD, 1, 3);
    __builtin_prefetch(g + i + UPDATE_AHEAD, 0, 3);
    EACH_VECTOR {
        NAME(V) theta = NAME(load)(AT(p), LANES), gradient = NAME(load)(AT(g), LANES);
        if (!plain) gradient = NAME(gradient)(gradient, theta, x);
        NAME(V) fresh = gradient + NAME(load)(AT(m), LANES) * NAME(load)(AT(b), LANES);
        NAME(store)(AT(p), x->kappa * theta - fresh * NAME(load)(AT(a), LANES), LANES);
        NAME(store)(AT(m), fresh, LANES);
    }
}
static void NAME(column_update)(const acmo_row_block *block, const acmo_row_options *o, const acmo_column_factors *f) {
    const NAME(numbers) x = NAME(numbers_of)(o);
    const int64_t n = block->n, full = FULL;
    if (f->ordinary && x.plain)
        for (int64_t i = 0; i < full; i += LANES) NAME(step_ordinary_columns)(block, f, &x, 1, i);
    else if (f->ordinary)
        for (int64_t i = 0; i < full; i += LANES) NAME(step_ordinary_columns)(block, f, &x, 0, i);
    else if (x.plain)
        for (int64_t i = 0; i < full; i += LANES) NAME(step_columns)(block, f, &x, 1, i, LANES);
    else
        for (int64_t i = 0; i < full; i += LANES) NAME(step_columns)(block, f, &x, 0, i, LANES);
    if (full < n) NAME(step_columns)(block, f, &x, x.plain, full, n - full);
}

/* max |x| by the bits, which are in order: a NaN is above infinity and wins. */
INLINE double NAME(largest_lane)(const NAME(U) most[LANES / NAME(ENTRIES)]) {
    NAME(bits) lane[LANES], all = 0;
    memcpy(lane, most, sizeof lane);
    for (int i = 0; i < LANES; i++) all = lane[i] > all ? lane[i] : all;
    REAL result;
    memcpy(&result, &all, sizeof result);
    return result;
}
static double NAME(largest)(const void *x_, int64_t n) {
    const REAL *x = x_;
    const NAME(bits) sign = (NAME(bits))1 << (8 * sizeof(REAL) - 1);
    NAME(U) most[LANES / NAME(ENTRIES)] = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t left = n - i;
        EACH_VECTOR {
            NAME(U) v = (NAME(U))NAME(load)(AT(x), LEFT) & ~sign;
            most[k] = NAME(larger)(v, most[k]);
        }
    }
    return NAME(largest_lane)(most);
}
#undef FULL
#undef EACH_VECTOR
#undef AT
#undef LEFT
