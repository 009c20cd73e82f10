/* region.h -- Region, the second contract of the model: where tensor-parallel work begins and ends.
 *
 * Within a region every rank of the tensor-parallel group works on its own columns of the weights;
 * outside all ranks have the same activations. The two borders are Megatron-LM's conjugate
 * operators f and g (arXiv:1909.08053, fig. 3), and each has a transpose for backward. Layers call
 * them in every mode. Implemented by parallel/grid/tp.c.
 *
 * Tensors are (rows, C) in the storage type, and dst is written (=) on the compute stream. In a
 * group of one, dst is src: the layout of activations gives both the same memory. */
#ifndef MODEL_PARAM_REGION_H
#define MODEL_PARAM_REGION_H

#include "model/core/tensor.h"

typedef struct {
    void (*enter_forward)(void *self, Tensor dst, Tensor src);
    void (*exit_forward)(void *self, Tensor dst, Tensor src);
    void (*enter_backward)(void *self, Tensor dst, Tensor src);
    void (*exit_backward)(void *self, Tensor dst, Tensor src);
    void (*reduce)(void *self, Tensor x, ReduceOp op);
    void *self;
} Region;

/* Entry, f: dst = src, whole on every rank of the group. */
static inline void region_enter_forward(const Region *region, Tensor dst, Tensor src)
{
    region->enter_forward(region->self, dst, src);
}

/* Exit, g: dst = the sum of src over the group. */
static inline void region_exit_forward(const Region *region, Tensor dst, Tensor src)
{
    region->exit_forward(region->self, dst, src);
}

/* Transpose of the entry: dst, the gradient of the entry's src, = the sum over the group of src,
 * the gradient of its dst. */
static inline void region_enter_backward(const Region *region, Tensor dst, Tensor src)
{
    region->enter_backward(region->self, dst, src);
}

/* Transpose of the exit: dst = src, whole on every rank of the group. */
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

#endif
