/* column_sum.h -- sums of a strip of columns, in an order that depends neither on the number of
 * threads nor on how the columns are divided. */
#ifndef MODEL_KERNELS_CPU_COLUMN_SUM_H
#define MODEL_KERNELS_CPU_COLUMN_SUM_H

#include "model/kernels/cpu/spans.h"

/* Number of columns that are summed at a time. */
enum { STRIP = 256 };

/* Computes sum (n, at most STRIP) = the sums of x's columns from `col` on. Rows are added in
 * groups, so the rounding error grows with the group's length plus the number of groups, not with
 * their product. */
void CPU(strip_sums)(Tensor x, int64_t col, int64_t n, real *sum);

#endif
