/* table.c -- the table of ops of this level and compute type. */
#include "model/kernels/cpu/cpu.h"

extern const OpTable CPU(table);

const OpTable CPU(table) = {
#define OP(name, arguments) .name = CPU(name),
#define OP_WITHOUT_CUDA     OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};
