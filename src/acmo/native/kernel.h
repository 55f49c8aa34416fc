/* The two passes, see kernel.c, and a step by rows or columns, see rows.c. */
#ifndef ACMO_KERNEL_H
#define ACMO_KERNEL_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void acmo_sums(int64_t n, const int64_t *numel, const int64_t *dtype, void *const *x, void *const *y,
                      double *xx, double *xy, double *yy, int64_t threads);
EXPORT void acmo_update(int64_t n, const int64_t *numel, const int64_t *pdtype, const int64_t *mdtype, void *const *p,
                        void *const *m, void *const *g, const double *coef, double *mm, int64_t threads);
EXPORT int64_t acmo_rows(const int64_t *addresses, const int64_t *layout, const double *numbers, double *table, int64_t threads);
EXPORT int64_t acmo_rows_bytes(void);

#endif
