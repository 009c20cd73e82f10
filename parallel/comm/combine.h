/* combine.h -- reductions for the transports that compute them themselves (all but NCCL). */
#ifndef PARALLEL_COMM_COMBINE_H
#define PARALLEL_COMM_COMBINE_H

#include "parallel/comm/comm.h"

/* Reduces the sources, in their order, to dst: with op_sum or op_maximum on the device `on`, or on
 * the host if `on` is NULL (f64, f32, i64 and i32 only). There may be any number of sources. A sum
 * in 16 bits is rounded once, however many there are. dst may be one of the sources. A maximum
 * keeps a NaN of any source. */
void comm_combine(Device *on, Tensor dst, const Tensor *src, int sources, ReduceOp op);
/* Returns elements [first, first + n) of a dense tensor. */
static inline Tensor comm_slice(Tensor t, int64_t first, int64_t n)
{
    return tensor_slice_rows(tensor_flat(t), first, n);
}
/* Returns how many elements of an all-reduce of n elements each rank reduces. The number is rounded
 * up to a multiple of 64, so that each rank's part begins at a cache line; the last ranks may have
 * fewer elements or none. */
static inline int64_t comm_share(int64_t n, int ranks)
{
    const int64_t line = 64;
    return ((n + ranks - 1) / ranks + line - 1) / line * line;
}

#endif
