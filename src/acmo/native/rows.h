/* What rows.c knows of the loops over rows and columns: a table of them for each instruction set that was compiled.
 *
 * A loop sees entries as float or as double ("real"). Other element types are converted group by group, in the cache; int8 moments of
 * float parameters in registers, row_bytes.h. */
#ifndef ACMO_ROWS_H
#define ACMO_ROWS_H

#include <stdint.h>

#include "chunks.h"

enum { ACMO_INT8 = ACMO_DTYPES, ACMO_MOMENT_DTYPES };
enum { ACMO_FLOAT, ACMO_DOUBLE, ACMO_REALS };
enum {
    ACMO_GROUP = 512,      /* entries; a group of whole rows has at most so many, or is one row: 6 kB of floats, in the first cache */
    ACMO_GROUP_ROWS = 128, /* and at most so many rows */
    ACMO_COLUMN_ROWS = 4,  /* rows that a sum over columns adds at once where it does not go row by row; 2 and 8 are slower */
    ACMO_LANES = 16,
};

/* A tensor's numbers in the algorithm's letters, as passed by the caller, and what the loops need to know of them. */
typedef struct {
    double s, lambda, beta, delta, alpha, kappa, root_n;
    int unit, propagate;
    int plain;   /* s = 1 and λ = 0: the gradient is used as it is stored */
    int real;    /* ACMO_FLOAT or ACMO_DOUBLE */
} acmo_row_options;

/* Sums of each row, in double: of the stored gradient's squares, and of line 3's g: G², I = ⟨g, m⟩, M². */
enum { ACMO_RAW, ACMO_GG, ACMO_GM, ACMO_MM, ACMO_ROW_SUMS };
typedef double acmo_row_sums[ACMO_ROW_SUMS][ACMO_GROUP_ROWS];

/* What a row does: step as usual, or one of the exceptions. */
enum { ACMO_STEPS, ACMO_IDLE, ACMO_SKIPPED, ACMO_CANCELLED };

/* A row's factors. m' = g + (m b1) b2 and θ' = κ θ − (m' a1) a2; b1 and a1 are powers of 2, and 1 unless b = b1 b2 or
 * a = a1 a2 alone would leave the range of a float: the products never do. new_sq is ‖m'‖². */
typedef struct {
    double b1[ACMO_GROUP_ROWS], b2[ACMO_GROUP_ROWS], a1[ACMO_GROUP_ROWS], a2[ACMO_GROUP_ROWS];
    double new_sq[ACMO_GROUP_ROWS], cosine[ACMO_GROUP_ROWS];
    unsigned char state[ACMO_GROUP_ROWS];
    int exceptions; /* 0: all of state is ACMO_STEPS, and no new_sq is −1, which asks for a direct sum */
} acmo_row_factors;

/* The same for the columns of a matrix, as arrays of real with one entry per column: m' = (g & live) + (m b1) b2,
 * θ' = keep θ − (((m' a1) a2) & live). live is a mask of bits. */
typedef struct {
    void *live, *b1, *b2, *a1, *a2, *keep;
    int ordinary; /* all live, and all b1 and a1 are 1 */
} acmo_column_factors;

/* A block of entries, as real: p and g may be read beyond m's needs, never written unless said so. */
typedef struct {
    void *p, *m;
    const void *g;
    int64_t rows, n;
    float *scales; /* of the loops in `bytes`: m is int8 then, with one scale per row */
    float *fresh;  /* and room for one row of m' */
} acmo_row_block;

typedef struct {
    /* The sums of each of at most ACMO_GROUP_ROWS rows of n entries that lie one behind the other. */
    void (*sums)(const acmo_row_block *, const acmo_row_options *, acmo_row_sums out);
    /* Step rows in place; m' is not rounded further. */
    void (*update)(const acmo_row_block *, const acmo_row_options *, const acmo_row_factors *);
    /* `update` of one block and `sums` of the next in one sweep. Both have as many rows, all of the first are ordinary (no exceptions),
     * and the gradient is plain and stored as real. */
    void (*update_and_sum)(const acmo_row_block *, const acmo_row_block *next, const acmo_row_options *, const acmo_row_factors *,
                           acmo_row_sums next_sums);
} acmo_row_sweeps;

typedef struct {
    acmo_row_sweeps sweeps;
    /* Σ m'² of one row of n entries. */
    double (*new_square)(const acmo_row_block *, const acmo_row_options *, double b1, double b2);
    /* Add to the sums of n columns those of `rows` rows, `stride` entries apart; one_by_one: to the same bits, faster where rows come
     * from memory, slower where they lie in a cache. sum[k] has room for full lanes. */
    void (*column_sums)(const acmo_row_block *, int64_t stride, int one_by_one, const acmo_row_options *,
                        double *const sum[ACMO_ROW_SUMS]);
    /* Add Σ m'² of each of n columns. */
    void (*column_new_squares)(const acmo_row_block *, int64_t stride, const acmo_row_options *, const acmo_column_factors *,
                               double *sum);
    /* Step one row of n entries that belong to n columns, in place. */
    void (*column_update)(const acmo_row_block *, const acmo_row_options *, const acmo_column_factors *);
    /* Convert n entries of a dtype to real, or back. */
    void (*load[ACMO_DTYPES])(const void *from, void *to, int64_t n);
    void (*store[ACMO_DTYPES])(const void *from, void *to, int64_t n);
    void (*hold[ACMO_DTYPES])(const void *from, void *to, int64_t n); /* the same for moments */
    /* bfloat16 with stochastic rounding; see row_convert.h. */
    void (*store_randomly)(const void *from, void *to, int64_t n, uint32_t seed, int64_t index);
    /* n entries q · scale, and back: q = m' / scale rounded to nearest. */
    void (*load_int8)(const int8_t *from, float scale, void *to, int64_t n);
    void (*store_int8)(const void *from, float scale, int8_t *to, int64_t n);
    double (*largest)(const void *x, int64_t n); /* max |x|; NaN if there is one */
} acmo_real_loops;

typedef struct {
    acmo_real_loops real[ACMO_REALS];
    /* For float parameters with int8 moments, a plain gradient, and ordinary rows; m' is rounded, and a row's scale replaced. */
    acmo_row_sweeps bytes;
    void (*factors)(int64_t rows, const acmo_row_options *, acmo_row_sums sums, acmo_row_factors *out);
    /* Complete row k, whose factors had new_sq = −1, with Σ m'² as new_square gives it. */
    void (*finish)(int64_t k, const acmo_row_options *, acmo_row_sums sums, double new_sq, acmo_row_factors *);
} acmo_row_loops;

extern const acmo_row_loops acmo_row_loops_plain, acmo_row_loops_v3, acmo_row_loops_v4;

/* kernel.c */
const acmo_row_loops *acmo_current_row_loops(void);
int acmo_may_use_threads(void);
int64_t acmo_merge_width(void);

#endif
