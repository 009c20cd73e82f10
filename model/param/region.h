/* region.h -- Region, the second contract of the model: where tensor-parallel work begins and ends.
 *
 * Within a region every rank of the tensor-parallel group works on its own columns of the weights;
 * outside all ranks have the same activations. The two borders are Megatron-LM's conjugate
 * operators f and g (arXiv:1909.08053, fig. 3), and each has a transpose for backward. Layers call
 * them in every mode. Implemented by parallel/grid/tp.c.
 *
 * With sequence parallelism (Korthikanti et al., arXiv:2205.05198) the rows of the residual stream
 * are cut between regions: each rank has the part-th of `parts` equal parts, a region's first
 * border gathers the rows and its last one scatters their sum. Then tensors of the stream have rows
 * / parts rows and those of the region all rows, and of two at a border the stream's may be this
 * rank's rows of the region's, but nothing else of it. Without it dst is src at every border.
 *
 * Tensors are (rows, C) in the storage type, and dst is written (=) on the compute stream, except
 * by region_enter_backward. */
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
    int64_t parts, part; /* of the stream's rows; 1 and 0 without sequence parallelism */
} Region;

/* Entry, f: dst (the region's) = src (the stream's), whole on every rank of the group. */
static inline void region_enter_forward(const Region *region, Tensor dst, Tensor src)
{
    region->enter_forward(region->self, dst, src);
}

/* Exit, g: dst (the stream's) = the sum of src (the region's) over the group, or this rank's rows
 * of it. */
static inline void region_exit_forward(const Region *region, Tensor dst, Tensor src)
{
    region->exit_forward(region->self, dst, src);
}

/* Transpose of the entry: dst, the gradient of the entry's src, = the sum over the group of src,
 * the gradient of its dst, or this rank's rows of it. The sum begins when the compute stream has
 * done what it was given before this call, and runs beside what it is given next. After
 * region_await dst may be read and src written again. */
static inline void region_enter_backward(const Region *region, Tensor dst, Tensor src)
{
    region->enter_backward(region->self, dst, src);
}
static inline void region_await(const Region *region)
{
    region->await(region->self);
}

/* Transpose of the exit: dst (the region's) = src (the stream's), whole on every rank of the
 * group. */
static inline void region_exit_backward(const Region *region, Tensor dst, Tensor src)
{
    region->exit_backward(region->self, dst, src);
}

/* x = its reduction over the group, element by element, in place; any shape, dense. For what a
 * region needs whole: the maximum and the sum of a row of logits whose columns are cut. */
static inline void region_reduce(const Region *region, Tensor x, ReduceOp op)
{
    region->reduce(region->self, x, op);
}

/* whole = the parts of all ranks of the group, in the order of the ranks; dense. */
static inline void region_gather(const Region *region, Tensor whole, Tensor part)
{
    region->gather(region->self, whole, part);
}

/* This rank's rows of a tensor of all rows, such as positions. */
static inline Tensor region_rows(const Region *region, Tensor whole)
{
    int64_t rows = whole.dim[0] / region->parts;
    return region->parts == 1 ? whole : tensor_slice_rows(whole, region->part * rows, rows);
}

#endif
