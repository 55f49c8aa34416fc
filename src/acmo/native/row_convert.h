/* Conversions between the element types and the float or double that row_core.h computes in; included by row_loops.c. */

/* BODY converts the WIDTH entries at from and to; the rest goes through it in padded copies. */
#define CONVERSION(name, A, B, BODY)                                                                \
    static void name(const void *from_, void *to_, int64_t n) {                                     \
        const A *from = from_;                                                                      \
        B *to = to_;                                                                                \
        int64_t i = 0;                                                                              \
        for (; i + WIDTH <= n; i += WIDTH, from += WIDTH, to += WIDTH) BODY;                        \
        if (i < n) {                                                                                \
            A from_rest[WIDTH] = {0};                                                               \
            B to_rest[WIDTH], *end = to;                                                            \
            size_t rest = (size_t)(n - i);                                                          \
            memcpy(from_rest, from, rest * sizeof(A));                                              \
            from = from_rest, to = to_rest;                                                         \
            BODY;                                                                                   \
            memcpy(end, to_rest, rest * sizeof(B));                                                 \
        }                                                                                           \
    }
#define FLOAT_CONVERSIONS(T)                                                                        \
    CONVERSION(float_from_##T, T, float, store_f32(to, load_##T(from)))                             \
    CONVERSION(float_to_##T, float, T, store_##T(to, load_f32(from)))
#define DOUBLE_CONVERSIONS(T)                                                                       \
    CONVERSION(double_from_##T, T, double, store_f64_d(to, load_##T##_d(from)))                     \
    CONVERSION(double_to_##T, double, T, store_##T##_d(to, load_f64_d(from)))
FLOAT_CONVERSIONS(f32)
FLOAT_CONVERSIONS(bf16)
FLOAT_CONVERSIONS(f16)
DOUBLE_CONVERSIONS(f32)
DOUBLE_CONVERSIONS(f64)
DOUBLE_CONVERSIONS(bf16)
DOUBLE_CONVERSIONS(f16)
/* A moment in float16 saturates, a parameter does not. */
CONVERSION(float_hold_f16, float, f16, hold_f16(to, load_f32(from)))
CONVERSION(double_hold_f16, double, f16, hold_f16_d(to, load_f64_d(from)))
#define float_from_f64 NULL /* the arithmetic is double there */
#define float_to_f64 NULL

/* Stochastic rounding of a float x to bfloat16. With all integers modulo 2^32, entry `index` of a tensor has the bits
 *     h = index ^ seed;  h ^= h >> 16;  h *= 0x7FEB352D;  h ^= h >> 15;  h *= 0x846CA68B;  r = h >> 16
 * (C. Wellons' lowbias32 without its last shift), and the result is the upper half of (bits of x) + r: the lower half of x,
 * 16 bits, is the probability of the number farther from 0. What bfloat16 has exactly stays as it is; a NaN stays one.
 * acmo.rounding.rounding_bits has the same r on tensors. */
INLINE vu random_16_bits(vu index, uint32_t seed) {
    vu h = index ^ seed;
    h ^= h >> 16, h *= 0x7FEB352Du, h ^= h >> 15, h *= 0x846CA68Bu;
    return h >> 16;
}
INLINE void store_bf16_randomly(bf16 *p, vf x, vu random) {
    vu rounded = choose((vu)(x != x), (vu){0} + 0x7FC00000u, (vu)x + random);
    store_16_bits(p, rounded >> 16);
}
INLINE vu indices_from(int64_t index) {
    uint32_t x[WIDTH];
    vu v;
    for (int k = 0; k < WIDTH; k++) x[k] = (uint32_t)index + (uint32_t)k;
    memcpy(&v, x, sizeof v);
    return v;
}
#define RANDOM_CONVERSION(S, LOAD)                                                                  \
    static void S##_to_bf16_randomly(const void *from_, void *to_, int64_t n, uint32_t seed, int64_t index) { \
        const S *from = from_;                                                                      \
        bf16 *to = to_;                                                                             \
        vu at = indices_from(index);                                                                \
        int64_t i = 0;                                                                              \
        for (; i + WIDTH <= n; i += WIDTH, at += WIDTH)                                             \
            store_bf16_randomly(to + i, LOAD(from + i), random_16_bits(at, seed));                  \
        if (i < n) {                                                                                \
            S from_rest[WIDTH] = {0};                                                               \
            bf16 to_rest[WIDTH];                                                                    \
            memcpy(from_rest, from + i, (size_t)(n - i) * sizeof *from);                            \
            store_bf16_randomly(to_rest, LOAD(from_rest), random_16_bits(at, seed));                \
            memcpy(to + i, to_rest, (size_t)(n - i) * sizeof *to);                                  \
        }                                                                                           \
    }
#define LOAD_AS_FLOATS(p) narrow(load_f64_d(p))
RANDOM_CONVERSION(float, load_f32)
RANDOM_CONVERSION(double, LOAD_AS_FLOATS)

/* int8 moments: m = q · scale. Back: q = m · (1 / scale) to nearest, ties to even, by adding 1.5 · 2^23, which leaves the integer
 * in the lowest bits; the product is at most 127 and a rounding error. A subnormal scale is coarser than that: then q is
 * divided, and limited to 127, one by one. A scale of 0, or one that is not finite, gives q = 0. */
enum { BYTES_AHEAD = 4096 }; /* two groups: what lies between two rows of bytes is too much for the hardware to see a stream */
typedef int8_t vi8 VECTOR(ACMO_BYTES / 4);
typedef uint8_t vu8 VECTOR(ACMO_BYTES / 4);
typedef int32_t vi VECTOR(ACMO_BYTES);
INLINE vf load_bytes(const int8_t *p) {
    vi8 q;
    memcpy(&q, p, sizeof q);
#if ACMO_BYTES == 64
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)q));
#elif ACMO_BYTES == 32
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)&q)));
#else
    return __builtin_convertvector(__builtin_convertvector(q, vi), vf);
#endif
}
INLINE void store_bytes(int8_t *p, vf x) {
    vu bits = (vu)(x + 12582912.0f) & 0xFFu;
#if ACMO_BYTES == 64
    __m128i bytes = _mm512_cvtepi32_epi8((__m512i)bits);
#elif ACMO_BYTES == 32 /* gcc 12 takes the vectors apart: twice the time of a whole step */
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)bits), _mm256_extracti128_si256((__m256i)bits, 1));
    uint64_t bytes = (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(halves, halves));
#else
    vu8 bytes = __builtin_convertvector(bits, vu8);
#endif
    memcpy(p, &bytes, sizeof bytes);
}
INLINE int8_t coarse_byte(double x) { return (int8_t)(x > 127 ? 127 : x < -127 ? -127 : rint(x)); }
#define INT8_CONVERSIONS(S, LOAD, STORE, MULTIPLY)                                                  \
    static void S##_from_int8(const int8_t *from, float scale, void *to_, int64_t n) {              \
        S *to = to_;                                                                                \
        int64_t i = 0;                                                                              \
        for (; i + WIDTH <= n; i += WIDTH) {                                                        \
            if (i % 64 == 0) __builtin_prefetch(from + i + BYTES_AHEAD, 1, 2);                      \
            STORE(to + i, load_bytes(from + i) * scale);                                            \
        }                                                                                           \
        for (; i < n; i++) to[i] = (float)from[i] * scale;                                          \
    }                                                                                               \
    static void S##_to_int8(const void *from_, float scale, int8_t *to, int64_t n) {                \
        const S *from = from_;                                                                      \
        int64_t i = 0;                                                                              \
        const S inverse = 1 / (S)scale;                                                             \
        if (!(scale >= FLT_MIN && scale <= FLT_MAX)) {                                              \
            int some = scale > 0 && scale < 1;                                                      \
            for (; i < n; i++) to[i] = some ? coarse_byte((double)from[i] / (double)scale) : 0;     \
            return;                                                                                 \
        }                                                                                           \
        for (; i + WIDTH <= n; i += WIDTH) store_bytes(to + i, MULTIPLY(LOAD(from + i), inverse));  \
        if (i < n) {                                                                                \
            S from_rest[WIDTH] = {0};                                                               \
            int8_t to_rest[WIDTH];                                                                  \
            memcpy(from_rest, from + i, (size_t)(n - i) * sizeof *from);                            \
            store_bytes(to_rest, MULTIPLY(LOAD(from_rest), inverse));                               \
            memcpy(to + i, to_rest, (size_t)(n - i));                                               \
        }                                                                                           \
    }
#define MULTIPLY_FLOATS(x, y) ((x) * (y))
#define STORE_AS_DOUBLES_OF(p, x) store_f64_d(p, widen(x))
INLINE vf multiply_doubles(vd2 x, double y) { return narrow((vd2){x.lo * y, x.hi * y}); }
INT8_CONVERSIONS(float, load_f32, store_f32, MULTIPLY_FLOATS)
INT8_CONVERSIONS(double, load_f64_d, STORE_AS_DOUBLES_OF, multiply_doubles)
