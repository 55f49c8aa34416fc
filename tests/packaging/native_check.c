/* The kernel against naive loops in double, without Python, for AddressSanitizer, UBSan and valgrind:
 *   cmake -S . -B build-asan -DACMO_SANITIZE=ON && cmake --build build-asan && build-asan/native_check
 *   cmake -S . -B build-check -DACMO_CHECK=ON && cmake --build build-check && valgrind -q --error-exitcode=1 build-check/native_check
 * Every buffer is one malloc of exactly its size, so that one element too far is an error; with an offset, elements are
 * aligned to themselves only. Returns 0 if all is well. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int acmo_abi(void);
const char *acmo_isa(void);
int acmo_set_isa(const char *name);
void acmo_set_merge_width(int64_t entries);
void acmo_sums(int64_t n, const int64_t *numel, const int64_t *dtype, void *const *x, void *const *y, double *xx,
               double *xy, double *yy, int64_t threads);
void acmo_update(int64_t n, const int64_t *numel, const int64_t *pdtype, const int64_t *mdtype, void *const *p,
                 void *const *m, void *const *g, const double *coef, double *mm, int64_t threads);
int64_t acmo_rows(const int64_t *addresses, const int64_t *layout, const double *numbers, double *table, int64_t threads);

enum { F32, F64, BF16, F16, DTYPES, INT8 = DTYPES, CHUNK = 8192 };
static const char *NAMES[] = {"float32", "float64", "bfloat16", "float16", "int8"};
static const size_t SIZE[] = {4, 8, 2, 2, 1};
static const double EPS[] = {0x1p-23, 0x1p-52, 0x1p-7, 0x1p-10};
static const int64_t NUMEL[] = {0,         1,     2,         3,         7,         15,            16,       17, 31, 33,
                                CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK, 4 * CHUNK + 1, 9 * CHUNK + 5};
enum { N = sizeof NUMEL / sizeof *NUMEL };
static int failures = 0;

static double get(const void *base, int dtype, int64_t i) {
    if (dtype == F64) return ((const double *)base)[i];
    if (dtype == INT8) return ((const int8_t *)base)[i];
    if (dtype == F32) return ((const float *)base)[i];
    uint16_t h = ((const uint16_t *)base)[i];
    if (dtype == F16) {
        int e = h >> 10 & 31, f = h & 1023;
        double v = e == 31 ? (f ? NAN : INFINITY) : e ? ldexp(1024 + f, e - 25) : ldexp(f, -24);
        return h & 0x8000 ? -v : v;
    }
    uint32_t w = (uint32_t)h << 16;
    float v;
    memcpy(&v, &w, sizeof v);
    return v;
}

/* A random value in [-1, 1] that every dtype has exactly. */
static void put_random(void *base, int dtype, int64_t i) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    float v = (float)((int)(state >> 24) - 128) / 128;
    uint32_t w;
    memcpy(&w, &v, sizeof w);
    if (dtype == F64) ((double *)base)[i] = v;
    if (dtype == INT8) ((int8_t *)base)[i] = (int8_t)(state >> 24 == 0 ? 0 : (int)(state >> 24) - 128);
    if (dtype == F32) ((float *)base)[i] = v;
    if (dtype == BF16) ((uint16_t *)base)[i] = (uint16_t)(w >> 16);
    if (dtype == F16) /* the same bits in other places, for the exponents that occur here */
        ((uint16_t *)base)[i] = v == 0 ? 0 : (uint16_t)((w >> 16 & 0x8000) | ((w >> 13 & 0x3FFFF) - (112u << 10)));
}

typedef struct { void *block, *data; } buffer;

static buffer make(int dtype, int64_t numel, int offset) {
    buffer b;
    b.block = malloc((size_t)(numel + offset) * SIZE[dtype]);
    b.data = (char *)b.block + (size_t)offset * SIZE[dtype];
    for (int64_t i = 0; i < numel; i++) put_random(b.data, dtype, i);
    return b;
}

static void expect(int ok, const char *what, int pd, int md, int64_t numel) {
    if (ok) return;
    if (failures++ < 20) fprintf(stderr, "%s: %s, p %s, m %s, %lld\n", acmo_isa(), what, NAMES[pd], NAMES[md], (long long)numel);
}

static void check(int pd, int md, int offset, int64_t threads, const double c[5]) {
    buffer p[N], m[N], g[N];
    void *pp[N], *mp[N], *gp[N], *before_p[N], *before_m[N];
    int64_t pds[N], mds[N];
    double coef[5 * N], xx[N], xy[N], yy[N], alone[N], mm[N], again[N];
    for (int i = 0; i < N; i++) {
        size_t pn = (size_t)NUMEL[i] * SIZE[pd], mn = (size_t)NUMEL[i] * SIZE[md];
        p[i] = make(pd, NUMEL[i], offset), m[i] = make(md, NUMEL[i], offset), g[i] = make(pd, NUMEL[i], offset);
        pp[i] = p[i].data, mp[i] = m[i].data, gp[i] = g[i].data, pds[i] = pd, mds[i] = md;
        before_p[i] = malloc(pn + 1), before_m[i] = malloc(mn + 1);
        if (pn) memcpy(before_p[i], pp[i], pn), memcpy(before_m[i], mp[i], mn);
        for (int k = 0; k < 5; k++) coef[k * N + i] = c[k];
    }
    acmo_sums(N, NUMEL, pds, gp, pp, xx, xy, yy, threads);
    acmo_sums(N, NUMEL, pds, gp, NULL, alone, NULL, NULL, threads);
    acmo_update(N, NUMEL, pds, mds, pp, mp, gp, coef, mm, threads);
    acmo_sums(N, NUMEL, mds, mp, NULL, again, NULL, NULL, 1);
    for (int i = 0; i < N; i++) {
        double gg = 0, gt = 0, tt = 0, stored = 0;
        int close = 1;
        for (int64_t k = 0; k < NUMEL[i]; k++) {
            double a = get(gp[i], pd, k), t = get(before_p[i], pd, k), b = get(before_m[i], md, k);
            double fresh = c[0] * a + c[1] * t + c[2] * b, theta = c[3] * t - c[4] * fresh;
            double new_m = get(mp[i], md, k), new_p = get(pp[i], pd, k);
            double arithmetic = 4 * (pd == F64 || md == F64 ? 0x1p-52 : 0x1p-23);
            close &= fabs(new_m - fresh) <= fabs(fresh) * EPS[md] / 2 * 1.01 + arithmetic + (md == F16) * 0x1p-25;
            close &= fabs(new_p - theta) <= fabs(theta) * EPS[pd] / 2 * 1.01 + arithmetic + (pd == F16) * 0x1p-25;
            gg += a * a, gt += a * t, tt += t * t, stored += new_m * new_m;
        }
        expect(close, "m or theta", pd, md, NUMEL[i]);
        expect(fabs(xx[i] - gg) <= 1e-12 * gg && alone[i] == xx[i], "sum of squares", pd, md, NUMEL[i]);
        expect(fabs(yy[i] - tt) <= 1e-12 * tt && fabs(xy[i] - gt) <= 1e-12 * (gg + tt), "products", pd, md, NUMEL[i]);
        expect(fabs(mm[i] - stored) <= 1e-12 * stored && mm[i] == again[i], "sum of m", pd, md, NUMEL[i]);
        free(p[i].block), free(m[i].block), free(g[i].block), free(before_p[i]), free(before_m[i]);
    }
}

/* One matrix by row, by column and whole. What is expected is written as plainly as possible. */
enum { ROW, COLUMN, WHOLE };
static const int64_t SHAPES[][2] = {{0, 3}, {3, 0}, {1, 1}, {3, 1}, {1, 7}, {5, 4}, {130, 3}, {9, 27}, {3, 2049}, {40, 300},
                                    {70, 1000}, {1, 70001}, {2, 65537}, {3, 5000}, {20000, 5}};

static int64_t norm_of(int scope, int64_t i, int64_t cols) { return scope == ROW ? i / cols : scope == COLUMN ? i % cols : 0; }

static void check_rows(const int64_t shape[2], int scope, int pd, int md, int offset, int64_t threads, const double c[5]) {
    int64_t rows = shape[0], cols = shape[1], numel = rows * cols;
    int64_t norms = !numel ? 0 : scope == ROW ? rows : scope == COLUMN ? cols : 1;
    double root_n = norms ? sqrt((double)(numel / norms)) : 1, beta = 0.9, table[11];
    buffer p = make(pd, numel, offset), m = make(md, numel, offset), g = make(pd, numel, offset);
    float *scales = malloc((size_t)(rows + 1) * sizeof *scales);
    double *theta = malloc((size_t)(numel + 1) * sizeof *theta), *moment = malloc((size_t)(numel + 1) * sizeof *moment);
    double *sums = calloc((size_t)(4 * norms + 1), sizeof *sums);
    for (int64_t i = 0; i < rows; i++) scales[i] = 0x1p-7f * (float)(1 + i % 3);
    for (int64_t i = 0; i < numel; i++) {
        theta[i] = get(p.data, pd, i), moment[i] = get(m.data, md, i) * (md == INT8 ? (double)scales[i / cols] : 1);
        double raw = get(g.data, pd, i), fresh = c[0] * raw + c[1] * theta[i], *sum = sums + 4 * norm_of(scope, i, cols);
        sum[0] += fresh * fresh, sum[1] += fresh * moment[i], sum[2] += moment[i] * moment[i], sum[3] += raw * raw;
    }
    int64_t addresses[] = {(int64_t)(intptr_t)p.data, (int64_t)(intptr_t)m.data, 0, (int64_t)(intptr_t)g.data,
                           (int64_t)(intptr_t)scales};
    int64_t layout[] = {1, rows, cols, scope, pd, md, norms ? numel / norms : 1, 1, 0, 0, 0};
    double numbers[] = {c[0], c[1], beta, 0, c[4], c[3]};
    expect(acmo_rows(addresses, layout, numbers, table, threads) == 0, "memory", pd, md, numel);
    int close = 1;
    for (int64_t i = 0; i < numel; i++) {
        const double *sum = sums + 4 * norm_of(scope, i, cols);
        double b = sum[2] == 0 ? 0 : beta * sqrt(sum[0] / sum[2]), new_sq = sum[0] + 2 * b * sum[1] + b * b * sum[2];
        double fresh = c[0] * get(g.data, pd, i) + c[1] * theta[i] + b * moment[i];
        int idle = sum[3] == 0; /* a gradient of zeros takes no part */
        double after = c[3] * theta[i] - (idle ? 0 : c[4] * root_n * fresh / sqrt(new_sq));
        double new_p = get(p.data, pd, i), new_m = get(m.data, md, i) * (md == INT8 ? (double)scales[i / cols] : 1);
        double rounding = md == INT8 ? 0.51 * (double)scales[i / cols] : fabs(fresh) * EPS[md] + 1e-5 * sqrt(new_sq);
        if (idle) fresh = moment[i];
        close &= fabs(new_m - fresh) <= rounding + 1e-6 + (md == F16) * 0x1p-24;
        close &= fabs(new_p - after) <= fabs(after) * EPS[pd] + 1e-4 * c[4] * root_n + 1e-6 + (pd == F16) * 0x1p-24;
    }
    expect(close, scope == ROW ? "rows" : scope == COLUMN ? "columns" : "whole", pd, md, numel);
    expect(table[5] == (double)norms, "number of rows", pd, md, numel);
    free(p.block), free(m.block), free(g.block), free(scales), free(theta), free(moment), free(sums);
}

int main(void) {
    static const double COEFS[2][5] = {{0.7, 0.01, 0.83, 0.995, 0.05}, {1, 0, 0.83, 1, 0.05}};
    /* With λ = 0.01 the gradient 1/128 and θ = −70/128 would cancel to a rounding error, whose unit step is arbitrary. */
    static const double ROW_COEFS[2][5] = {{0.7, 0.011, 0, 0.995, 0.05}, {1, 0, 0, 1, 0.05}};
    static const int64_t THREADS[] = {1, 2, 5};
    const char *isas[] = {"x86-64", "x86-64-v3", "x86-64-v4", acmo_isa()};
    int checks = 0;
    for (int a = 0; a < 4; a++) {
        if (!acmo_set_isa(isas[a]) || (a == 3 && !strncmp(isas[3], "x86-64", 6))) continue;
        for (int pd = 0; pd < DTYPES; pd++)
            for (int md = 0; md < DTYPES; md++)
                for (int offset = 0; offset < 4; offset++)
                    for (int t = 0; t < 3; t++)
                        for (int c = 0; c < 2; c++, checks++) check(pd, md, offset, THREADS[t], COEFS[c]);
        for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)
            for (int scope = ROW; scope <= WHOLE; scope++)
                for (int pd = 0; pd < DTYPES; pd++)
                    for (int md = 0; md <= INT8; md++)
                        for (int offset = 0; offset < 4; offset++, checks++) {
                            acmo_set_merge_width(offset < 2 ? 0 : INT64_MAX);
                            check_rows(SHAPES[s], scope, pd, md, offset % 2, THREADS[(pd + md) % 3],
                                       ROW_COEFS[(pd + md + offset) % 2]);
                        }
        printf("%s: done\n", acmo_isa());
    }
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0 || checks == 0;
}
