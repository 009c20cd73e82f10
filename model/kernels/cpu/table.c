/* table.c -- the table of all ops for the CPU level and compute type that this file is compiled
 * for. */
#include "model/kernels/cpu/cpu.h"

extern const OpTable CPU(table);

const OpTable CPU(table) = {
#define OP(name, arguments) .name = CPU(name),
#define OP_WITHOUT_CUDA     OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};
