/* combine.c -- reduces tensors in the order of their ranks. */
#include "parallel/comm/combine.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"

/* Combines the sources element by element, on the host. */
#define COMBINE(type)                                                                              \
    do {                                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                          \
            type x = ((const type *)src[0].data)[i];                                               \
            for (int r = 1; r < sources; r++) {                                                    \
                type y = ((const type *)src[r].data)[i];                                           \
                x = op == REDUCE_SUM ? x + y : y > x || y != y ? y : x;                            \
            }                                                                                      \
            ((type *)dst.data)[i] = x;                                                             \
        }                                                                                          \
    } while (0)

static void combine_on_host(Tensor dst, const Tensor *src, int sources, ReduceOp op)
{
    int64_t n = tensor_count(dst);
    switch (dst.dtype) {
    case F64: COMBINE(double); break;
    case F32: COMBINE(float); break;
    case I64: COMBINE(int64_t); break;
    case I32: COMBINE(int32_t); break;
    default: CHECK(0, "a reduction of %s on the host", dtype_name(dst.dtype));
    }
}

void comm_combine(Device *on, Tensor dst, const Tensor *src, int sources, ReduceOp op)
{
    if (on && op == REDUCE_SUM)
        op_sum(on, dst, src, sources);
    else if (on)
        op_maximum(on, dst, src, sources);
    else
        combine_on_host(dst, src, sources, op);
}
