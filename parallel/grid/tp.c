/* tp.c -- see tp.h. A group of one moves nothing; that the layout made dst and src one tensor is
 * checked. */
#include "parallel/grid/tp.h"

#include "model/core/check.h"

static void check_identity(const TpGroup *tp, Tensor dst, Tensor src)
{
    CHECK(tp->comm->size == 1, "a tensor-parallel group of %d", tp->comm->size);
    CHECK(dst.data == src.data && tensor_same_shape(dst, src),
          "border tensors differ: %lld and %lld elements", (long long)tensor_count(dst),
          (long long)tensor_count(src));
}

void tp_enter_forward(TpGroup *tp, Tensor dst, Tensor src)
{
    check_identity(tp, dst, src);
}

void tp_exit_forward(TpGroup *tp, Tensor dst, Tensor src)
{
    check_identity(tp, dst, src);
}

void tp_enter_backward(TpGroup *tp, Tensor dst, Tensor src)
{
    check_identity(tp, dst, src);
}

void tp_exit_backward(TpGroup *tp, Tensor dst, Tensor src)
{
    check_identity(tp, dst, src);
}
