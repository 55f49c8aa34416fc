/* The loops over rows and columns. Compiled once for each instruction set, with its flags and with ACMO_VARIANT naming it;
 * without contraction to fused multiply-adds, which not every set has. */
#include <float.h>
#include <math.h>

#include "elements.h"
#include "rows.h"

/* Entry i of a row goes to lane i mod LANES, whatever the instruction set; the lanes are added as a tree at the end. */
enum {
    LANES = ACMO_LANES,
    DOUBLES = WIDTH / 2,
    AHEAD = 640,          /* how many entries ahead loops prefetch; with 512 or 768 some widths take 1 to 3 % longer */
    MERGED_AHEAD = 512,   /* the same in merged sweeps */
    COLUMNS_AHEAD = 1024, /* the same in sums over columns, for each of the rows that are added at once */
    UPDATE_AHEAD = 256,   /* the same in updates of columns; 128 takes 2 % longer, 640 1 to 3 % */
    LONG_ROW = 1280,      /* entries of a long row: rows of 1,024 are faster without what helps rows of 1,536 */
};
typedef struct { vd part[LANES / DOUBLES]; } lanes;

/* Not {0}: gcc fills an array of these with `rep stos`, which takes longer than a short row. */
INLINE lanes no_sum(void) {
    lanes sum;
    _Pragma("GCC unroll 8") for (int i = 0; i < LANES / DOUBLES; i++) sum.part[i] = (vd){0};
    return sum;
}
/* Part by part: gcc copies a whole struct by way of the stack. */
INLINE lanes load_lanes(const double *x) {
    lanes sum;
    _Pragma("GCC unroll 8") for (int i = 0; i < LANES / DOUBLES; i++) memcpy(&sum.part[i], x + i * DOUBLES, sizeof(vd));
    return sum;
}
INLINE void store_lanes(double *x, const lanes *sum) {
    _Pragma("GCC unroll 8") for (int i = 0; i < LANES / DOUBLES; i++) memcpy(x + i * DOUBLES, &sum->part[i], sizeof(vd));
}
/* Always halves, in registers: rows may be short. */
INLINE double total(const lanes *sum) {
    lanes x = *sum;
    _Pragma("GCC unroll 8") for (int half = LANES / DOUBLES / 2; half > 0; half /= 2)
        _Pragma("GCC unroll 8") for (int i = 0; i < half; i++) x.part[i] += x.part[i + half];
#if ACMO_BYTES == 64
    __m256d four = _mm512_castpd512_pd256((__m512d)x.part[0]) + _mm512_extractf64x4_pd((__m512d)x.part[0], 1);
#elif ACMO_BYTES == 32
    __m256d four = (__m256d)x.part[0];
#endif
#if ACMO_BYTES >= 32
    __m128d two = _mm256_castpd256_pd128(four) + _mm256_extractf128_pd(four, 1);
#else
    vd two = x.part[0];
#endif
    return two[0] + two[1];
}

typedef vf float_V;
typedef vu float_U;
typedef uint32_t float_bits;
enum { float_ENTRIES = WIDTH };
#define float_load_first load_first_float
#define float_store_first store_first_float
INLINE void float_add_products(lanes *sum, int k, vf a, vf b) {
    vd2 x = widen(a), y = widen(b);
    sum->part[2 * k] = add_float_product(sum->part[2 * k], x.lo, y.lo);
    sum->part[2 * k + 1] = add_float_product(sum->part[2 * k + 1], x.hi, y.hi);
}

INLINE vu float_larger(vu a, vu b) {
#if ACMO_BYTES == 64
    return (vu)_mm512_max_epu32((__m512i)a, (__m512i)b);
#elif ACMO_BYTES == 32
    return (vu)_mm256_max_epu32((__m256i)a, (__m256i)b);
#else
    return choose((vu)(a > b), a, b);
#endif
}

typedef vd double_V;
typedef vu64 double_U;
typedef uint64_t double_bits;
enum { double_ENTRIES = DOUBLES };
#define double_load_first load_first_double
#define double_store_first store_first_double
INLINE void double_add_products(lanes *sum, int k, vd a, vd b) {
    sum->part[k] = add_double_product(sum->part[k], a, b);
}

INLINE vu64 double_larger(vu64 a, vu64 b) {
    vu64 above = (vu64)(a > b);
    return (a & above) | (b & ~above);
}

#define REAL float
#define NAME(x) float_##x
#include "row_core.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) double_##x
#include "row_core.h"
#undef REAL
#undef NAME
#include "row_convert.h"
#include "row_bytes.h"

/* x as a product of a power of 2 and a number whose exponent is half as large: as floats, both are in range. */
static void split(double x, double *power, double *rest) {
    int exponent;
    double fraction = frexp(x, &exponent);
    *power = ldexp(1, exponent / 2), *rest = ldexp(fraction, exponent - exponent / 2);
}

/* A row that is not ordinary: zero, not finite, with m = 0, in need of a direct sum (new_sq stays −1), or of extreme scale. */
static void take_exception(int64_t k, const acmo_row_options *o, acmo_row_sums sums, acmo_row_factors *f) {
    double G = sqrt(sums[ACMO_GG][k]), M = sqrt(sums[ACMO_MM][k]), b = 0, r = 0, c = 0, step = o->alpha;
    if (sums[ACMO_RAW][k] == 0) f->state[k] = ACMO_IDLE;
    else if (!o->propagate && !isfinite(G)) f->state[k] = ACMO_SKIPPED;
    else if (o->unit && G == 0) f->state[k] = ACMO_CANCELLED;
    if (!(M == 0)) { /* where m = 0, line 4 is applied as 0 */
        double ratio = o->beta / (M + o->delta);
        b = G * ratio, r = M * ratio, c = G == 0 ? 0 : sums[ACMO_GM][k] / (G * M);
    }
    double base = 1 + r * r, square = base + 2 * r * c;
    split(b, &f->b1[k], &f->b2[k]);
    if (f->state[k] == ACMO_STEPS && square < 1e-3 * base && G > 0) return;
    double N = G * sqrt(square);
    if (o->unit) step = isfinite(G) ? step * o->root_n / N : NAN; /* what "propagate" lets through spreads */
    split(step, &f->a1[k], &f->a2[k]);
    f->new_sq[k] = N * N, f->cosine[k] = G == 0 ? 0 : (1 + r * c) / sqrt(square);
}

/* The same for a row whose ‖m'‖² had to be summed directly. */
static void finish(int64_t k, const acmo_row_options *o, acmo_row_sums sums, double new_sq, acmo_row_factors *f) {
    double G = sqrt(sums[ACMO_GG][k]), M = sqrt(sums[ACMO_MM][k]), N = sqrt(new_sq), step = o->alpha;
    double ratio = o->beta / (M + o->delta), r = M * ratio, c = sums[ACMO_GM][k] / (G * M);
    if (o->unit) step = step * o->root_n / N;
    split(step, &f->a1[k], &f->a2[k]);
    f->new_sq[k] = new_sq, f->cosine[k] = N > 0 ? (1 + r * c) * (G / N) : 0;
    if (o->unit && isfinite(G) && N <= (o->real == ACMO_DOUBLE ? 1e-14 : 1e-6) * G) /* what is left is rounding */
        f->state[k] = ACMO_CANCELLED, f->new_sq[k] = 0, f->cosine[k] = 0;
}

/* Lines 4 and 8 of the algorithm for each row, from its sums, free of scale: with r = βM/(M + δ) ≤ β and c = cos(g, m),
 * ‖m'‖² = G² (1 + 2rc + r²). In one branchless loop that the compiler turns into vectors: short rows need it. */
static void factors(int64_t rows, const acmo_row_options *o, acmo_row_sums sums, acmo_row_factors *f) {
    const double limit = o->real == ACMO_DOUBLE ? 0x1p900 : 0x1p100, step = o->unit ? o->alpha * o->root_n : o->alpha;
    const double beta = o->beta, delta = o->delta;
    const int is_unit = o->unit;
    int64_t usual = 0;
    for (int64_t k = 0; k < rows; k++) {
        double G = sqrt(sums[ACMO_GG][k]), M = sqrt(sums[ACMO_MM][k]);
        double ratio = beta / (M + delta), b = G * ratio, r = M * ratio, c = sums[ACMO_GM][k] / (G * M);
        double base = 1 + r * r, square = base + 2 * r * c, length = sqrt(square);
        double N = G * length, a = is_unit ? step / N : step;
        int64_t ordinary = (sums[ACMO_RAW][k] > 0) & (square >= 1e-3 * base) & (b < limit) & (b > 1 / limit) &
                           (fabs(a) < limit) & (fabs(a) > 1 / limit);
        f->b1[k] = 1, f->b2[k] = b, f->a1[k] = 1, f->a2[k] = a, f->cosine[k] = (1 + r * c) / length;
        f->new_sq[k] = ordinary ? N * N : -1;
        usual += ordinary;
    }
    memset(f->state, ACMO_STEPS, sizeof f->state);
    f->exceptions = usual != rows;
    for (int64_t k = 0; f->exceptions && k < rows; k++)
        if (f->new_sq[k] == -1) take_exception(k, o, sums, f);
}

#define LOOPS(S) {                                                                                  \
        .sweeps = {S##_sums, S##_update, S##_update_and_sum}, .new_square = S##_new_square,          \
        .column_sums = S##_column_sums, .column_new_squares = S##_column_new_squares,               \
        .column_update = S##_column_update,                                                         \
        .load = {S##_from_f32, S##_from_f64, S##_from_bf16, S##_from_f16},                          \
        .store = {S##_to_f32, S##_to_f64, S##_to_bf16, S##_to_f16},                                 \
        .hold = {S##_to_f32, S##_to_f64, S##_to_bf16, S##_hold_f16},                                \
        .store_randomly = S##_to_bf16_randomly,                                                     \
        .load_int8 = S##_from_int8, .store_int8 = S##_to_int8, .largest = S##_largest,              \
    }
#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
const acmo_row_loops GLUE(acmo_row_loops_, ACMO_VARIANT) = {
    .real = {LOOPS(float), LOOPS(double)}, .bytes = {byte_sums, byte_update, byte_update_and_sum}, .factors = factors, .finish = finish};
