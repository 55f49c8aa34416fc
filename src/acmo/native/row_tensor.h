/* One tensor of a call by rows or columns, its blocks of entries as float or double, and the threads: what rows.c,
 * row_split.c and row_columns.c share. */
#ifndef ACMO_ROW_TENSOR_H
#define ACMO_ROW_TENSOR_H

#include <stddef.h>

#include "rows.h"

enum { ACMO_SCOPE_ROW, ACMO_SCOPE_COLUMN, ACMO_SCOPE_WHOLE };
/* What a call reports of each tensor. The sums are over the rows that took part; a skipped row does not. */
enum {
    ACMO_RAW_SQ, ACMO_G_SQ, ACMO_M_SQ, ACMO_NEW_SQ, ACMO_ROWS, ACMO_TOOK_PART, ACMO_ROWS_SKIPPED, ACMO_COS_MIN,
    ACMO_COS_SUM, ACMO_TURNED, ACMO_REPORT
};

typedef struct {
    char *p, *m, *g;
    float *scales;                         /* of int8 moments: one per row of dimension 0 */
    int64_t rows, cols, numel, scope, p_dtype, m_dtype;
    int rounds_randomly;
    uint32_t seed;
    int64_t index;                         /* of the first entry, for the random bits */
    acmo_row_options options;
    const acmo_row_loops *all;
    const acmo_real_loops *loops;
    int64_t real_size;
} acmo_row_tensor;

/* Entries that buffers of one thread must have room for, three times over, to hold `entries` as real; 0 if none is needed. */
int64_t acmo_buffer_entries(const acmo_row_tensor *, int64_t entries);
/* A view of rows · n entries from `first` on: the tensors themselves where they are real, else copies in the buffer. θ is
 * left out where it is not needed. */
acmo_row_block acmo_open_block(const acmo_row_tensor *, int64_t first, int64_t rows, int64_t n, int needs_theta, char *buffer);
/* Write θ and m' back; rows whose state keeps m, and a NULL state has none, keep their bytes. */
void acmo_close_block(const acmo_row_tensor *, int64_t first, const acmo_row_block *, const unsigned char *state);
/* Write the θ of a block, and int8 moments with scales that are known. */
void acmo_close_scaled_block(const acmo_row_tensor *, int64_t first, const acmo_row_block *, float scale);

/* Add to the report what `rows` rows did, at most ACMO_GROUP_ROWS. */
void acmo_report_rows(const acmo_row_tensor *, acmo_row_sums sums, const acmo_row_factors *, int64_t rows, double *report);
void acmo_add_report(double *total, const double *part);
void acmo_clear_report(double *report);

/* Run body on at most so many threads. Each gets its number and how many there are. */
void acmo_run_threads(int64_t threads, void (*body)(void *, int64_t thread, int64_t threads), void *context);

/* Tensors that do not fit into a cache: two passes, the second after the sums of all blocks are known. `scratch` has as many
 * bytes as the first function says, `buffers` those of all threads, `stride` bytes apart. */
size_t acmo_split_scratch(const acmo_row_tensor *);
int64_t acmo_split_block(const acmo_row_tensor *);
void acmo_step_split(const acmo_row_tensor *, int64_t threads, char *scratch, char *buffers, int64_t stride, double *report);
size_t acmo_column_scratch(const acmo_row_tensor *);
int64_t acmo_column_block(const acmo_row_tensor *);
void acmo_step_columns(const acmo_row_tensor *, int64_t threads, char *scratch, char *buffers, int64_t stride, double *report);

#endif
