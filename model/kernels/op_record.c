/* op_record.c -- see op_record.h. All functions are generated from the list of ops. */
#include "model/kernels/op_record.h"

#include "model/core/recorder.h"
#include "model/kernels/op_arguments.h"
#include "model/kernels/op_cost.h"

static void record(Device *dev, OpId op, DType storage, const void *arguments)
{
    if (!recorder_is_on(dev->recorder)) return;
    OpCost cost = op_cost(op, arguments);
    recorder_op(dev, &(GraphNode){.code = (int)op,
                                  .dtype = storage,
                                  .m = cost.m,
                                  .n = cost.n,
                                  .k = cost.k,
                                  .flops = cost.flops,
                                  .bytes = cost.bytes,
                                  .host_bytes = cost.host_bytes});
}

#define OP(name, parameters)                                                                       \
    void record_##name(DType storage, PARAMETERS parameters)                                       \
    {                                                                                              \
        Arguments_##name taken = ARGUMENTS_TAKEN(name);                                            \
        record(dev, OP_##name, storage, &taken);                                                   \
    }
#define OP_WITHOUT_CUDA OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
