/* tp.c -- see tp.h. */
#include "parallel/grid/tp.h"

#include "model/core/check.h"

/* Each of the four borders of a group of one. */
static void same(void *self, Tensor dst, Tensor src)
{
    (void)self;
    CHECK(dst.data == src.data && tensor_same_shape(dst, src),
          "border tensors differ: %lld and %lld elements", (long long)tensor_count(dst),
          (long long)tensor_count(src));
}

static void reduce(void *self, Tensor x, ReduceOp op)
{
    comm_all_reduce(self, NULL, x, op);
}

static void wait_for_none(void *self)
{
    (void)self;
}

static void gather(void *self, Tensor whole, Tensor part)
{
    same(self, whole, part);
}

Region tp_region(Comm *comm)
{
    CHECK(comm->size == 1, "a tensor-parallel group of %d", comm->size);
    return (Region){.enter_forward = same,
                    .exit_forward = same,
                    .enter_backward = same,
                    .exit_backward = same,
                    .await = wait_for_none,
                    .reduce = reduce,
                    .gather = gather,
                    .self = comm,
                    .parts = 1};
}
