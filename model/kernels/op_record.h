/* op_record.h -- reports calls of ops to a device's recorder (model/core/recorder.h). Private to
 * the op_ functions. */
#ifndef MODEL_KERNELS_OP_RECORD_H
#define MODEL_KERNELS_OP_RECORD_H

#include "model/kernels/ops.h"

/* record_NAME(storage, arguments of op_NAME) adds the call, with its cost (op_cost.h), to the graph
 * of dev->recorder, which must not be NULL. `storage` is the type of the operands. */
#define PARAMETERS(...)      __VA_ARGS__
#define OP(name, parameters) void record_##name(DType storage, PARAMETERS parameters);
#define OP_WITHOUT_CUDA      OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

#endif
