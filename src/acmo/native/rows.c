/* A step by rows or by columns of any number of tensors, in one call.
 *
 * What shares its norms is read once for its sums and updated from the cache: 5 words per entry. Tensors are cut into units
 * of whole rows; a thread takes a contiguous range of units, and each unit's report goes to its own place, so the number of
 * threads does not change a bit. Rows too long for a cache, and columns of large matrices, go one tensor after the other
 * through row_split.c and row_columns.c, in two passes. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernel.h"
#include "row_tensor.h"

enum {
    LONG = 1 << 16,       /* entries; g, m and θ of a row of that many floats are 768 kB, which many second-level caches hold */
    NARROW = 1024,        /* columns of a matrix that one thread steps from its cache */
    UNIT = 1 << 15,       /* entries of a unit, unless one row is longer */
    LARGE_UNIT = 1 << 17, /* the same in large tensors: the first group of a unit has none to be merged with */
    SHARES = 128,         /* a tensor is large if it has so many units, for the threads to share */
    OVERHEAD = 64,        /* what a row costs beside its entries, in entries: balances many small tensors */
    SERIAL_BELOW = 32768, /* entries; torch's grain size */
};

/* The columns of the addresses and, after n, of the layout, with n entries each; the letters of a row of numbers. See
 * acmo/native/__init__.py. */
enum { P, M, STEP, G, SCALES };
enum { ROWS, COLS, SCOPE, P_DTYPE, M_DTYPE, ENTRIES, FLAGS, NUMBERS, SEED, INDEX };
enum { S, LAMBDA, BETA, DELTA, ALPHA, KAPPA, LETTERS };
enum { UNIT_STEP = 1, PROPAGATE = 2, ROUNDS_RANDOMLY = 4 };

typedef struct {
    int64_t n;
    const int64_t *addresses, *layout;
    const double *numbers;
    const acmo_row_loops *loops;
    int64_t units, cost, *first_unit, *first_cost; /* n + 1 of each */
    double *reports;                               /* one per unit */
    char *buffers, *scratch;
    int64_t buffer_stride, scratch_stride;         /* bytes per thread */
} call;

static acmo_row_tensor tensor_at(const call *c, int64_t i) {
    const int64_t *at = c->addresses + i, *a = c->layout + i, n = c->n;
    const double *x = c->numbers + LETTERS * a[NUMBERS * n];
    acmo_row_tensor t = {
        .p = (char *)(intptr_t)at[P * n], .m = (char *)(intptr_t)at[M * n], .g = (char *)(intptr_t)at[G * n],
        .rows = a[ROWS * n], .cols = a[COLS * n],
        .numel = a[ROWS * n] * a[COLS * n], .scope = a[SCOPE * n], .p_dtype = a[P_DTYPE * n], .m_dtype = a[M_DTYPE * n],
        .rounds_randomly = (a[FLAGS * n] & ROUNDS_RANDOMLY) != 0, .seed = (uint32_t)a[SEED * n], .index = a[INDEX * n],
        .options = {.s = x[S], .lambda = x[LAMBDA], .beta = x[BETA], .delta = x[DELTA], .alpha = x[ALPHA], .kappa = x[KAPPA],
                    .root_n = sqrt((double)a[ENTRIES * n]),
                    .unit = (a[FLAGS * n] & UNIT_STEP) != 0, .propagate = (a[FLAGS * n] & PROPAGATE) != 0},
        .all = c->loops,
    };
    if (t.m_dtype == ACMO_INT8) t.scales = (float *)(intptr_t)at[SCALES * n]; /* else there may be no such column */
    t.options.plain = t.options.s == 1 && t.options.lambda == 0;
    t.options.real = t.p_dtype == ACMO_FLOAT64 || t.m_dtype == ACMO_FLOAT64 ? ACMO_DOUBLE : ACMO_FLOAT;
    t.real_size = t.options.real == ACMO_DOUBLE ? 8 : 4;
    t.loops = &c->loops->real[t.options.real];
    if (t.scope == ACMO_SCOPE_WHOLE && t.m_dtype != ACMO_INT8) t.rows = 1, t.cols = t.numel; /* no scales to mind */
    return t;
}

static int64_t entries_per_norm(const acmo_row_tensor *t) { return t->scope == ACMO_SCOPE_WHOLE ? t->numel : t->cols; }
static int fits_cache(const acmo_row_tensor *t) {
    if (t->scope == ACMO_SCOPE_COLUMN) return t->numel <= LONG && t->cols <= NARROW;
    return entries_per_norm(t) <= LONG;
}
static int64_t rows_per_unit(const acmo_row_tensor *t) {
    int64_t entries = t->numel / SHARES;
    entries = entries < UNIT ? UNIT : entries > LARGE_UNIT ? LARGE_UNIT : entries;
    return t->cols < entries ? entries / t->cols : 1;
}
static int64_t units_of(const acmo_row_tensor *t) {
    if (!t->numel || !fits_cache(t)) return 0;
    if (t->scope != ACMO_SCOPE_ROW) return 1;
    return (t->rows + rows_per_unit(t) - 1) / rows_per_unit(t);
}
static int64_t cost_of(const acmo_row_tensor *t) { return units_of(t) ? t->numel + t->rows * 8 + OVERHEAD : 0; }
static int64_t block_entries(const acmo_row_tensor *t) {
    if (t->scope == ACMO_SCOPE_COLUMN) return acmo_column_block(t);
    int64_t n = fits_cache(t) ? entries_per_norm(t) : acmo_split_block(t);
    return n > ACMO_GROUP ? n : ACMO_GROUP;
}

/* The factors of a block's rows from their sums, with a direct sum where one is needed. */
static void compute_factors(const acmo_row_tensor *t, const acmo_row_block *block, acmo_row_sums sums, acmo_row_factors *f) {
    t->all->factors(block->rows, &t->options, sums, f);
    for (int64_t k = 0; f->exceptions && k < block->rows; k++) {
        if (f->new_sq[k] != -1) continue;
        int64_t skip = k * block->n * t->real_size;
        acmo_row_block row = {.p = (char *)block->p + skip, .m = (char *)block->m + skip, .g = (const char *)block->g + skip,
                              .rows = 1, .n = block->n};
        t->all->finish(k, &t->options, sums, t->loops->new_square(&row, &t->options, f->b1[k], f->b2[k]), f);
    }
}

/* Rows that lie one behind the other, all of them in the cache between their sums and their update. */
static void step_group(const acmo_row_tensor *t, int64_t first, int64_t rows, int64_t n, char *buffer, double *report) {
    acmo_row_sums sums;
    acmo_row_factors f;
    acmo_row_block block = acmo_open_block(t, first, rows, n, 1, buffer);
    t->loops->sweeps.sums(&block, &t->options, sums);
    compute_factors(t, &block, sums, &f);
    t->loops->sweeps.update(&block, &t->options, &f);
    acmo_close_block(t, first, &block, f.state);
    acmo_report_rows(t, sums, &f, rows, report);
}

static int merges_sweeps(const acmo_row_tensor *t) {
    const int64_t width = acmo_merge_width();
    return width == 0 || (t->cols >= width && t->p_dtype == ACMO_FLOAT32 && t->m_dtype == ACMO_FLOAT32);
}
/* Whether int8 moments are converted in registers, which saves their copies. */
static int takes_bytes(const acmo_row_tensor *t) {
    return t->m_dtype == ACMO_INT8 && t->p_dtype == ACMO_FLOAT32 && t->scope == ACMO_SCOPE_ROW && t->options.plain;
}
/* The group of rows that begins at `row`, in place. */
static acmo_row_block open_rows(const acmo_row_tensor *t, int64_t row, int64_t end, int64_t group, char *buffer) {
    int64_t first = row * t->cols, rows = row + group < end ? group : end - row;
    if (!takes_bytes(t)) return acmo_open_block(t, first, rows, t->cols, 1, NULL);
    return (acmo_row_block){.p = (float *)t->p + first, .m = t->m + first, .g = (float *)t->g + first, .rows = rows, .n = t->cols,
                            .scales = t->scales + row, .fresh = (float *)buffer};
}

/* Step the rows from `row` to `end`, `group` at a time, without copies of what is stored. Where sweeps are merged, each group is updated
 * while the next one is summed. */
static void step_in_place(const acmo_row_tensor *t, int64_t row, int64_t end, int64_t group, char *buffer, double *report) {
    const int bytes = takes_bytes(t), merges = merges_sweeps(t);
    const acmo_row_sweeps *sweeps = bytes ? &t->all->bytes : &t->loops->sweeps;
    acmo_row_sums sums[2];
    acmo_row_factors f;
    acmo_row_block block = open_rows(t, row, end, group, buffer), next;
    sweeps->sums(&block, &t->options, sums[0]);
    for (int which = 0; block.rows; block = next, which = !which) {
        int64_t first = row * t->cols;
        row += block.rows;
        next = open_rows(t, row, end, group, buffer);
        if (bytes) t->all->factors(block.rows, &t->options, sums[which], &f);
        else compute_factors(t, &block, sums[which], &f);
        if (merges && next.rows == block.rows && !f.exceptions) {
            sweeps->update_and_sum(&block, &next, &t->options, &f, sums[!which]);
        } else {
            if (bytes && f.exceptions) step_group(t, first, block.rows, t->cols, buffer, report);
            else sweeps->update(&block, &t->options, &f);
            sweeps->sums(&next, &t->options, sums[!which]);
        }
        if (!(bytes && f.exceptions)) acmo_report_rows(t, sums[which], &f, block.rows, report);
    }
}

static void step_unit(const call *c, const acmo_row_tensor *t, int64_t unit, int64_t thread, double *report) {
    char *buffer = c->buffers + thread * c->buffer_stride;
    acmo_clear_report(report);
    if (t->scope == ACMO_SCOPE_COLUMN) {
        acmo_step_columns(t, 1, c->scratch + thread * c->scratch_stride, buffer, 0, report);
        return;
    }
    if (t->scope == ACMO_SCOPE_WHOLE) {
        step_group(t, 0, 1, t->numel, buffer, report);
        return;
    }
    int64_t group = ACMO_GROUP / t->cols, row = unit * rows_per_unit(t), end = row + rows_per_unit(t);
    group = group < 1 ? 1 : group > ACMO_GROUP_ROWS ? ACMO_GROUP_ROWS : group;
    end = end < t->rows ? end : t->rows;
    if (takes_bytes(t) || (merges_sweeps(t) && t->options.plain && acmo_buffer_entries(t, 1) == 0)) {
        step_in_place(t, row, end, group, buffer, report);
        return;
    }
    for (; row < end; row += group)
        step_group(t, row * t->cols, row + group < end ? group : end - row, t->cols, buffer, report);
}

/* The first unit that begins at or behind `cost`, as if a tensor's units were equal. */
static int64_t unit_at(const call *c, int64_t cost) {
    int64_t low = 0, high = c->n;
    while (low < high) { /* the first tensor that ends behind `cost` */
        int64_t middle = (low + high) / 2;
        if (c->first_cost[middle + 1] > cost) high = middle;
        else low = middle + 1;
    }
    if (low == c->n) return c->units;
    int64_t units = c->first_unit[low + 1] - c->first_unit[low], own = c->first_cost[low + 1] - c->first_cost[low];
    int64_t begin = cost - c->first_cost[low];
    return c->first_unit[low] + (begin <= 0 ? 0 : (int64_t)((double)begin / (double)own * (double)units + 0.5));
}

static void step_share(void *context, int64_t thread, int64_t threads) {
    const call *c = context;
    int64_t unit = unit_at(c, c->cost / threads * thread);
    int64_t end = thread + 1 < threads ? unit_at(c, c->cost / threads * (thread + 1)) : c->units;
    int64_t i = 0;
    for (acmo_row_tensor t; unit < end;) {
        while (c->first_unit[i + 1] <= unit) i++;
        t = tensor_at(c, i);
        for (; unit < end && unit < c->first_unit[i + 1]; unit++)
            step_unit(c, &t, unit - c->first_unit[i], thread, c->reports + unit * ACMO_REPORT);
    }
}

void acmo_run_threads(int64_t threads, void (*body)(void *, int64_t, int64_t), void *context) {
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads((int)threads)
        body(context, omp_get_thread_num(), omp_get_num_threads());
        return;
    }
#endif
    (void)threads;
    body(context, 0, 1);
}

static int64_t rounded_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static _Thread_local int64_t last_bytes; /* for benchmarks */
EXPORT int64_t acmo_rows_bytes(void) {
    int64_t bytes = last_bytes;
    return last_bytes = 0, bytes;
}

/* table: ACMO_REPORT + 1 rows of n doubles, the report with one row of NaN in it: where other scopes have β̂, which is not one number
 * here. Returns how many rows were skipped, or −1 without memory (nothing is changed then). */
EXPORT int64_t acmo_rows(const int64_t *addresses, const int64_t *layout, const double *numbers, double *table, int64_t threads) {
    call c = {.n = layout[0], .addresses = addresses, .layout = layout + 1, .numbers = numbers, .loops = acmo_current_row_loops()};
    int64_t entries = 0, shared = 0;
    if (threads < 1 || !acmo_may_use_threads()) threads = 1;
    int64_t *firsts = malloc((size_t)(2 * c.n + 2) * sizeof *firsts);
    if (!firsts) return -1;
    c.first_unit = firsts, c.first_cost = firsts + c.n + 1;
    for (int64_t i = 0; i < c.n; i++) {
        acmo_row_tensor t = tensor_at(&c, i);
        c.first_unit[i] = c.units, c.first_cost[i] = c.cost;
        c.units += units_of(&t), c.cost += cost_of(&t);
        if (!t.numel) continue;
        int64_t buffer = rounded_up(3 * acmo_buffer_entries(&t, block_entries(&t)) * t.real_size), scratch = 0;
        if (buffer > c.buffer_stride) c.buffer_stride = buffer;
        if (fits_cache(&t)) entries += t.numel;
        if (t.scope == ACMO_SCOPE_COLUMN) scratch = rounded_up((int64_t)acmo_column_scratch(&t));
        else if (!fits_cache(&t)) scratch = rounded_up((int64_t)acmo_split_scratch(&t));
        if (fits_cache(&t) && scratch > c.scratch_stride) c.scratch_stride = scratch;
        else if (scratch > shared) shared = scratch;
    }
    c.first_unit[c.n] = c.units, c.first_cost[c.n] = c.cost;
    int64_t used = entries < SERIAL_BELOW || c.units < 2 ? 1 : threads < c.units ? threads : c.units;
    if (threads * c.scratch_stride > shared) shared = threads * c.scratch_stride;
    int64_t report_bytes = rounded_up(c.units * ACMO_REPORT * (int64_t)sizeof(double));
    char *memory = aligned_alloc(64, (size_t)(report_bytes + threads * c.buffer_stride + shared + 64));
    if (!memory) return free(firsts), -1;
    last_bytes = report_bytes + threads * c.buffer_stride + shared + 64 + (2 * c.n + 2) * (int64_t)sizeof *firsts;
    c.reports = (double *)memory, c.buffers = memory + report_bytes, c.scratch = c.buffers + threads * c.buffer_stride;

    int64_t rows_skipped = 0;
    if (c.units) acmo_run_threads(used, step_share, &c);
    for (int64_t i = 0; i < c.n; i++) {
        double report[ACMO_REPORT];
        acmo_row_tensor t = tensor_at(&c, i);
        acmo_clear_report(report);
        if (t.numel && !fits_cache(&t)) {
            if (t.scope == ACMO_SCOPE_COLUMN) acmo_step_columns(&t, threads, c.scratch, c.buffers, c.buffer_stride, report);
            else acmo_step_split(&t, threads, c.scratch, c.buffers, c.buffer_stride, report);
        }
        for (int64_t u = c.first_unit[i]; u < c.first_unit[i + 1]; u++) acmo_add_report(report, c.reports + u * ACMO_REPORT);
        for (int k = 0; k < ACMO_REPORT; k++) table[(k < ACMO_ROWS ? k : k + 1) * c.n + i] = report[k];
        table[ACMO_ROWS * c.n + i] = NAN;
        rows_skipped += (int64_t)report[ACMO_ROWS_SKIPPED];
        float *step = (float *)(intptr_t)addresses[STEP * c.n + i];
        if (step) *step += 1;
    }
    free(memory), free(firsts);
    return rows_skipped;
}
