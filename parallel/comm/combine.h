/* combine.h -- reductions for the transports that compute them themselves (all but NCCL). */
#ifndef PARALLEL_COMM_COMBINE_H
#define PARALLEL_COMM_COMBINE_H

#include "parallel/comm/comm.h"

/* dst = src[0] combined with the other sources in order: with op_sum or op_maximum on the device
 * `on`, or on the host if it is NULL (f64, f32, i64, i32). Any number of sources: a sum in 16 bits
 * is rounded once. dst may be a source. A maximum keeps a NaN of any source. */
void comm_combine(Device *on, Tensor dst, const Tensor *src, int sources, ReduceOp op);
/* Returns elements [first, first + n) of a dense tensor. */
static inline Tensor comm_slice(Tensor t, int64_t first, int64_t n)
{
    return tensor_slice_rows(tensor_flat(t), first, n);
}
/* Returns how many elements of an all-reduce of n elements each rank reduces: whole cache lines, so
 * the last ranks may have fewer or none. */
static inline int64_t comm_share(int64_t n, int ranks)
{
    const int64_t line = 64;
    return ((n + ranks - 1) / ranks + line - 1) / line * line;
}

#endif
