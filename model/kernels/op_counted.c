/* op_counted.c -- the table of ops of a counted device, which only counts what a program would
 * allocate and issue (model/core/device_counted.h): every op does nothing. */
#include "model/kernels/op_arguments.h"

extern const OpTable op_table_counted;

#define UNUSED(name) (void)name;
#define OP(name, parameters)                                                                       \
    static void nothing_##name parameters                                                          \
    {                                                                                              \
        (void)dev;                                                                                 \
        EACH(UNUSED, ARGUMENTS_##name)                                                             \
    }
#define OP_WITHOUT_CUDA OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

const OpTable op_table_counted = {
#define OP(name, parameters) .name = nothing_##name,
#define OP_WITHOUT_CUDA      OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};
