/* The loops over one chunk, for all element types. Compiled once for each instruction set, with its flags and with
 * ACMO_VARIANT and ACMO_ISA naming it; without contraction to fused multiply-adds, which not every set has. */
#include <math.h>

#include "chunks.h"
#include "elements.h"

/* Entry i of a chunk goes to lane i mod LANES, whatever the instruction set; the lanes are added as a tree at the end. */
enum { LANES = 16, UNITS = LANES / WIDTH };
typedef struct { vd2 unit[UNITS]; } lanes;

INLINE double total(const lanes *sum) {
    double x[LANES];
    memcpy(x, sum, sizeof x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

INLINE void add_product_f64(vd2 *sum, vd2 a, vd2 b) {
    sum->lo = add_double_product(sum->lo, a.lo, b.lo);
    sum->hi = add_double_product(sum->hi, a.hi, b.hi);
}
INLINE void add_product_f32(vd2 *sum, vd2 a, vd2 b) {
    sum->lo = add_float_product(sum->lo, a.lo, b.lo);
    sum->hi = add_float_product(sum->hi, a.hi, b.hi);
}
#define add_product_bf16 add_product_f32
#define add_product_f16 add_product_f32

#define UNROLLED _Pragma("GCC unroll 16") for (int k = 0; k < UNITS; k++)
#define UNROLLED_PAIRS _Pragma("GCC unroll 16") for (int k = 0; k < UNITS; k += 2)
#ifdef ACMO_PAIRS
INLINE void add_squares(vd2 *sum, vf_pair x) {
    vd2 a = widen(x.a), b = widen(x.b);
#if ACMO_BYTES == 32
    vd2 first = {a.lo, b.lo}, second = {a.hi, b.hi};
#else
    vd2 first = a, second = b;
#endif
    add_product_f32(&sum[0], first, first);
    add_product_f32(&sum[1], second, second);
}
#endif

/* Pass 1. What is left after the last full row of lanes goes through the same code, padded with zeros. */
#define DEFINE_ROWS(T)                                                                              \
    INLINE void squares_##T(const T *x, lanes *xx) {                                                \
        UNROLLED {                                                                                  \
            vd2 a = load_##T##_d(x + k * WIDTH);                                                    \
            add_product_##T(&xx->unit[k], a, a);                                                    \
        }                                                                                           \
    }                                                                                               \
    INLINE void products_##T(const T *x, const T *y, lanes *xx, lanes *xy, lanes *yy) {             \
        UNROLLED {                                                                                  \
            vd2 a = load_##T##_d(x + k * WIDTH), b = load_##T##_d(y + k * WIDTH);                   \
            add_product_##T(&xx->unit[k], a, a);                                                    \
            add_product_##T(&xy->unit[k], a, b);                                                    \
            add_product_##T(&yy->unit[k], b, b);                                                    \
        }                                                                                           \
    }
DEFINE_ROWS(f32)
DEFINE_ROWS(f64)
DEFINE_ROWS(bf16)
DEFINE_ROWS(f16)

/* Reading one stream, a core waits at every page; four at once go at nearly twice the speed (measured: 12 and 21 GB/s). */
enum { BURST = 4 * LANES };
#define DEFINE_SUMS(T)                                                                              \
    static void sums_##T(const void *x_, const void *y_, int64_t n, double out[3]) {                \
        const T *x = x_, *y = y_;                                                                   \
        lanes xx = {0}, xy = {0}, yy = {0};                                                         \
        T x_rest[LANES] = {0}, y_rest[LANES] = {0};                                                 \
        int64_t full = n - n % LANES;                                                               \
        size_t rest = (size_t)(n - full) * sizeof(T);                                               \
        if (rest) memcpy(x_rest, x + full, rest);                                                   \
        if (!y) {                                                                                   \
            for (int64_t i = 0; i < full; i += LANES) squares_##T(x + i, &xx);                      \
            if (rest) squares_##T(x_rest, &xx);                                                     \
        } else {                                                                                    \
            for (int64_t i = 0; i < full; i += LANES) products_##T(x + i, y + i, &xx, &xy, &yy);    \
            if (rest) memcpy(y_rest, y + full, rest), products_##T(x_rest, y_rest, &xx, &xy, &yy);  \
        }                                                                                           \
        out[0] = total(&xx), out[1] = total(&xy), out[2] = total(&yy);                              \
    }                                                                                               \
    static void squares_chunks_##T(const void *x_, double out[ACMO_STREAMS]) {                      \
        const T *x = x_;                                                                            \
        lanes xx[ACMO_STREAMS] = {0};                                                               \
        for (int64_t i = 0; i < ACMO_CHUNK; i += BURST)                                             \
            _Pragma("GCC unroll 4") for (int64_t s = 0; s < ACMO_STREAMS; s++)                      \
                for (int64_t k = i; k < i + BURST; k += LANES) squares_##T(x + s * ACMO_CHUNK + k, &xx[s]); \
        for (int s = 0; s < ACMO_STREAMS; s++) out[s] = total(&xx[s]);                              \
    }
DEFINE_SUMS(f32)
DEFINE_SUMS(f64)
DEFINE_SUMS(bf16)
DEFINE_SUMS(f16)

/* m' = s g + λθ + β̂ m and θ' = keep θ − α m', in float or in double. Plain: s = 1, λ = 0, keep = 1, which is a step
 * without clipping and decay, and for 16-bit elements that much arithmetic is what takes the time. */
/* β̂ = beta_hat · beta_more: 1 unless float cannot hold β̂, though β̂m is bounded by β‖g‖; then both are its root. */
typedef struct { float s, lambda, beta_hat, beta_more, keep, alpha; uint32_t decays; } coefs_float;
typedef struct { double s, lambda, beta_hat, beta_more, keep, alpha; uint64_t decays; } coefs_double;

#define DEFINE_ADVANCE(V, U, S)                                                                     \
    INLINE V advance_##V(V g, V m, V *theta, const coefs_##S *c, int plain) {                       \
        if (plain) {                                                                                \
            V fresh = g + c->beta_hat * m;                                                          \
            *theta = *theta - c->alpha * fresh;                                                     \
            return fresh;                                                                           \
        }                                                                                           \
        V decay = (V)((U)(c->lambda * *theta) & c->decays); /* without decay, 0 for θ = ∞ too */    \
        V fresh = c->s * g + decay + c->beta_more * (c->beta_hat * m);                              \
        *theta = c->keep * *theta - c->alpha * fresh;                                               \
        return fresh;                                                                               \
    }                                                                                               \
    INLINE coefs_##S coefs_in_##S(const double *coef) {                                             \
        S x[ACMO_COEFS];                                                                            \
        for (int k = 0; k < ACMO_COEFS; k++) x[k] = coef[k] == coef[k] ? (S)coef[k] : (S)NAN; /* the plain NaN */ \
        coefs_##S c = {x[ACMO_S], x[ACMO_LAMBDA], x[ACMO_BETA_HAT], 1, x[ACMO_KEEP], x[ACMO_ALPHA], 0}; \
        double beta_hat = coef[ACMO_BETA_HAT];                                                      \
        if (sizeof(S) == 4 && (beta_hat > 1e30 || (beta_hat > 0 && beta_hat < 1e-30))) {             \
            double root = sqrt(beta_hat);                                                           \
            c.beta_hat = c.beta_more = (S)(root < 3e38 ? root : 3e38);                              \
        }                                                                                           \
        if (c.lambda != 0) c.decays--;                                                              \
        return c;                                                                                   \
    }
DEFINE_ADVANCE(vf, vu, float)
DEFINE_ADVANCE(vd, vu64, double)

/* ROW updates LANES entries. In the padded rest the sum is taken afterwards, of the entries that exist: a coefficient
 * that is not finite makes the padding's m' NaN. */
#define DEFINE_UPDATE(P, M, S, ROW)                                                                 \
    INLINE double rows_##P##_##M(P *p, M *m, const P *g, int64_t n, const coefs_##S *c, int plain) { \
        lanes mm = {0};                                                                             \
        int64_t full = n - n % LANES;                                                               \
        for (int64_t i = 0; i < full; i += LANES) ROW(P, M, (p + i), (m + i), (g + i), mm)          \
        if (n > full) {                                                                             \
            P p_rest[LANES] = {0}, g_rest[LANES] = {0};                                             \
            M m_rest[LANES] = {0}, m_sum[LANES] = {0};                                              \
            size_t rest = (size_t)(n - full), p_size = rest * sizeof(P), m_size = rest * sizeof(M); \
            memcpy(p_rest, p + full, p_size), memcpy(m_rest, m + full, m_size), memcpy(g_rest, g + full, p_size); \
            lanes ignored = {0};                                                                    \
            ROW(P, M, p_rest, m_rest, g_rest, ignored)                                              \
            memcpy(p + full, p_rest, p_size), memcpy(m + full, m_rest, m_size);                     \
            memcpy(m_sum, m_rest, m_size);                                                          \
            squares_##M(m_sum, &mm);                                                                \
        }                                                                                           \
        return total(&mm);                                                                          \
    }                                                                                               \
    static double update_##P##_##M(void *p, void *m, const void *g, int64_t n, const double coef[ACMO_COEFS]) { \
        coefs_##S c = coefs_in_##S(coef);                                                           \
        if (c.s == 1 && c.lambda == 0 && c.keep == 1 && c.beta_more == 1) return rows_##P##_##M(p, m, g, n, &c, 1);     \
        return rows_##P##_##M(p, m, g, n, &c, 0);                                                   \
    }

#define ROW_F(P, M, p, m, g, mm) UNROLLED {                                                         \
        vf theta = load_##P(p + k * WIDTH);                                                         \
        vf fresh = advance_vf(load_##P(g + k * WIDTH), load_##M(m + k * WIDTH), &theta, c, plain);  \
        vd2 stored = widen(hold_##M(m + k * WIDTH, fresh));                                         \
        store_##P(p + k * WIDTH, theta);                                                            \
        add_product_##M(&mm.unit[k], stored, stored);                                               \
    }
#define ROW_D(P, M, p, m, g, mm) UNROLLED {                                                         \
        vd2 theta = load_##P##_d(p + k * WIDTH), fresh;                                             \
        vd2 g_k = load_##P##_d(g + k * WIDTH), m_k = load_##M##_d(m + k * WIDTH);                   \
        fresh.lo = advance_vd(g_k.lo, m_k.lo, &theta.lo, c, plain);                                 \
        fresh.hi = advance_vd(g_k.hi, m_k.hi, &theta.hi, c, plain);                                 \
        vd2 stored = hold_##M##_d(m + k * WIDTH, fresh);                                            \
        store_##P##_d(p + k * WIDTH, theta);                                                        \
        add_product_##M(&mm.unit[k], stored, stored);                                               \
    }
#ifdef ACMO_PAIRS
#define ROW_BF16(P, M, p, m, g, mm) UNROLLED_PAIRS {                                                \
        vf_pair theta = load_pair_bf16(p + k * WIDTH), fresh;                                       \
        vf_pair g_k = load_pair_bf16(g + k * WIDTH), m_k = load_pair_bf16(m + k * WIDTH);           \
        fresh.a = advance_vf(g_k.a, m_k.a, &theta.a, c, plain);                                     \
        fresh.b = advance_vf(g_k.b, m_k.b, &theta.b, c, plain);                                     \
        vf_pair stored = store_pair_bf16(m + k * WIDTH, fresh);                                     \
        store_pair_bf16(p + k * WIDTH, theta);                                                      \
        add_squares(&mm.unit[k], stored);                                                           \
    }
#else
#define ROW_BF16 ROW_F
#endif

/* float arithmetic, unless the parameter or its m is double. */
DEFINE_UPDATE(f32, f32, float, ROW_F)
DEFINE_UPDATE(f32, f64, double, ROW_D)
DEFINE_UPDATE(f32, bf16, float, ROW_F)
DEFINE_UPDATE(f32, f16, float, ROW_F)
DEFINE_UPDATE(f64, f32, double, ROW_D)
DEFINE_UPDATE(f64, f64, double, ROW_D)
DEFINE_UPDATE(f64, bf16, double, ROW_D)
DEFINE_UPDATE(f64, f16, double, ROW_D)
DEFINE_UPDATE(bf16, f32, float, ROW_F)
DEFINE_UPDATE(bf16, f64, double, ROW_D)
DEFINE_UPDATE(bf16, bf16, float, ROW_BF16)
DEFINE_UPDATE(bf16, f16, float, ROW_F)
DEFINE_UPDATE(f16, f32, float, ROW_F)
DEFINE_UPDATE(f16, f64, double, ROW_D)
DEFINE_UPDATE(f16, bf16, float, ROW_F)
DEFINE_UPDATE(f16, f16, float, ROW_F)

#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
#define UPDATES(P) {update_##P##_f32, update_##P##_f64, update_##P##_bf16, update_##P##_f16}
const acmo_chunks GLUE(acmo_chunks_, ACMO_VARIANT) = {
    .isa = ACMO_ISA,
    .sums = {sums_f32, sums_f64, sums_bf16, sums_f16},
    .squares = {squares_chunks_f32, squares_chunks_f64, squares_chunks_bf16, squares_chunks_f16},
    .update = {UPDATES(f32), UPDATES(f64), UPDATES(bf16), UPDATES(f16)},
};
