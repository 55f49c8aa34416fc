/* Columns: one norm for each, over all rows of the matrix. Two passes, 7 words per entry (5 from memory where it fits a cache).
 *
 * Rows are cut into blocks that depend on the shape alone; each has its own sums, which are added in order. Several rows of a
 * narrow matrix are seen as one, side by side, whose columns have the same factors: then no loop is short. */
#include <string.h>

#include "row_tensor.h"

enum {
    SIDE_BY_SIDE = 256, /* entries that a row is widened to */
    SEGMENT = 4096,     /* columns that one thread sums at a time */
    ALL_SUMS = 1 << 14, /* block sums of a matrix: at most so many times 4 or 5 doubles, unless it has more columns */
    BLOCK = 1 << 16,    /* entries that a block has at least */
    TILE = 4096,        /* entries converted at a time */
    DIRECT_ROWS = 64,   /* rows in one call of a loop, where nothing is converted */
    UPDATE = 1 << 18,   /* entries of a unit of the second pass: smaller ones use less of the third-level cache */
    UNITS = 16,         /* and so many units at least, for the threads to share */
};

typedef struct {
    const acmo_row_tensor *t;
    int64_t abreast, width, padded, rows, rest; /* rows of `width` entries, and a last one of `rest` */
    int64_t blocks, segments, rows_per_block, rows_per_unit, units;
    int direct, slots, live;
    double *sums; /* of each block, `slots` times `padded` */
    acmo_column_factors factors;
    char *buffers;
    int64_t stride;
} columns;

static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

static columns columns_of(const acmo_row_tensor *t) {
    columns c = {.t = t, .abreast = at_least(1, SIDE_BY_SIDE / t->cols)};
    c.width = c.abreast * t->cols, c.padded = (c.width + ACMO_LANES - 1) / ACMO_LANES * ACMO_LANES;
    c.rows = t->rows / c.abreast, c.rest = t->rows % c.abreast * t->cols;
    c.segments = (c.width + SEGMENT - 1) / SEGMENT;
    c.blocks = at_least(1, at_most(t->numel / BLOCK, ALL_SUMS / c.width));
    if (c.blocks > 8) c.blocks -= c.blocks % 8; /* equal shares for the usual numbers of threads */
    c.rows_per_block = at_least(1, (c.rows + c.blocks - 1) / c.blocks);
    c.rows_per_unit = at_least(1, at_most(UPDATE, t->numel / UNITS) / c.width);
    c.units = (c.rows + (c.rest > 0) + c.rows_per_unit - 1) / c.rows_per_unit;
    c.direct = acmo_buffer_entries(t, 1) == 0;
    c.slots = t->options.plain ? ACMO_ROW_SUMS : ACMO_ROW_SUMS + 1;
    return c;
}
/* Where Σ m'² of a block goes: the sum of stored squares is not used where it equals G². */
static int new_square_slot(const columns *c) { return c->t->options.plain ? ACMO_RAW : ACMO_ROW_SUMS; }

int64_t acmo_column_block(const acmo_row_tensor *t) { columns c = columns_of(t); return at_least(TILE, c.width); }
size_t acmo_column_scratch(const acmo_row_tensor *t) {
    columns c = columns_of(t);
    return (size_t)(c.blocks * c.slots * c.padded) * sizeof(double) + (size_t)(6 * c.padded * t->real_size);
}

typedef void visitor(const columns *, const acmo_row_block *, int64_t stride, double *sums, int64_t column);

/* Show all rows of a block's segment to a function, several at a time. */
static void visit(const columns *c, int64_t unit, int64_t thread, int needs_theta, visitor *see) {
    const acmo_row_tensor *t = c->t;
    int64_t block = unit / c->segments, column = unit % c->segments * SEGMENT, n = at_most(SEGMENT, c->width - column);
    int64_t row = block * c->rows_per_block, end = at_most(c->rows, row + c->rows_per_block);
    int64_t step = c->direct ? DIRECT_ROWS : c->segments > 1 ? 1 : at_least(1, TILE / c->width);
    if (step > ACMO_COLUMN_ROWS) step -= step % ACMO_COLUMN_ROWS; /* those that are left are added one by one */
    char *buffer = c->buffers + thread * c->stride;
    double *sums = c->sums + block * c->slots * c->padded;
    for (int64_t count; row < end; row += count) {
        count = at_most(step, end - row);
        acmo_row_block rows = acmo_open_block(t, row * c->width + column, c->direct ? 1 : count, n, needs_theta, buffer);
        rows.rows = count;
        see(c, &rows, c->direct ? c->width : n, sums, column);
    }
    if (block == c->blocks - 1 && column < c->rest) {
        n = at_most(SEGMENT, c->rest - column);
        acmo_row_block last = acmo_open_block(t, c->rows * c->width + column, 1, n, needs_theta, buffer);
        see(c, &last, n, sums, column);
    }
}
static void add_sums(const columns *c, const acmo_row_block *rows, int64_t stride, double *sums, int64_t column) {
    double *sum[ACMO_ROW_SUMS];
    for (int k = 0; k < ACMO_ROW_SUMS; k++) sum[k] = sums + k * c->padded + column;
    /* Not where rows are converted, θ is read with them, or they are cut into segments: there four at a time are faster. */
    const int one_by_one = c->direct && c->t->options.plain && c->segments == 1;
    c->t->loops->column_sums(rows, stride, one_by_one, &c->t->options, sum);
}
static void add_new_squares(const columns *c, const acmo_row_block *rows, int64_t stride, double *sums, int64_t column) {
    acmo_column_factors f = c->factors;
    int64_t skip = column * c->t->real_size;
    f.live = (char *)f.live + skip, f.b1 = (char *)f.b1 + skip, f.b2 = (char *)f.b2 + skip;
    c->t->loops->column_new_squares(rows, stride, &c->t->options, &f, sums + new_square_slot(c) * c->padded + column);
}
static void first_pass(void *context, int64_t thread, int64_t threads) {
    const columns *c = context;
    int64_t units = c->blocks * c->segments;
    for (int64_t u = units * thread / threads; u < units * (thread + 1) / threads; u++)
        visit(c, u, thread, !c->t->options.plain, add_sums);
}
static void new_square_pass(void *context, int64_t thread, int64_t threads) {
    const columns *c = context;
    int64_t units = c->blocks * c->segments;
    for (int64_t u = units * thread / threads; u < units * (thread + 1) / threads; u++) visit(c, u, thread, 1, add_new_squares);
}

/* The sums of `count` columns from `first` on: over the blocks, and over the rows that lie abreast. */
static void add_blocks(const columns *c, int slot, int64_t first, int64_t count, double *sums) {
    memset(sums, 0, (size_t)count * sizeof *sums);
    for (int64_t b = 0; b < c->blocks; b++)
        for (int64_t k = 0; k < c->abreast; k++) {
            const double *own = c->sums + (b * c->slots + slot) * c->padded + k * c->t->cols + first;
            for (int64_t i = 0; i < count; i++) sums[i] += own[i];
        }
}

static void put(const acmo_row_tensor *t, void *array, int64_t i, double x) {
    if (t->options.real == ACMO_DOUBLE) ((double *)array)[i] = x;
    else ((float *)array)[i] = (float)x;
}
/* The factors of column k of a batch, for all rows that lie abreast. Where the column does not step, m' = m or 0. */
static void put_factors(columns *c, int64_t column, const acmo_row_factors *f, int64_t k) {
    const acmo_row_tensor *t = c->t;
    int steps = f->state[k] == ACMO_STEPS, keeps_m = f->state[k] == ACMO_IDLE || f->state[k] == ACMO_SKIPPED;
    c->live |= !keeps_m;
    if (!steps || f->b1[k] != 1 || f->a1[k] != 1) c->factors.ordinary = 0;
    for (int64_t i = column; i < c->width; i += t->cols) {
        memset((char *)c->factors.live + i * t->real_size, steps ? 0xFF : 0, (size_t)t->real_size);
        put(t, c->factors.b1, i, steps ? f->b1[k] : 1), put(t, c->factors.b2, i, steps ? f->b2[k] : keeps_m);
        put(t, c->factors.a1, i, steps ? f->a1[k] : 1), put(t, c->factors.a2, i, steps ? f->a2[k] : 0);
        put(t, c->factors.keep, i, f->state[k] == ACMO_SKIPPED ? 1 : t->options.kappa);
    }
}

/* Returns whether Σ m'² of some column must be summed directly; if not, or if it was, the report is written. */
static int compute_factors(columns *c, int summed_directly, double *report) {
    const acmo_row_tensor *t = c->t;
    int direct = 0;
    c->live = 0, c->factors.ordinary = 1;
    acmo_clear_report(report);
    for (int64_t first = 0; first < t->cols; first += ACMO_GROUP_ROWS) {
        int64_t count = at_most(ACMO_GROUP_ROWS, t->cols - first);
        acmo_row_sums sums;
        acmo_row_factors f;
        for (int slot = t->options.plain; slot < ACMO_ROW_SUMS; slot++) add_blocks(c, slot, first, count, sums[slot]);
        if (t->options.plain) memcpy(sums[ACMO_RAW], sums[ACMO_GG], sizeof sums[ACMO_RAW]);
        t->all->factors(count, &t->options, sums, &f);
        for (int64_t k = 0; k < count; k++) {
            if (f.new_sq[k] == -1) {
                direct = 1;
                if (summed_directly) {
                    double new_sq;
                    add_blocks(c, new_square_slot(c), first + k, 1, &new_sq);
                    t->all->finish(k, &t->options, sums, new_sq, &f);
                }
            }
            put_factors(c, first + k, &f, k);
        }
        acmo_report_rows(t, sums, &f, count, report);
    }
    return direct;
}

static void second_pass(void *context, int64_t thread, int64_t threads) {
    unsigned char idle_rows[2 * TILE / SIDE_BY_SIDE];
    memset(idle_rows, ACMO_IDLE, sizeof idle_rows);
    const columns *c = context;
    const acmo_row_tensor *t = c->t;
    int64_t begin = c->units * thread / threads, step = at_least(1, TILE / c->width);
    for (int64_t u = c->units * (thread + 1) / threads; u-- > begin;) { /* backwards, as in row_split.c */
        int64_t row = u * c->rows_per_unit, end = at_most(c->rows + (c->rest > 0), row + c->rows_per_unit);
        for (int64_t count; row < end; row += count) {
            int is_rest = row == c->rows;
            count = is_rest ? 1 : at_most(step, at_most(end, c->rows) - row);
            int64_t n = is_rest ? c->rest : c->width, first = row * c->width;
            acmo_row_block rows = acmo_open_block(t, first, count, n, 1, c->buffers + thread * c->stride), one = rows;
            one.rows = 1;
            for (int64_t r = 0; r < count; r++) {
                int64_t skip = r * n * t->real_size;
                one.p = (char *)rows.p + skip, one.m = (char *)rows.m + skip, one.g = (const char *)rows.g + skip;
                t->loops->column_update(&one, &t->options, &c->factors);
            }
            acmo_close_block(t, first, &rows, c->live ? NULL : idle_rows);
        }
    }
}

void acmo_step_columns(const acmo_row_tensor *t, int64_t threads, char *scratch, char *buffers, int64_t stride, double *report) {
    columns c = columns_of(t);
    c.sums = (double *)scratch, c.buffers = buffers, c.stride = stride;
    size_t bytes = (size_t)(c.blocks * c.slots * c.padded) * sizeof(double);
    char *next = scratch + bytes;
    void **arrays[] = {&c.factors.live, &c.factors.b1, &c.factors.b2, &c.factors.a1, &c.factors.a2, &c.factors.keep};
    for (int k = 0; k < 6; k++, next += c.padded * t->real_size) *arrays[k] = next;
    memset(scratch, 0, bytes);
    acmo_run_threads(threads, first_pass, &c);
    if (compute_factors(&c, 0, report)) {
        for (int64_t b = 0; b < c.blocks; b++)
            memset(c.sums + (b * c.slots + new_square_slot(&c)) * c.padded, 0, (size_t)c.padded * sizeof(double));
        acmo_run_threads(threads, new_square_pass, &c);
        compute_factors(&c, 1, report);
    }
    acmo_run_threads(threads, second_pass, &c);
}
