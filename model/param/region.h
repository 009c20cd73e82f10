/* region.h -- Region, the interface between the model and tensor parallelism: it marks where work
 * that is split over tensor-parallel ranks begins and ends.
 *
 * Within a region, each rank of the tensor-parallel group works on its own part of the weights;
 * outside, all ranks have the same activations. The two borders are Megatron-LM's conjugate
 * operators f and g (arXiv:1909.08053, fig. 3), and each has a transpose for backward. Without
 * tensor parallelism they do nothing. Layers may then skip region_exit_forward: the product at the
 * end of the region adds the residual stream itself. Implemented by parallel/grid/tp.c.
 *
 * With sequence parallelism (Korthikanti et al., arXiv:2205.05198), the rows of the residual stream
 * are split between regions: they are divided into `parts` equal parts, and this rank has number
 * `part`. Entering a region gathers the rows; leaving it scatters their sum. So a tensor in the
 * region has `parts` times as many rows as a tensor of the stream. At a border, the stream's tensor
 * may be a view of this rank's rows in the region's tensor; otherwise the two must not overlap.
 * Without sequence parallelism, dst is src at every border.
 *
 * Tensors are (rows, C) in the storage type. dst is written (=) on the compute stream, except by
 * region_enter_backward, whose result is complete only after region_await. */
#ifndef MODEL_PARAM_REGION_H
#define MODEL_PARAM_REGION_H

#include "model/core/tensor.h"

typedef struct {
    void (*enter_forward)(void *self, Tensor dst, Tensor src);
    void (*exit_forward)(void *self, Tensor dst, Tensor src);
    void (*enter_backward)(void *self, Tensor dst, Tensor src);
    void (*await)(void *self);
    void (*exit_backward)(void *self, Tensor dst, Tensor src);
    void (*reduce)(void *self, Tensor x, ReduceOp op);
    void (*gather)(void *self, Tensor whole, Tensor part);
    void *self;
    int64_t parts, part; /* the stream's rows are split into `parts`, of which this rank has number
                            `part`; 1 and 0 without sequence parallelism */
} Region;

/* Enters a region (operator f): sets dst (in the region) to src (of the residual stream). On every
 * rank of the group dst has all rows; under sequence parallelism they are gathered. */
static inline void region_enter_forward(const Region *region, Tensor dst, Tensor src)
{
    region->enter_forward(region->self, dst, src);
}

/* Leaves a region (operator g): sets dst (of the residual stream) to the sum of src (in the region)
 * over the group. Under sequence parallelism, dst has only this rank's rows of the sum. */
static inline void region_exit_forward(const Region *region, Tensor dst, Tensor src)
{
    region->exit_forward(region->self, dst, src);
}

/* Transpose of the entry, for backward: src is the gradient of the tensor in the region, dst that
 * of the tensor of the stream. Sets dst to the sum of src over the group; under sequence
 * parallelism, to this rank's rows of it. The sum begins after the work queued so far on the
 * compute stream and overlaps with the work queued next. dst may be read, and src overwritten, only
 * after region_await. */
static inline void region_enter_backward(const Region *region, Tensor dst, Tensor src)
{
    region->enter_backward(region->self, dst, src);
}
/* Makes the compute stream wait for the sum that region_enter_backward has begun. */
static inline void region_await(const Region *region)
{
    region->await(region->self);
}

/* Transpose of the exit, for backward: sets dst (in the region) to src (of the residual stream). On
 * every rank of the group dst has all rows. */
static inline void region_exit_backward(const Region *region, Tensor dst, Tensor src)
{
    region->exit_backward(region->self, dst, src);
}

/* Reduces x over the group, element by element, in place. x is dense and may have any shape. Used
 * for the maximum and the sum of a row of logits whose columns are split. */
static inline void region_reduce(const Region *region, Tensor x, ReduceOp op)
{
    region->reduce(region->self, x, op);
}

/* Sets `whole`, a dense tensor, to the parts of all ranks of the group, one after the other in rank
 * order. */
static inline void region_gather(const Region *region, Tensor whole, Tensor part)
{
    region->gather(region->self, whole, part);
}

/* Returns a view of this rank's rows of a tensor that has all rows, such as positions. */
static inline Tensor region_rows(const Region *region, Tensor whole)
{
    int64_t rows = whole.dim[0] / region->parts;
    return region->parts == 1 ? whole : tensor_slice_rows(whole, region->part * rows, rows);
}

#endif
