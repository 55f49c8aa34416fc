/* Rows of float parameters with int8 moments, converted in registers: to the bits of the loops in row_core.h on converted copies.
 * Included by row_loops.c after row_convert.h.
 *
 * m' is kept as floats, one row at a time, until its largest entry gives the new scale. */
#define EACH_VECTOR _Pragma("GCC unroll 16") for (int k = 0; k < LANES / WIDTH; k++)

/* The lanes of m that begin at q; behind the first `left`, zeros. */
INLINE void load_moments(const int8_t *q, int64_t left, float scale, vf m[LANES / WIDTH]) {
    int8_t some[LANES] = {0};
    if (left < LANES) memcpy(some, q, (size_t)left), q = some;
    EACH_VECTOR m[k] = load_bytes(q + k * WIDTH) * scale;
}
#define AT(x) ((x) + k * WIDTH)
#define LEFT (left >= LANES ? (int64_t)LANES : left - k * WIDTH)
INLINE void add_byte_lanes(const int8_t *q, const float *g, int64_t left, float scale, lanes sum[ACMO_ROW_SUMS]) {
    vf m[LANES / WIDTH];
    load_moments(q, left, scale, m);
    EACH_VECTOR {
        vf g_k = float_load(AT(g), LEFT);
        float_add_products(&sum[ACMO_GG], k, g_k, g_k);
        float_add_products(&sum[ACMO_GM], k, g_k, m[k]);
        float_add_products(&sum[ACMO_MM], k, m[k], m[k]);
    }
}
INLINE void update_byte_lanes(float *p, const int8_t *q, const float *g, float *fresh, int64_t left, float scale, float kappa,
                              float b, float a, vu most[LANES / WIDTH]) {
    vf m[LANES / WIDTH];
    load_moments(q, left, scale, m);
    EACH_VECTOR {
        vf new = float_load(AT(g), LEFT) + m[k] * b;
        float_store(AT(p), kappa * float_load(AT(p), LEFT) - new * a, LEFT);
        float_store(AT(fresh), new, LEFT);
        most[k] = float_larger((vu)magnitude(new), most[k]);
    }
}
#undef AT
#undef LEFT

/* `updates` the rows of a block, `adds` the sums of as many rows of the next, or both in one sweep, as update_and_sum does. */
INLINE void sweep_bytes(const acmo_row_block *block, const acmo_row_block *next, const acmo_row_options *o, const acmo_row_factors *f,
                        acmo_row_sums out, int updates, int adds) {
    const acmo_row_block *shape = updates ? block : next;
    const int64_t n = shape->n, full = n - n % LANES;
    for (int64_t r = 0; r < shape->rows; r++) {
        float *p = (float *)shape->p + r * n, kappa = (float)o->kappa, b = 0, a = 0, scale = 0, next_scale = 0, *fresh = block->fresh;
        int8_t *q = (int8_t *)block->m + r * n;
        const int8_t *next_q = (int8_t *)next->m + r * n;
        const float *g = (const float *)block->g + r * n, *next_g = (const float *)next->g + r * n;
        if (updates) b = (float)f->b2[r], a = (float)f->a2[r], scale = block->scales[r];
        if (adds) next_scale = next->scales[r];
        lanes sum[ACMO_ROW_SUMS];
        vu most[LANES / WIDTH] = {0};
        for (int k = ACMO_GG; adds && k < ACMO_ROW_SUMS; k++) sum[k] = no_sum();
        for (int64_t i = 0; i < full; i += LANES) {
            __builtin_prefetch(p + i + (updates ? MERGED_AHEAD : 0), 1, 3);
            if (adds) {
                __builtin_prefetch(next_g + i + MERGED_AHEAD, 0, 3);
                __builtin_prefetch(next_q + i + MERGED_AHEAD, 1, 3);
            }
            if (updates) update_byte_lanes(p + i, q + i, g + i, fresh + i, LANES, scale, kappa, b, a, most);
            if (adds) add_byte_lanes(next_q + i, next_g + i, LANES, next_scale, sum);
        }
        if (full < n && updates)
            update_byte_lanes(p + full, q + full, g + full, fresh + full, n - full, scale, kappa, b, a, most);
        if (full < n && adds) add_byte_lanes(next_q + full, next_g + full, n - full, next_scale, sum);
        if (updates) {
            block->scales[r] = (float)(float_largest_lane(most) / 127);
            float_to_int8(fresh, block->scales[r], q, n);
        }
        if (!adds) continue;
        for (int k = ACMO_GG; k < ACMO_ROW_SUMS; k++) out[k][r] = total(&sum[k]);
        out[ACMO_RAW][r] = out[ACMO_GG][r];
    }
}
static void byte_sums(const acmo_row_block *block, const acmo_row_options *o, acmo_row_sums out) {
    sweep_bytes(block, block, o, NULL, out, 0, 1);
}
static void byte_update(const acmo_row_block *block, const acmo_row_options *o, const acmo_row_factors *f) {
    sweep_bytes(block, block, o, f, NULL, 1, 0);
}
static void byte_update_and_sum(const acmo_row_block *block, const acmo_row_block *next, const acmo_row_options *o,
                                const acmo_row_factors *f, acmo_row_sums out) {
    sweep_bytes(block, next, o, f, out, 1, 1);
}
#undef EACH_VECTOR
