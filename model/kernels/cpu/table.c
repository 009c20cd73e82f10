/* table.c -- the table of ops of this level and compute type. */
#include "model/kernels/cpu/cpu.h"

extern const OpTable CPU(table);

const OpTable CPU(table) = {
#define OP(name, arguments) .name = CPU(name),
#include "model/kernels/oplist.h"
#undef OP
};
