/* column_sum.h -- sums of columns, in an order that depends neither on the number of threads nor on
 * how the columns are divided, and the gradient of a bias. */
#ifndef MODEL_KERNELS_CPU_COLUMN_SUM_H
#define MODEL_KERNELS_CPU_COLUMN_SUM_H

#include "model/kernels/cpu/spans.h"

/* Number of columns that are summed at a time. */
enum { STRIP = 256 };

/* Computes sum (n, at most STRIP) = the sums of x's columns from `col` on. Rows are added in
 * groups, so the rounding error grows with the group's length plus the number of groups, not with
 * their product. */
void CPU(strip_sums)(Tensor x, int64_t col, int64_t n, real *sum);

/* Sets elements [col, col + n) of db to those of `columns` (reals). If `columns` is absent, uses
 * the sums of the columns of x instead. With `accumulate`, adds them to db. Rounds once. */
void CPU(bias_part)(Tensor db, Tensor columns, Tensor x, int64_t col, int64_t n, bool accumulate);
/* Computes db (C) = the sums of the columns of x (N, C), or += with `accumulate`; rounds once. */
void CPU(bias_gradient)(Device *dev, Tensor db, Tensor x, bool accumulate);

#endif
