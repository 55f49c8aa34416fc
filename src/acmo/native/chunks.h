/* What kernel.c knows of the loops over one chunk: a table of them for each instruction set that was compiled. */
#ifndef ACMO_CHUNKS_H
#define ACMO_CHUNKS_H

#include <stdint.h>

enum { ACMO_FLOAT32, ACMO_FLOAT64, ACMO_BFLOAT16, ACMO_FLOAT16, ACMO_DTYPES };
enum { ACMO_S, ACMO_LAMBDA, ACMO_BETA_HAT, ACMO_KEEP, ACMO_ALPHA, ACMO_COEFS };

enum { ACMO_CHUNK = 8192, ACMO_STREAMS = 4 };

/* out = Σx², Σxy, Σy² over n entries; the last two are 0 where y is NULL. */
typedef void acmo_sums_chunk(const void *x, const void *y, int64_t n, double out[3]);
/* out = Σx² of each of ACMO_STREAMS full chunks that lie one behind the other; the bits are those of ACMO_STREAMS calls. */
typedef void acmo_squares_chunks(const void *x, double out[ACMO_STREAMS]);
/* Lines 2, 3, 6, 7, 8 of the algorithm over n entries; returns Σm² of m as stored. */
typedef double acmo_update_chunk(void *p, void *m, const void *g, int64_t n, const double coef[ACMO_COEFS]);

typedef struct {
    const char *isa;
    acmo_sums_chunk *sums[ACMO_DTYPES];                    /* [dtype of x and y] */
    acmo_squares_chunks *squares[ACMO_DTYPES];             /* [dtype of x] */
    acmo_update_chunk *update[ACMO_DTYPES][ACMO_DTYPES];   /* [dtype of p and g][dtype of m] */
} acmo_chunks;

extern const acmo_chunks acmo_chunks_plain, acmo_chunks_v3, acmo_chunks_v4;

#endif
