/* The fused CPU step behind a plain C ABI: no Python, no torch, so one library works with every version of both.
 *
 * All tensors are cut into chunks of CHUNK entries. A thread takes a contiguous range of chunks; each chunk's sum goes to
 * its own place in a scratch, and a tensor's chunks are added in their order. So neither the number of threads nor the
 * instruction set changes a bit, and Σm² from acmo_update equals acmo_sums of the m that it left behind. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef ACMO_X86
#include <cpuid.h>
#endif

#include "chunks.h"
#include "kernel.h"
#include "rows.h"

enum {
    ABI = 8,
    CHUNK = ACMO_CHUNK,
    BLOCK = 128,          /* chunks; 4 MB of float32: long enough for the prefetchers, short beside a cache */
    OVERHEAD = 64,        /* what a chunk costs beside its entries, in entries: balances many small tensors */
    SERIAL_BELOW = 32768, /* entries; a parallel region costs as much as updating about that many (torch's grain size) */
    MERGE_WIDTH = 6144,   /* entries of a row of floats whose g and m fill a first-level cache of 48 kB */
};

static const int64_t ITEM_SIZE[ACMO_DTYPES] = {4, 8, 2, 2};
static const acmo_chunks *chunks = &acmo_chunks_plain;
static int forked = 0;
static int64_t merge_width = MERGE_WIDTH;

static int supported(const acmo_chunks *c) {
#ifdef ACMO_X86
    unsigned a, b, features = 0, d; /* CPUID itself for F16C and FMA: names that gcc before 11 does not know */
    int v3 = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &features, &d) && (features & bit_F16C) &&
             (features & bit_FMA);
    if (c == &acmo_chunks_v3) return v3;
    if (c == &acmo_chunks_v4)
        return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return c == &acmo_chunks_plain;
}

/* OpenMP's pool of threads does not survive fork(), and GOMP would wait for it forever: a forked child runs serially.
 * The fork may have happened before this library was loaded: Linux has a flag for that (PF_FORKNOEXEC). */
static void after_fork(void) { forked = 1; }

static int forked_before_load(void) {
    unsigned flags = 0;
    char line[512], *after_name;
    FILE *stat = fopen("/proc/self/stat", "r");
    if (!stat) return 0;
    size_t length = fread(line, 1, sizeof line - 1, stat);
    fclose(stat);
    line[length] = 0;
    after_name = strrchr(line, ')');
    if (!after_name || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1) return 0;
    return (flags & 0x40u) != 0;
}

__attribute__((constructor)) static void prepare(void) {
#ifdef ACMO_X86
    __builtin_cpu_init();
    if (supported(&acmo_chunks_v3)) chunks = &acmo_chunks_v3;
    if (supported(&acmo_chunks_v4)) chunks = &acmo_chunks_v4;
    if (__builtin_cpu_is("intel")) merge_width = 0;
#endif
    forked = forked_before_load();
    pthread_atfork(NULL, NULL, after_fork);
}

/* For rows.c: its loops of the instruction set in use, and whether this process may start threads. */
const acmo_row_loops *acmo_current_row_loops(void) {
#ifdef ACMO_X86
    if (chunks == &acmo_chunks_v3) return &acmo_row_loops_v3;
    if (chunks == &acmo_chunks_v4) return &acmo_row_loops_v4;
#endif
    return &acmo_row_loops_plain;
}
int acmo_may_use_threads(void) { return !forked; }

EXPORT int acmo_abi(void) { return ABI; }
EXPORT const char *acmo_isa(void) { return chunks->isa; }

/* For rows.c: the least width of rows of which a group is updated while the next one is summed; 0 for all. On an Intel Xeon that takes
 * 0.8 to 0.93 of the time; on an AMD EPYC it helps long rows of floats alone (benchmarks/README.md). Both ways give the same bits. */
EXPORT int64_t acmo_merge_width(void) { return merge_width; }
EXPORT void acmo_set_merge_width(int64_t entries) { merge_width = entries; } /* for tests */

/* 1 where compiled with OpenMP. */
EXPORT int acmo_openmp(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

/* For tests: use this instruction set from now on. Returns 0, changing nothing, where it is unknown or not this CPU's. */
EXPORT int acmo_set_isa(const char *name) {
    const acmo_chunks *all[] = {
        &acmo_chunks_plain,
#ifdef ACMO_X86
        &acmo_chunks_v3,
        &acmo_chunks_v4,
#endif
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i]->isa, name) && supported(all[i])) return chunks = all[i], 1;
    return 0;
}

/* One call's arguments. sum[j] has one value per tensor, scratch one row of `sums` values per chunk. */
typedef struct job job;
struct job {
    int64_t n;
    const int64_t *numel;
    void (*run)(const job *, int64_t tensor, int64_t offset, int64_t count, double *out);
    int sums, backwards;
    double *sum[3];
    const int64_t *dtype, *mdtype;
    void *const *x, *const *y, *const *g;
    const double *coef;
};

static void *at(void *base, int64_t dtype, int64_t offset) { return (char *)base + offset * ITEM_SIZE[dtype]; }

static void run_sums(const job *j, int64_t i, int64_t offset, int64_t count, double *out) {
    int64_t dtype = j->dtype[i];
    const void *y = j->y && j->y[i] ? at(j->y[i], dtype, offset) : NULL;
    double all[3];
    chunks->sums[dtype](at(j->x[i], dtype, offset), y, count, all);
    for (int k = 0; k < j->sums; k++) out[k] = all[k];
}

static void run_update(const job *j, int64_t i, int64_t offset, int64_t count, double *out) {
    int64_t dtype = j->dtype[i], mdtype = j->mdtype[i];
    double coef[ACMO_COEFS];
    for (int k = 0; k < ACMO_COEFS; k++) coef[k] = j->coef[k * j->n + i];
    out[0] = chunks->update[dtype][mdtype](at(j->x[i], dtype, offset), at(j->y[i], mdtype, offset),
                                           at(j->g[i], dtype, offset), count, coef);
}

static int64_t chunks_of(int64_t numel) { return (numel + CHUNK - 1) / CHUNK; }
static int64_t cost_of(int64_t numel) { return numel + chunks_of(numel) * OVERHEAD; }

static void run_chunk(const job *j, int64_t tensor, int64_t chunk, double *out) {
    int64_t offset = chunk * CHUNK, left = j->numel[tensor] - offset;
    j->run(j, tensor, offset, left < CHUNK ? left : CHUNK, out);
}

/* One chunk, or several at once where that is faster and none of them is behind `limit`; returns how many. */
static int64_t run_chunks(const job *j, int64_t tensor, int64_t chunk, int64_t limit, double *out) {
    int64_t dtype = j->dtype[tensor], full = j->numel[tensor] / CHUNK;
    if (j->run != run_sums || j->y || chunk + ACMO_STREAMS > (full < limit ? full : limit))
        return run_chunk(j, tensor, chunk, out), 1;
    chunks->squares[dtype](at(j->x[tensor], dtype, chunk * CHUNK), out);
    return ACMO_STREAMS;
}

static void run_serially(const job *j) {
    for (int64_t i = 0; i < j->n; i++) {
        double sum[3] = {0}, part[ACMO_STREAMS];
        for (int64_t c = 0, done, count = chunks_of(j->numel[i]); c < count; c += done) {
            done = run_chunks(j, i, c, count, part);
            for (int64_t d = 0; d < done; d++)
                for (int k = 0; k < j->sums; k++) sum[k] += part[d * j->sums + k];
        }
        for (int k = 0; k < j->sums; k++) j->sum[k][i] = sum[k];
    }
}

/* The first chunk that begins at or behind `cost`, as tensor, chunk within it, and index over all chunks. */
typedef struct { int64_t tensor, chunk, index; } place;

static place place_at(const job *j, int64_t cost) {
    place p = {0, 0, 0};
    for (; p.tensor < j->n; p.tensor++) {
        int64_t numel = j->numel[p.tensor], count = chunks_of(numel);
        int64_t chunk = (cost + CHUNK + OVERHEAD - 1) / (CHUNK + OVERHEAD);
        if (chunk < count) return p.chunk = chunk, p.index += chunk, p;
        p.index += count;
        cost = cost > cost_of(numel) ? cost - cost_of(numel) : 0;
    }
    return p;
}

static void run_range(const job *j, double *scratch, place p, int64_t end) {
    for (int64_t done; p.index < end; p.chunk += done, p.index += done) {
        while (p.chunk == chunks_of(j->numel[p.tensor])) p.tensor++, p.chunk = 0;
        done = run_chunks(j, p.tensor, p.chunk, p.chunk + end - p.index, scratch + p.index * j->sums);
    }
}

/* Pass 1 goes forwards, pass 2 from block to block backwards: it begins with the gradients that pass 1 left in the cache. */
static void run_share(const job *j, double *scratch, int64_t cost, int64_t thread, int64_t threads) {
    place first = place_at(j, cost / threads * thread);
    place end = place_at(j, thread + 1 < threads ? cost / threads * (thread + 1) : cost);
    int64_t block = j->backwards ? BLOCK : end.index - first.index;
    while (end.index > first.index) {
        place p = end;
        while (p.index > first.index && end.index - p.index < block) {
            while (!p.chunk) p.chunk = chunks_of(j->numel[--p.tensor]);
            p.chunk--, p.index--;
        }
        run_range(j, scratch, p, end.index);
        end = p;
    }
}

static void run(const job *j, int64_t threads) {
    int64_t cost = 0, count = 0, entries = 0;
    for (int64_t i = 0; i < j->n; i++)
        cost += cost_of(j->numel[i]), count += chunks_of(j->numel[i]), entries += j->numel[i];
    double *scratch = NULL;
    if (threads > 1 && entries >= SERIAL_BELOW && count > 1 && !forked)
        scratch = malloc((size_t)count * (size_t)j->sums * sizeof(double));
    if (!scratch) {
        run_serially(j);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel num_threads((int)(threads < count ? threads : count))
    run_share(j, scratch, cost, omp_get_thread_num(), omp_get_num_threads());
#else
    run_share(j, scratch, cost, 0, 1);
#endif
    const double *part = scratch;
    for (int64_t i = 0; i < j->n; i++) {
        double sum[3] = {0};
        for (int64_t c = 0; c < chunks_of(j->numel[i]); c++, part += j->sums)
            for (int k = 0; k < j->sums; k++) sum[k] += part[k];
        for (int k = 0; k < j->sums; k++) j->sum[k][i] = sum[k];
    }
    free(scratch);
}

/* Pass 1: per tensor Σx², and where y[i] is not NULL also Σxy and Σy², else 0. With y NULL, xy and yy are not written. */
EXPORT void acmo_sums(int64_t n, const int64_t *numel, const int64_t *dtype, void *const *x, void *const *y,
                      double *xx, double *xy, double *yy, int64_t threads) {
    job j = {.n = n, .numel = numel, .run = run_sums, .sums = y ? 3 : 1, .sum = {xx, xy, yy}, .dtype = dtype,
             .x = x, .y = y};
    run(&j, threads);
}

/* Pass 2, per tensor i with coefficients coef[k*n + i], k = s, λ, β̂, keep, α:
 *   m' = s g + λθ + β̂ m;  θ = keep θ − α m';  m = m' rounded to its dtype;  mm[i] = Σ m² as stored. */
EXPORT void acmo_update(int64_t n, const int64_t *numel, const int64_t *pdtype, const int64_t *mdtype, void *const *p,
                        void *const *m, void *const *g, const double *coef, double *mm, int64_t threads) {
    job j = {.n = n, .numel = numel, .run = run_update, .sums = 1, .backwards = 1, .sum = {mm}, .dtype = pdtype,
             .mdtype = mdtype, .x = p, .y = m, .g = g, .coef = coef};
    run(&j, threads);
}
