/* column_sum.h -- sums of a strip of columns, in an order that neither threads nor cuts of the
 * columns move. */
#ifndef MODEL_KERNELS_CPU_COLUMN_SUM_H
#define MODEL_KERNELS_CPU_COLUMN_SUM_H

#include "model/kernels/cpu/spans.h"

/* Columns that are summed at a time. */
enum { STRIP = 256 };

/* sum (n, at most STRIP) = column sums of x from column `col` on. Rows are added in groups: an
 * error that grows with the group's length and the number of groups, not with their product. */
void CPU(strip_sums)(Tensor x, int64_t col, int64_t n, real *sum);

#endif
