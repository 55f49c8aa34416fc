/* Blocks of a tensor as float or double, and the report of a step. */
#include "row_tensor.h"

#include <math.h>
#include <string.h>

static const int64_t ITEM_SIZE[ACMO_MOMENT_DTYPES] = {4, 8, 2, 2, 1};
static const int64_t REAL_DTYPE[ACMO_REALS] = {ACMO_FLOAT32, ACMO_FLOAT64};

static int is_real(const acmo_row_tensor *t, int64_t dtype) { return dtype == REAL_DTYPE[t->options.real]; }
static char *at(char *base, int64_t dtype, int64_t first) { return base + first * ITEM_SIZE[dtype]; }

int64_t acmo_buffer_entries(const acmo_row_tensor *t, int64_t entries) {
    if (is_real(t, t->p_dtype) && is_real(t, t->m_dtype)) return 0;
    return (entries + ACMO_LANES - 1) / ACMO_LANES * ACMO_LANES;
}

static void load_moment(const acmo_row_tensor *t, int64_t first, int64_t count, char *to) {
    if (t->m_dtype != ACMO_INT8) {
        t->loops->load[t->m_dtype](at(t->m, t->m_dtype, first), to, count);
        return;
    }
    for (int64_t end = first + count, next; first < end; first = next) {
        int64_t row = first / t->cols;
        next = (row + 1) * t->cols < end ? (row + 1) * t->cols : end;
        t->loops->load_int8((int8_t *)t->m + first, t->scales[row], to, next - first);
        to += (next - first) * t->real_size;
    }
}

acmo_row_block acmo_open_block(const acmo_row_tensor *t, int64_t first, int64_t rows, int64_t n, int needs_theta,
                               char *buffer) {
    int64_t count = rows * n, size = acmo_buffer_entries(t, count) * t->real_size;
    char *p = at(t->p, t->p_dtype, first), *m = at(t->m, t->m_dtype, first), *g = at(t->g, t->p_dtype, first);
    acmo_row_block block = {.p = p, .m = m, .g = g, .rows = rows, .n = n};
    if (!needs_theta) block.p = m + count * ITEM_SIZE[t->m_dtype]; /* what the loop prefetches instead of θ: the next m */
    if (!is_real(t, t->p_dtype)) {
        if (needs_theta) t->loops->load[t->p_dtype](block.p, buffer, count);
        t->loops->load[t->p_dtype](block.g, buffer + size, count);
        block.p = buffer, block.g = buffer + size;
    }
    if (!is_real(t, t->m_dtype)) {
        load_moment(t, first, count, buffer + 2 * size);
        block.m = buffer + 2 * size;
    }
    return block;
}

static void close_theta(const acmo_row_tensor *t, int64_t first, const acmo_row_block *block) {
    int64_t count = block->rows * block->n;
    if (is_real(t, t->p_dtype)) return;
    if (t->rounds_randomly)
        t->loops->store_randomly(block->p, at(t->p, t->p_dtype, first), count, t->seed, t->index + first);
    else t->loops->store[t->p_dtype](block->p, at(t->p, t->p_dtype, first), count);
}

void acmo_close_block(const acmo_row_tensor *t, int64_t first, const acmo_row_block *block, const unsigned char *state) {
    int64_t count = block->rows * block->n;
    close_theta(t, first, block);
    if (is_real(t, t->m_dtype)) return;
    if (t->m_dtype != ACMO_INT8) {
        t->loops->hold[t->m_dtype](block->m, at(t->m, t->m_dtype, first), count);
        return;
    }
    const char *m = block->m;
    for (int64_t done = 0; done < count; done += t->cols, m += t->cols * t->real_size) {
        int64_t row = (first + done) / t->cols;
        int kept = state && (state[done / block->n] == ACMO_IDLE || state[done / block->n] == ACMO_SKIPPED);
        if (kept) continue;
        t->scales[row] = (float)(t->loops->largest(m, t->cols) / 127);
        t->loops->store_int8(m, t->scales[row], (int8_t *)t->m + first + done, t->cols);
    }
}

void acmo_close_scaled_block(const acmo_row_tensor *t, int64_t first, const acmo_row_block *block, float scale) {
    close_theta(t, first, block);
    t->loops->store_int8(block->m, scale, (int8_t *)t->m + first, block->rows * block->n);
}

void acmo_clear_report(double *report) {
    memset(report, 0, ACMO_REPORT * sizeof *report);
    report[ACMO_COS_MIN] = INFINITY;
}

/* A NaN cosine, which only "propagate" lets through, stays. */
static double smaller(double a, double b) { return isnan(a) || a < b ? a : b; }

void acmo_add_report(double *total, const double *part) {
    for (int k = 0; k < ACMO_REPORT; k++)
        total[k] = k == ACMO_COS_MIN ? smaller(total[k], part[k]) : total[k] + part[k];
}

/* The sums are local variables: in memory, each short row would wait for the stores of the one before. */
void acmo_report_rows(const acmo_row_tensor *t, acmo_row_sums sums, const acmo_row_factors *f, int64_t rows, double *report) {
    const double s_sq = t->options.s * t->options.s;
    double raw_sq = report[ACMO_RAW_SQ], g_sq = report[ACMO_G_SQ], m_sq = report[ACMO_M_SQ], new_sq = report[ACMO_NEW_SQ];
    double cos_min = report[ACMO_COS_MIN], cos_sum = report[ACMO_COS_SUM];
    int64_t took_part = 0, skipped = 0, turned = 0;
    for (int64_t k = 0; k < rows; k++) {
        skipped += f->state[k] == ACMO_SKIPPED;
        if (f->state[k] == ACMO_IDLE || f->state[k] == ACMO_SKIPPED) continue;
        raw_sq += s_sq * sums[ACMO_RAW][k], g_sq += sums[ACMO_GG][k], m_sq += sums[ACMO_MM][k], new_sq += f->new_sq[k];
        cos_min = smaller(f->cosine[k], cos_min), cos_sum += f->cosine[k];
        took_part++, turned += sums[ACMO_GM][k] < 0;
    }
    report[ACMO_RAW_SQ] = raw_sq, report[ACMO_G_SQ] = g_sq, report[ACMO_M_SQ] = m_sq, report[ACMO_NEW_SQ] = new_sq;
    report[ACMO_COS_MIN] = cos_min, report[ACMO_COS_SUM] = cos_sum;
    report[ACMO_ROWS] += (double)rows, report[ACMO_TOOK_PART] += (double)took_part;
    report[ACMO_ROWS_SKIPPED] += (double)skipped, report[ACMO_TURNED] += (double)turned;
}
