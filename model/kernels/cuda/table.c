/* table.c -- the table of ops of the CUDA backend. */
#include "model/kernels/cuda/cuda.h"

extern const OpTable cuda_table;

const OpTable cuda_table = {
#define OP(name, arguments)              .name = cuda_##name,
#define OP_WITHOUT_CUDA(name, arguments) .name = NULL,
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};
