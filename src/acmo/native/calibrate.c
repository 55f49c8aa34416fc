/* The scalars between the two passes, as acmo/calibration.py has them on tensors: lines 2, 4 and 5, t, and whether the
 * step is taken. In C because a small net's whole step lasts no longer than a dozen operations on tensors. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum { GLOBAL, GROUP, TENSOR };                                   /* scopes */
enum { N, IDLE, GROUPS, SCOPE, SQRT, PROPAGATE };                 /* of size */
enum { LR, MOMENTUM, DELTA, COUPLED, KEEP, SIGN, HYPERS };        /* of hyper, a row a group */
enum { S_GG, S_GT, S_TT, S_MM };                                  /* rows of sums */
enum { C_S, C_LAMBDA, C_BETA_HAT, C_KEEP, C_ALPHA };              /* rows of coef */
enum { R_RAW, R_G, R_M, R_NEW, R_BETA_HAT };                      /* rows of the record */

EXPORT void acmo_gather(int64_t n, double *const *from, double *to) {
    for (int64_t i = 0; i < n; i++) to[i] = *from[i];
}

EXPORT void acmo_scatter(int64_t n, const double *from, double *const *to) {
    for (int64_t i = 0; i < n; i++) *to[i] = from[i];
}

/* sums: [4][n] of the gradients as they lie there, before line 1's sign and a scaler's scale. step and beta_hat: [n + idle]
 * pointers into the state; the idle ones (no gradient in this step) are read only. limits: max_grad_norm (inf for none), and
 * whether a scaler found an overflow. Returns 1 if the step is to be taken (coef, t and the kept β̂ are written then), 0 if
 * not, −1 without memory. The record's rows are written in any case, but for R_NEW. */
EXPORT int64_t acmo_calibrate(const int64_t *size, const double *limits, const int64_t *group, const double *hyper,
                              const double *sums, float *const *step, double *const *beta_hat, double *coef,
                              double *record, double *clip_scale) {
    const int64_t n = size[N], all = n + size[IDLE], groups = size[GROUPS];
    const int64_t scopes = size[SCOPE] == GLOBAL ? 1 : size[SCOPE] == GROUP ? groups : all;
    double *scratch = calloc((size_t)(3 * scopes + 2 * groups), sizeof(double));
    if (!scratch) return -1;
    double *g_sq = scratch, *m_sq = g_sq + scopes, *newest = m_sq + scopes;
    double *group_newest = newest + scopes, *group_prev = group_newest + groups;
#define SCOPE_OF(i) (size[SCOPE] == GLOBAL ? 0 : size[SCOPE] == GROUP ? group[i] : (i))

    double total = 0, g_total = 0;
    int first = 1, idle_lr = 1;
    for (int64_t i = 0; i < n; i++) {
        double sign = hyper[group[i] * HYPERS + SIGN];
        record[R_RAW * n + i] = sign * sign * sums[S_GG * n + i];
        total += record[R_RAW * n + i];
    }
    /* 2 */
    double c = isinf(limits[0]) ? 1 : limits[0] / (sqrt(total) + 1e-6);
    if (c > 1) c = 1; /* not fmin, which loses a NaN */
    *clip_scale = c;

    for (int64_t i = 0; i < n; i++) {
        const double *h = hyper + group[i] * HYPERS;
        double s = c * h[SIGN], lambda = h[COUPLED], square = s * s * sums[S_GG * n + i];
        if (lambda != 0) {
            square += 2 * s * lambda * sums[S_GT * n + i] + lambda * lambda * sums[S_TT * n + i];
            if (square < 0) square = 0;
        }
        record[R_G * n + i] = square;
        record[R_M * n + i] = sums[S_MM * n + i];
        record[R_BETA_HAT * n + i] = 0;
        g_sq[SCOPE_OF(i)] += square;
        m_sq[SCOPE_OF(i)] += sums[S_MM * n + i];
        g_total += square;
    }
    for (int64_t i = 0; i < all; i++) {
        double t = *step[i];
        newest[SCOPE_OF(i)] = fmax(newest[SCOPE_OF(i)], t);
        double *group_t = group_newest + group[i], *prev = group_prev + group[i];
        if (size[SQRT] && (t > *group_t || (t == *group_t && *beta_hat[i] > *prev))) *group_t = t, *prev = *beta_hat[i];
    }
    for (int64_t i = 0; i < n; i++) first = first && newest[SCOPE_OF(i)] == 0;
    for (int64_t k = 0; k < groups; k++) idle_lr = idle_lr && hyper[k * HYPERS + LR] == 0;

    int64_t go = limits[1] == 0 && (size[PROPAGATE] || (isfinite(total) && isfinite(g_total)));
    /* A first step with lr 0 and gradients 0 is how torch.distributed.checkpoint makes state: m and t must stay 0. */
    if (idle_lr && total == 0 && first) go = 0;

    for (int64_t i = 0; go && i < n; i++) {
        const double *h = hyper + group[i] * HYPERS;
        double norm_g = sqrt(g_sq[SCOPE_OF(i)]), norm_m = sqrt(m_sq[SCOPE_OF(i)]), t = newest[SCOPE_OF(i)] + 1;
        double line_4 = h[MOMENTUM] * norm_g / (norm_m + h[DELTA]), b = line_4; /* 4 */
        if (size[SQRT]) {                                                       /* 5 */
            double prev = size[SCOPE] == TENSOR ? *beta_hat[i] : group_prev[group[i]];
            double bound = sqrt(t / (t - 1)) * prev;
            b = isnan(line_4) || line_4 <= bound ? line_4 : bound;
            *beta_hat[i] = norm_g == 0 ? prev : norm_m == 0 ? line_4 : b;
        }
        if (norm_m == 0) b = 0;
        *step[i] = (float)t;
        record[R_BETA_HAT * n + i] = b;
        coef[C_S * n + i] = c * h[SIGN];
        coef[C_LAMBDA * n + i] = h[COUPLED];
        coef[C_BETA_HAT * n + i] = b;
        coef[C_KEEP * n + i] = h[KEEP];
        coef[C_ALPHA * n + i] = h[LR];
    }
    free(scratch);
    return go;
}
