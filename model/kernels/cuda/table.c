/* table.c -- defines the CUDA backend's table of ops. Ops without a CUDA kernel are NULL. */
#include "model/kernels/cuda/cuda.h"

extern const OpTable cuda_table;

const OpTable cuda_table = {
#define OP(name, arguments)              .name = cuda_##name,
#define OP_WITHOUT_CUDA(name, arguments) .name = NULL,
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};
