/* A whole step: both passes, and between them the scalars as acmo/backends/scalars.py has them on tensors (lines 2, 4 and 5, t,
 * and whether the step is taken). In C because a small net's step lasts no longer than a dozen operations on tensors. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "kernel.h"

enum { GLOBAL, GROUP, TENSOR }; /* scopes */

/* The arguments: a head of integers; then n each of NUMEL … G, and n + idle each of GROUPS_OF, STEP, BETA_HAT (the last
 * only for Ψ = sqrt). The idle ones have no gradient in this step: their t and β̂ are read and nothing more. */
enum { N, IDLE, GROUPS, SCOPE, SQRT, PROPAGATE, COUPLES, THREADS, HEAD };
enum { NUMEL, P_DTYPE, M_DTYPE, P, M, G, COLUMNS };
enum { LR, MOMENTUM, DELTA, COUPLED, KEEP, SIGN, HYPERS };                           /* a group's numbers */
enum { RAW, G_SQ, M_SQ, NEW, BETA, GG, GT, TT, MM, C_S, C_LAMBDA, C_BETA, C_KEEP, C_ALPHA }; /* rows of n doubles */

typedef struct {
    int64_t n, all, groups, scope, sqrt, propagate, couples, threads;
    const int64_t *column[COLUMNS], *group;
    float *const *step;
    double *const *beta_hat;
    const double *hyper;
    double *moment_sq; /* ‖m‖² of each tensor: read, then written */
    double *row[C_ALPHA + 1], max_grad_norm, *clip_scale;
    int found_inf;
} work;

static work unpack(const int64_t *a, double *numbers, double *rows) {
    work w = {.n = a[N], .all = a[N] + a[IDLE], .groups = a[GROUPS], .scope = a[SCOPE], .sqrt = a[SQRT],
              .propagate = a[PROPAGATE], .couples = a[COUPLES], .threads = a[THREADS]};
    for (int k = 0; k < COLUMNS; k++) w.column[k] = a + HEAD + k * w.n;
    w.group = a + HEAD + COLUMNS * w.n;
    w.step = (float *const *)(w.group + w.all);
    w.beta_hat = (double *const *)(w.group + 2 * w.all);
    for (int k = 0; k <= C_ALPHA; k++) w.row[k] = rows + k * w.n;
    w.clip_scale = numbers;
    w.max_grad_norm = numbers[1];
    w.found_inf = numbers[2] != 0;
    w.hyper = numbers + 3;
    w.moment_sq = numbers + 3 + w.groups * HYPERS;
    return w;
}

static const double *hyper_of(const work *w, int64_t i) { return w->hyper + w->group[i] * HYPERS; }
static int64_t scope_of(const work *w, int64_t i) {
    return w->scope == GLOBAL ? 0 : w->scope == GROUP ? w->group[i] : i;
}

static int first_pass(const work *w) {
    void **theta = NULL;
    if (w->couples) {
        if (!(theta = malloc((size_t)(w->n ? w->n : 1) * sizeof *theta))) return -1;
        for (int64_t i = 0; i < w->n; i++)
            theta[i] = hyper_of(w, i)[COUPLED] != 0 ? ((void *const *)w->column[P])[i] : NULL;
    }
    acmo_sums(w->n, w->column[NUMEL], w->column[P_DTYPE], (void *const *)w->column[G], theta, w->row[GG], w->row[GT],
              w->row[TT], w->threads);
    for (int64_t i = 0; i < w->n; i++) {
        w->row[MM][i] = w->moment_sq[i];
        if (!w->couples) w->row[GT][i] = w->row[TT][i] = 0;
    }
    free(theta);
    return 0;
}

/* Whether the step is taken (then coefficients, t and the kept β̂ are written), −1 without memory. RAW, G_SQ, M_SQ and BETA
 * are written in any case. */
static int calibrate(const work *w) {
    const int64_t n = w->n, scopes = w->scope == GLOBAL ? 1 : w->scope == GROUP ? w->groups : w->all;
    double *scratch = calloc((size_t)(3 * scopes + 2 * w->groups), sizeof(double));
    if (!scratch) return -1;
    double *g_sq = scratch, *m_sq = g_sq + scopes, *newest = m_sq + scopes;
    double *group_newest = newest + scopes, *group_prev = group_newest + w->groups;

    double total = 0, g_total = 0;
    for (int64_t i = 0; i < n; i++) {
        double sign = hyper_of(w, i)[SIGN];
        total += w->row[RAW][i] = sign * sign * w->row[GG][i];
    }
    /* 2 */
    double c = isinf(w->max_grad_norm) ? 1 : w->max_grad_norm / (sqrt(total) + 1e-6);
    if (c > 1) c = 1; /* not fmin, which loses a NaN */
    *w->clip_scale = c;

    for (int64_t i = 0; i < n; i++) {
        const double *h = hyper_of(w, i);
        double s = c * h[SIGN], lambda = h[COUPLED];
        double square = s * s * w->row[GG][i];
        if (lambda != 0 && !(isinf(square) && isfinite(w->row[TT][i]))) { /* inf stays inf: ⟨g, θ⟩ may be −inf */
            square += 2 * s * lambda * w->row[GT][i] + lambda * lambda * w->row[TT][i];
            if (square < 0) square = 0;
        }
        w->row[G_SQ][i] = square;
        w->row[M_SQ][i] = w->row[MM][i];
        w->row[BETA][i] = 0;
        g_total += square;
        g_sq[scope_of(w, i)] += square;
        m_sq[scope_of(w, i)] += w->row[MM][i];
    }
    for (int64_t i = 0; i < w->all; i++) {
        double t = *w->step[i], *scope_t = newest + scope_of(w, i), *group_t = group_newest + w->group[i];
        if (t > *scope_t) *scope_t = t;
        if (!w->sqrt) continue;
        double kept = *w->beta_hat[i], *prev = group_prev + w->group[i]; /* the newest of a group are alike */
        if (t > *group_t || (t == *group_t && kept > *prev)) *group_t = t, *prev = kept;
    }

    int go = !w->found_inf && (w->propagate || (isfinite(total) && isfinite(g_total)));
    /* A first step with lr 0 and gradients 0 is how torch.distributed.checkpoint makes state: m and t must stay 0. */
    int makes_state = total == 0;
    for (int64_t i = 0; i < n; i++) makes_state = makes_state && newest[scope_of(w, i)] == 0;
    for (int64_t k = 0; k < w->groups; k++) makes_state = makes_state && w->hyper[k * HYPERS + LR] == 0;
    go = go && !makes_state;

    for (int64_t i = 0; go && i < n; i++) {
        const double *h = hyper_of(w, i);
        double norm_g = sqrt(g_sq[scope_of(w, i)]), norm_m = sqrt(m_sq[scope_of(w, i)]);
        double t = newest[scope_of(w, i)] + 1;
        double line_4 = h[MOMENTUM] * norm_g / (norm_m + h[DELTA]), beta_hat = line_4; /* 4 */
        if (w->sqrt) {                                                                 /* 5 */
            double prev = w->scope == TENSOR ? *w->beta_hat[i] : group_prev[w->group[i]];
            double bound = sqrt(t / (t - 1)) * prev;
            beta_hat = isnan(line_4) || line_4 <= bound ? line_4 : bound;
            *w->beta_hat[i] = norm_g == 0 ? prev : norm_m != 0 ? beta_hat : h[DELTA] > 0 ? line_4 : INFINITY;
        }
        if (norm_m == 0) beta_hat = 0;
        *w->step[i] = (float)t;
        w->row[BETA][i] = w->row[C_BETA][i] = beta_hat;
        w->row[C_S][i] = c * h[SIGN];
        w->row[C_LAMBDA][i] = h[COUPLED];
        w->row[C_KEEP][i] = h[KEEP];
        w->row[C_ALPHA][i] = h[LR];
    }
    free(scratch);
    return go;
}

static void second_pass(const work *w) {
    acmo_update(w->n, w->column[NUMEL], w->column[P_DTYPE], w->column[M_DTYPE], (void *const *)w->column[P],
                (void *const *)w->column[M], (void *const *)w->column[G], w->row[C_S], w->row[NEW], w->threads);
    for (int64_t i = 0; i < w->n; i++) w->moment_sq[i] = w->row[NEW][i];
}

/* numbers: clip_scale (written), max_grad_norm (inf for none), whether a scaler found an overflow, each group's HYPERS, and
 * ‖m‖² of each of the n tensors (written).
 * rows: C_ALPHA + 1 rows of n. Returns 1 for a step that was taken, 0 for one that was not, −1 without memory (nothing is
 * changed then). */
EXPORT int64_t acmo_step(const int64_t *arguments, double *numbers, double *rows) {
    work w = unpack(arguments, numbers, rows);
    if (first_pass(&w) < 0) return -1;
    int go = calibrate(&w);
    if (go > 0) second_pass(&w);
    else
        for (int64_t i = 0; i < w.n; i++) w.row[NEW][i] = w.row[MM][i];
    return go;
}
