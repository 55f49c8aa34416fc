/* Rows too long for a cache, and whole tensors of that size: two passes over blocks, 7 words per entry.
 *
 * The blocks depend on the shape alone and their sums are added in order, so the number of threads does not change a bit. With
 * int8 moments whose row of dimension 0 is cut, a third pass between the two finds the new scale. */
#include <math.h>
#include <string.h>

#include "row_tensor.h"

enum { BLOCK = 8192 };

typedef struct {
    const acmo_row_tensor *t;
    int64_t blocks, per_row, rows_per_block, norms; /* per_row: blocks of one row of dimension 0 where it is cut, else 0 */
    acmo_row_factors *factors;                      /* of ACMO_GROUP_ROWS norms each */
    acmo_row_sums *sums;
    double (*part)[ACMO_ROW_SUMS];                  /* of each block; in later passes its first is Σ m'², or max |m'| */
    float *scales;                                  /* the new ones, of cut rows */
    char *buffers;
    int64_t stride;
} split;

static split split_of(const acmo_row_tensor *t) {
    split s = {.t = t, .norms = t->scope == ACMO_SCOPE_ROW ? t->rows : 1};
    if (t->cols > BLOCK) s.per_row = (t->cols + BLOCK - 1) / BLOCK, s.blocks = t->rows * s.per_row;
    else s.rows_per_block = BLOCK / t->cols, s.blocks = (t->rows + s.rows_per_block - 1) / s.rows_per_block;
    return s;
}
static int64_t batches(const split *s) { return (s->norms + ACMO_GROUP_ROWS - 1) / ACMO_GROUP_ROWS; }

int64_t acmo_split_block(const acmo_row_tensor *t) { (void)t; return BLOCK; }
size_t acmo_split_scratch(const acmo_row_tensor *t) {
    split s = split_of(t);
    size_t bytes = (size_t)batches(&s) * (sizeof *s.factors + sizeof *s.sums) + (size_t)s.blocks * sizeof *s.part;
    return bytes + (size_t)t->rows * sizeof *s.scales;
}

typedef struct { int64_t first, n, row, norm; } place;
static place place_of(const split *s, int64_t block) {
    const acmo_row_tensor *t = s->t;
    place x = {0};
    if (s->per_row) {
        int64_t offset = block % s->per_row * BLOCK, left = t->cols - offset;
        x.row = block / s->per_row, x.first = x.row * t->cols + offset, x.n = left < BLOCK ? left : BLOCK;
    } else {
        int64_t left = t->rows - block * s->rows_per_block;
        x.row = block * s->rows_per_block, x.first = x.row * t->cols;
        x.n = (left < s->rows_per_block ? left : s->rows_per_block) * t->cols;
    }
    x.norm = t->scope == ACMO_SCOPE_ROW ? x.row : 0;
    return x;
}
static acmo_row_block open_block(const split *s, place x, int needs_theta, int64_t thread) {
    return acmo_open_block(s->t, x.first, 1, x.n, needs_theta, s->buffers + thread * s->stride);
}
static acmo_row_factors *factors_of(const split *s, int64_t norm, int64_t *k) {
    *k = norm % ACMO_GROUP_ROWS;
    return &s->factors[norm / ACMO_GROUP_ROWS];
}
/* The factors of one norm, as those of a group with one row. */
static void copy_factors(const split *s, int64_t norm, acmo_row_factors *one) {
    int64_t k;
    const acmo_row_factors *f = factors_of(s, norm, &k);
    one->b1[0] = f->b1[k], one->b2[0] = f->b2[k], one->a1[0] = f->a1[k], one->a2[0] = f->a2[k], one->state[0] = f->state[k];
}

#define SHARE(s) int64_t begin = (s)->blocks * thread / threads, end = (s)->blocks * (thread + 1) / threads
static void sum_blocks(void *context, int64_t thread, int64_t threads) {
    const split *s = context;
    SHARE(s);
    for (int64_t b = begin; b < end; b++) {
        acmo_row_sums sums;
        acmo_row_block block = open_block(s, place_of(s, b), !s->t->options.plain, thread);
        s->t->loops->sweeps.sums(&block, &s->t->options, sums);
        for (int k = 0; k < ACMO_ROW_SUMS; k++) s->part[b][k] = sums[k][0];
    }
}
static void sum_new_squares(void *context, int64_t thread, int64_t threads) {
    const split *s = context;
    SHARE(s);
    for (int64_t b = begin; b < end; b++) {
        place x = place_of(s, b);
        int64_t k;
        const acmo_row_factors *f = factors_of(s, x.norm, &k);
        if (f->new_sq[k] != -1) continue;
        acmo_row_block block = open_block(s, x, 1, thread);
        s->part[b][0] = s->t->loops->new_square(&block, &s->t->options, f->b1[k], f->b2[k]);
    }
}
static void find_largest(void *context, int64_t thread, int64_t threads) {
    const split *s = context;
    const acmo_row_tensor *t = s->t;
    SHARE(s);
    for (int64_t b = begin; b < end; b++) {
        place x = place_of(s, b);
        acmo_row_factors one;
        acmo_row_block block = open_block(s, x, 1, thread);
        char *copy = s->buffers + thread * s->stride; /* of θ, which must not change yet */
        if (block.p != copy) memcpy(copy, block.p, (size_t)(x.n * t->real_size)), block.p = copy;
        copy_factors(s, x.norm, &one);
        t->loops->sweeps.update(&block, &t->options, &one);
        s->part[b][0] = t->loops->largest(block.m, x.n);
    }
}
static void update_blocks(void *context, int64_t thread, int64_t threads) {
    const split *s = context;
    const acmo_row_tensor *t = s->t;
    SHARE(s);
    for (int64_t b = end; b-- > begin;) { /* backwards: the first pass left the last blocks in the cache */
        place x = place_of(s, b);
        acmo_row_factors one;
        acmo_row_block block = open_block(s, x, 1, thread);
        copy_factors(s, x.norm, &one);
        t->loops->sweeps.update(&block, &t->options, &one);
        int keeps_m = one.state[0] == ACMO_IDLE || one.state[0] == ACMO_SKIPPED;
        if (t->m_dtype == ACMO_INT8 && s->per_row && !keeps_m) acmo_close_scaled_block(t, x.first, &block, s->scales[x.row]);
        else acmo_close_block(t, x.first, &block, one.state);
    }
}

/* The sum of the blocks of a norm, in their order; blocks of a norm lie one behind the other. */
static double add_parts(const split *s, int64_t norm, int which) {
    int64_t count = s->blocks / s->norms;
    double sum = 0;
    for (int64_t b = norm * count; b < (norm + 1) * count; b++) sum += s->part[b][which];
    return sum;
}

static int compute_factors(const split *s) {
    int direct = 0;
    for (int64_t first = 0, batch = 0; first < s->norms; first += ACMO_GROUP_ROWS, batch++) {
        int64_t rows = s->norms - first < ACMO_GROUP_ROWS ? s->norms - first : ACMO_GROUP_ROWS;
        for (int64_t k = 0; k < rows; k++)
            for (int which = 0; which < ACMO_ROW_SUMS; which++) s->sums[batch][which][k] = add_parts(s, first + k, which);
        s->t->all->factors(rows, &s->t->options, s->sums[batch], &s->factors[batch]);
        for (int64_t k = 0; k < rows; k++) direct |= s->factors[batch].new_sq[k] == -1;
    }
    return direct;
}

void acmo_step_split(const acmo_row_tensor *t, int64_t threads, char *scratch, char *buffers, int64_t stride, double *report) {
    split s = split_of(t);
    s.buffers = buffers, s.stride = stride;
    s.factors = (acmo_row_factors *)scratch, scratch += (size_t)batches(&s) * sizeof *s.factors;
    s.sums = (acmo_row_sums *)scratch, scratch += (size_t)batches(&s) * sizeof *s.sums;
    s.part = (double(*)[ACMO_ROW_SUMS])scratch, scratch += (size_t)s.blocks * sizeof *s.part;
    s.scales = (float *)scratch;

    acmo_run_threads(threads, sum_blocks, &s);
    if (compute_factors(&s)) {
        acmo_run_threads(threads, sum_new_squares, &s);
        for (int64_t norm = 0, k; norm < s.norms; norm++) {
            acmo_row_factors *f = factors_of(&s, norm, &k);
            if (f->new_sq[k] == -1)
                t->all->finish(k, &t->options, s.sums[norm / ACMO_GROUP_ROWS], add_parts(&s, norm, 0), f);
        }
    }
    int cut = t->m_dtype == ACMO_INT8 && s.per_row;
    if (cut) {
        acmo_run_threads(threads, find_largest, &s);
        for (int64_t row = 0; row < t->rows; row++) {
            double most = 0;
            for (int64_t b = row * s.per_row; b < (row + 1) * s.per_row; b++)
                if (!(s.part[b][0] <= most)) most = s.part[b][0]; /* a NaN wins, and stays */
            s.scales[row] = (float)(most / 127);
        }
    }
    acmo_run_threads(threads, update_blocks, &s);
    for (int64_t first = 0, batch = 0; first < s.norms; first += ACMO_GROUP_ROWS, batch++) {
        int64_t rows = s.norms - first < ACMO_GROUP_ROWS ? s.norms - first : ACMO_GROUP_ROWS;
        acmo_report_rows(t, s.sums[batch], &s.factors[batch], rows, report);
    }
    for (int64_t row = 0, k; cut && row < t->rows; row++) {
        const acmo_row_factors *f = factors_of(&s, t->scope == ACMO_SCOPE_ROW ? row : 0, &k);
        if (f->state[k] == ACMO_STEPS || f->state[k] == ACMO_CANCELLED) t->scales[row] = s.scales[row];
    }
}
