/* ops_check.h -- what the front doors of ops.c share: checks of operands that name the op, the
 * operand and both shapes, the choice of the table, and the clock. Private to ops.c and
 * ops_model.c. */
#ifndef MODEL_KERNELS_OPS_CHECK_H
#define MODEL_KERNELS_OPS_CHECK_H

#include "model/kernels/ops.h"

/* A tensor with the name its op gives it. */
typedef struct {
    const char *name;
    Tensor tensor;
} Operand;

#define OPERAND(t) ((Operand){.name = #t, .tensor = (t)})

/* Ends the program with both operands unless ok; `rule` says what a should be to b. */
void expect(OpId op, bool ok, const char *rule, Operand a, Operand b);
/* a is there and has rows x cols (leading dimensions flattened); `like` is the operand the numbers
 * come from. */
void expect_matrix(OpId op, Operand a, int64_t rows, int64_t cols, Operand like);
/* a is there, dense and has n elements. */
void expect_vector(OpId op, Operand a, int64_t n, Operand like);
/* As expect_vector, of exactly this type. */
void expect_typed(OpId op, Operand a, DType dtype, int64_t n, Operand like);
/* a has the type of `like`, which is a float type. */
void expect_storage(OpId op, Operand a, Operand like);
/* a's type is that of `like` or the one in which it is computed. */
void expect_gradient(OpId op, Operand a, Operand like);
/* a does not start where b does. Overlap in general is not looked for: slices of one buffer
 * interleave. */
void expect_apart(OpId op, Operand a, Operand b);
/* `ok`, or the program ends saying what an argument that is no tensor must be. */
void expect_argument(OpId op, bool ok, const char *rule, long long value);

/* One running call and its table. */
typedef struct {
    const OpTable *table;
    OpId op;
} OpCall;

/* Chooses the table by the storage type and marks the beginning, if somebody measures. */
OpCall call_begin(Device *dev, OpId op, DType storage);
/* Ends the program with EXIT_UNAVAILABLE, naming the op and the device, unless `present`: the
 * table's entry is not NULL. Only rows of oplist.h that say so have no body on CUDA; what a run
 * will need is called once at its start (trainer_warm_up), so that it ends there. */
void call_require(const Device *dev, OpCall call, bool present);
void call_end(Device *dev, OpCall call);

/* Runs `name` from the table for this storage type, between the marks; `dev` is the caller's
 * device.
 */
#define RUN(name, storage, ...)                                                                    \
    do {                                                                                           \
        OpCall call = call_begin(dev, OP_##name, storage);                                         \
        call_require(dev, call, call.table->name != NULL);                                         \
        call.table->name(__VA_ARGS__);                                                             \
        call_end(dev, call);                                                                       \
    } while (0)

#endif
