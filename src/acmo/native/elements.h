/* Vectors of this translation unit's instruction set, and the four element types as vectors of float or double.
 *
 * GNU vector extensions (gcc and clang) instead of intrinsics: one text for SSE2, AVX2, AVX-512 and NEON; instead of the
 * auto-vectoriser: the lanes of a sum are explicit, so every instruction set adds in the same order, to the same bits. */
#ifndef ACMO_ELEMENTS_H
#define ACMO_ELEMENTS_H

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#ifndef ACMO_BYTES
#if defined(__AVX512F__)
#define ACMO_BYTES 64
#elif defined(__AVX2__)
#define ACMO_BYTES 32
#else
#define ACMO_BYTES 16
#endif
#endif

#define INLINE static inline __attribute__((always_inline))
#define VECTOR(bytes) __attribute__((vector_size(bytes)))

enum { WIDTH = ACMO_BYTES / 4 };                 /* elements in a vf, or in the two halves of a vd2 */
typedef float vf VECTOR(ACMO_BYTES);
typedef uint32_t vu VECTOR(ACMO_BYTES);
typedef double vd VECTOR(ACMO_BYTES);
typedef uint16_t vu16 VECTOR(ACMO_BYTES / 2);
typedef struct { vd lo, hi; } vd2;

/* What gcc 12 makes badly of the vector extensions, or cannot know: by hand on x86. narrow_16_bits takes values that fit. */
#if ACMO_BYTES == 64
INLINE vd2 widen(vf x) {
    __m256 low = _mm512_castps512_ps256((__m512)x), high = _mm512_extractf32x8_ps((__m512)x, 1);
    return (vd2){(vd)_mm512_cvtps_pd(low), (vd)_mm512_cvtps_pd(high)};
}
INLINE vf narrow(vd2 x) {
    __m512 low = _mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)x.lo));
    return (vf)_mm512_insertf32x8(low, _mm512_cvtpd_ps((__m512d)x.hi), 1);
}
INLINE vu widen_16_bits(vu16 h) { return (vu)_mm512_cvtepu16_epi32((__m256i)h); }
INLINE vu16 narrow_16_bits(vu x) { return (vu16)_mm512_cvtepi32_epi16((__m512i)x); }
INLINE vu choose(vu mask, vu yes, vu no) { return (yes & mask) | (no & ~mask); }
#elif ACMO_BYTES == 32
INLINE vd2 widen(vf x) {
    __m128 low = _mm256_castps256_ps128((__m256)x), high = _mm256_extractf128_ps((__m256)x, 1);
    return (vd2){(vd)_mm256_cvtps_pd(low), (vd)_mm256_cvtps_pd(high)};
}
INLINE vf narrow(vd2 x) {
    return (vf)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)x.hi), _mm256_cvtpd_ps((__m256d)x.lo));
}
INLINE vu widen_16_bits(vu16 h) { return (vu)_mm256_cvtepu16_epi32((__m128i)h); }
INLINE vu16 narrow_16_bits(vu x) {
    __m256i pairs = _mm256_packus_epi32((__m256i)x, (__m256i)x);
    return (vu16)_mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08));
}
INLINE vu choose(vu mask, vu yes, vu no) {
    return (vu)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)mask);
}
#else
INLINE vu widen_16_bits(vu16 h) { return __builtin_convertvector(h, vu); }
INLINE vu choose(vu mask, vu yes, vu no) { return (yes & mask) | (no & ~mask); }
#ifdef __SSE2__
INLINE vd2 widen(vf x) {
    return (vd2){(vd)_mm_cvtps_pd((__m128)x), (vd)_mm_cvtps_pd(_mm_movehl_ps((__m128)x, (__m128)x))};
}
INLINE vf narrow(vd2 x) { return (vf)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)x.lo), _mm_cvtpd_ps((__m128d)x.hi)); }
INLINE vu16 narrow_16_bits(vu x) {
    __m128i extended = _mm_srai_epi32(_mm_slli_epi32((__m128i)x, 16), 16);  /* there is no unsigned pack in SSE2 */
    typedef long long vi64 VECTOR(16);
    typedef long long vi64_half VECTOR(8);
    return (vu16)(vi64_half){((vi64)_mm_packs_epi32(extended, extended))[0]};
}
#else
typedef float vf_half VECTOR(ACMO_BYTES / 2);
typedef union { vf whole; vf_half half[2]; } vf_parts;
INLINE vd2 widen(vf x) {
    vf_parts u = {.whole = x};
    return (vd2){__builtin_convertvector(u.half[0], vd), __builtin_convertvector(u.half[1], vd)};
}
INLINE vf narrow(vd2 x) {
    vf_parts u = {.half = {__builtin_convertvector(x.lo, vf_half), __builtin_convertvector(x.hi, vf_half)}};
    return u.whole;
}
INLINE vu16 narrow_16_bits(vu x) { return __builtin_convertvector(x, vu16); }
#endif
#endif
INLINE vf magnitude(vf x) { return (vf)((vu)x & 0x7FFFFFFFu); }

/* Sums are in double. A product of two floats is exact there, so one fused multiply-add gives the bits of two instructions. */
INLINE vd add_double_product(vd sum, vd a, vd b) { return sum + a * b; }
INLINE vd add_float_product(vd sum, vd a, vd b) {
#if ACMO_BYTES == 64
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum);
#elif ACMO_BYTES == 32
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#else
    return add_double_product(sum, a, b);
#endif
}

/* Every store returns the value as stored, which is what a later load will see. memcpy: pointers are aligned to an
 * element at best (views with an offset), and this is how C says so. */
typedef float f32;
INLINE vf load_f32(const f32 *p) { vf x; memcpy(&x, p, sizeof x); return x; }
INLINE vf store_f32(f32 *p, vf x) { memcpy(p, &x, sizeof x); return x; }

INLINE vu load_16_bits(const uint16_t *p) { vu16 h; memcpy(&h, p, sizeof h); return widen_16_bits(h); }
INLINE void store_16_bits(uint16_t *p, vu x) { vu16 h = narrow_16_bits(x); memcpy(p, &h, sizeof h); }

typedef uint16_t bf16;
INLINE vu round_bf16(vf x) {                                   /* the result is in the upper halves; the lower are waste */
    vu w = (vu)x;
    return w + 0x7FFFu + ((w >> 16) & 1u);                     /* to nearest, ties to even; overflows to infinity */
}
INLINE vf load_bf16(const bf16 *p) { return (vf)(load_16_bits(p) << 16); }
INLINE vf store_bf16(bf16 *p, vf x) {
    /* That addition could carry a NaN whose lower half is not 0 into a number. */
    vu rounded = choose((vu)(x != x), (vu){0} + 0x7FC00000u, round_bf16(x));
    store_16_bits(p, rounded >> 16);
    return (vf)(rounded & 0xFFFF0000u);
}

/* Two vectors at once: x86 interleaves and packs within 128 bits, so of 16 entries AVX2 has 0-3, 8-11 in the first vector
 * and 4-7, 12-15 in the second. Half the instructions of two loads in order; add_squares knows which lanes these are.
 * Only for what was computed from bf16 alone: a NaN then has nothing in its lower half, and needs no care. */
#if defined(__SSE2__) && ACMO_BYTES <= 32
#define ACMO_PAIRS
typedef struct { vf a, b; } vf_pair;
INLINE vf_pair load_pair_bf16(const bf16 *p) {
    vf x;
    memcpy(&x, p, sizeof x);
#if ACMO_BYTES == 32
    __m256i zero = _mm256_setzero_si256();
    return (vf_pair){(vf)_mm256_unpacklo_epi16(zero, (__m256i)x), (vf)_mm256_unpackhi_epi16(zero, (__m256i)x)};
#else
    __m128i zero = _mm_setzero_si128();
    return (vf_pair){(vf)_mm_unpacklo_epi16(zero, (__m128i)x), (vf)_mm_unpackhi_epi16(zero, (__m128i)x)};
#endif
}
INLINE vf_pair store_pair_bf16(bf16 *p, vf_pair x) {
    vu a = round_bf16(x.a), b = round_bf16(x.b);
#if ACMO_BYTES == 32
    __m256i packed = _mm256_packus_epi32((__m256i)(a >> 16), (__m256i)(b >> 16));
#else
    __m128i packed = _mm_packs_epi32(_mm_srai_epi32((__m128i)a, 16), _mm_srai_epi32((__m128i)b, 16));
#endif
    memcpy(p, &packed, sizeof packed);
    return (vf_pair){(vf)(a & 0xFFFF0000u), (vf)(b & 0xFFFF0000u)};
}
#endif

typedef uint16_t f16;
#ifdef __F16C__
#if ACMO_BYTES == 64
INLINE vf f16_value(vu16 h) { return (vf)_mm512_cvtph_ps((__m256i)h); }
INLINE vu16 f16_bits(vf x) { return (vu16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT); }
#else
INLINE vf f16_value(vu16 h) { return (vf)_mm256_cvtph_ps((__m128i)h); }
INLINE vu16 f16_bits(vf x) { return (vu16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT); }
#endif
#else
/* By integer operations and exact float ones, after M. Dukhan's FP16 library, which torch uses as well; NaNs as the
 * instructions above make them. No intermediate is a subnormal float, so flushing those to zero
 * (torch.set_flush_denormal) does not harm halves. */
INLINE vf f16_value(vu16 h16) {
    vu h = widen_16_bits(h16), w2 = h << 17;                   /* exponent and mantissa, the sign shifted out */
    vf normal = (vf)((w2 >> 4) + (0xE0u << 23)) * 0x1p-112f;
    vf subnormal = (vf)((w2 >> 17) | (126u << 23)) - 0.5f;
    vu value = choose((vu)(w2 < (1u << 27)), (vu)subnormal, (vu)normal);
    return (vf)(((h & 0x8000u) << 16) | value);
}
INLINE vu16 f16_bits(vf x) {
    vu w = (vu)x, w2 = w << 1;
    vf base = (magnitude(x) * 0x1p+112f) * 0x1p-110f;          /* too large a value becomes infinite here */
    vu bias = w2 & 0xFF000000u;
    bias = choose((vu)(bias < 0x71000000u), (vu){0} + 0x71000000u, bias);
    vu bits = (vu)((vf)((bias >> 1) + 0x07800000u) + base);    /* this addition rounds to a half's precision */
    vu value = ((bits >> 13) & 0x7C00u) + (bits & 0x0FFFu);
    value = choose((vu)(w2 > 0xFF000000u), 0x7E00u | ((w >> 13) & 0x3FFu), value);
    return narrow_16_bits(((w >> 16) & 0x8000u) | value);
}
#endif
INLINE vf load_f16(const f16 *p) { vu16 h; memcpy(&h, p, sizeof h); return f16_value(h); }
INLINE vf store_f16(f16 *p, vf x) { vu16 h = f16_bits(x); memcpy(p, &h, sizeof h); return f16_value(h); }
/* A moment saturates in the short range of a half: an infinite one would be NaN after the next step. A NaN stays one. */
INLINE vf saturated(vf x) {
    vu largest = ((vu)x & 0x80000000u) | 0x477FE000u;          /* 65504 */
    return (vf)choose((vu)(magnitude(x) > 65504.0f), largest, (vu)x);
}
INLINE vf hold_f16(f16 *p, vf x) { return store_f16(p, saturated(x)); }
#define hold_f32 store_f32
#define hold_bf16 store_bf16

/* The same as doubles. A double goes to a 16-bit type by way of float, as in torch. */
typedef double f64;
INLINE vd2 load_f64_d(const f64 *p) {
    vd2 x;
    memcpy(&x.lo, p, sizeof x.lo), memcpy(&x.hi, p + WIDTH / 2, sizeof x.hi);
    return x;
}
INLINE vd2 store_f64_d(f64 *p, vd2 x) {
    memcpy(p, &x.lo, sizeof x.lo), memcpy(p + WIDTH / 2, &x.hi, sizeof x.hi);
    return x;
}
#define STORE_AS_DOUBLES(T) INLINE vd2 store_##T##_d(T *p, vd2 x) { return widen(store_##T(p, narrow(x))); }
STORE_AS_DOUBLES(f32)
STORE_AS_DOUBLES(bf16)
STORE_AS_DOUBLES(f16)
INLINE vd2 hold_f16_d(f16 *p, vd2 x) { return widen(hold_f16(p, narrow(x))); }
#define hold_f64_d store_f64_d
#define hold_f32_d store_f32_d
#define hold_bf16_d store_bf16_d
#if ACMO_BYTES == 32
/* From memory, or from 128 bits: up to twice as fast on Zen 3 as from the halves of a register. */
INLINE vd2 widen_two(__m128 lo, __m128 hi) { return (vd2){(vd)_mm256_cvtps_pd(lo), (vd)_mm256_cvtps_pd(hi)}; }
INLINE __m128i load_four(const uint16_t *p) { return _mm_loadl_epi64((const __m128i *)p); }
INLINE vd2 load_f32_d(const f32 *p) { return widen_two(_mm_loadu_ps(p), _mm_loadu_ps(p + 4)); }
INLINE vd2 load_f16_d(const f16 *p) { return widen_two(_mm_cvtph_ps(load_four(p)), _mm_cvtph_ps(load_four(p + 4))); }
INLINE vd2 load_bf16_d(const bf16 *p) {
    __m128i x = _mm_loadu_si128((const __m128i *)p), zero = _mm_setzero_si128();
    return widen_two((__m128)_mm_unpacklo_epi16(zero, x), (__m128)_mm_unpackhi_epi16(zero, x));
}
#else
#define LOAD_AS_DOUBLES(T) INLINE vd2 load_##T##_d(const T *p) { return widen(load_##T(p)); }
LOAD_AS_DOUBLES(f32)
LOAD_AS_DOUBLES(bf16)
LOAD_AS_DOUBLES(f16)
#endif

/* The first `count` entries of a vector, at the end of a row: others are read as 0 and not written. Any count is allowed. */
typedef uint64_t vu64 VECTOR(ACMO_BYTES);
#if ACMO_BYTES == 64
INLINE uint32_t first_bits(int64_t count) { return count <= 0 ? 0 : count >= 16 ? 0xFFFFu : (1u << count) - 1u; }
INLINE vf load_first_float(const float *p, int64_t count) {
    return (vf)_mm512_maskz_loadu_ps((__mmask16)first_bits(count), p);
}
INLINE void store_first_float(float *p, vf x, int64_t count) {
    _mm512_mask_storeu_ps(p, (__mmask16)first_bits(count), (__m512)x);
}
INLINE vd load_first_double(const double *p, int64_t count) {
    return (vd)_mm512_maskz_loadu_pd((__mmask8)first_bits(count), p);
}
INLINE void store_first_double(double *p, vd x, int64_t count) {
    _mm512_mask_storeu_pd(p, (__mmask8)first_bits(count), (__m512d)x);
}
#elif ACMO_BYTES == 32
INLINE __m256i first_of_eight(int64_t count) {
    int limit = count < 0 ? 0 : count > 8 ? 8 : (int)count;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(limit), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE __m256i first_of_four(int64_t count) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
}
INLINE vf load_first_float(const float *p, int64_t count) { return (vf)_mm256_maskload_ps(p, first_of_eight(count)); }
INLINE void store_first_float(float *p, vf x, int64_t count) {
    _mm256_maskstore_ps(p, first_of_eight(count), (__m256)x);
}
INLINE vd load_first_double(const double *p, int64_t count) { return (vd)_mm256_maskload_pd(p, first_of_four(count)); }
INLINE void store_first_double(double *p, vd x, int64_t count) {
    _mm256_maskstore_pd(p, first_of_four(count), (__m256d)x);
}
#else
#define DEFINE_FIRST(V, S)                                                                          \
    INLINE V load_first_##S(const S *p, int64_t count) {                                            \
        S x[sizeof(V) / sizeof(S)] = {0};                                                           \
        V v;                                                                                        \
        for (int64_t i = 0; i < (int64_t)(sizeof(V) / sizeof(S)) && i < count; i++) x[i] = p[i];    \
        memcpy(&v, x, sizeof v);                                                                    \
        return v;                                                                                   \
    }                                                                                               \
    INLINE void store_first_##S(S *p, V v, int64_t count) {                                         \
        S x[sizeof(V) / sizeof(S)];                                                                 \
        memcpy(x, &v, sizeof v);                                                                    \
        for (int64_t i = 0; i < (int64_t)(sizeof(V) / sizeof(S)) && i < count; i++) p[i] = x[i];    \
    }
DEFINE_FIRST(vf, float)
DEFINE_FIRST(vd, double)
#endif

#endif
