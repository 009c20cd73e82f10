/* ops_check.h -- helpers shared by the checking functions of ops.c and ops_model.c: checks of
 * operands whose messages name the op, the operand and both shapes; the choice of the backend's
 * table; timing and recording of calls. Private to those two files. */
#ifndef MODEL_KERNELS_OPS_CHECK_H
#define MODEL_KERNELS_OPS_CHECK_H

#include "model/kernels/op_record.h"
#include "model/kernels/ops.h"

/* A tensor with the name of the op's argument, for error messages. */
typedef struct {
    const char *name;
    Tensor tensor;
} Operand;

#define OPERAND(t) ((Operand){.name = #t, .tensor = (t)})

/* Unless ok, ends the program with an error message that shows both operands. `rule` describes the
 * required relation of a and b. */
void expect(OpId op, bool ok, const char *rule, Operand a, Operand b);
/* Requires that a is present and has rows x cols elements (leading dimensions flattened). `like` is
 * the operand from which rows and cols were taken; the error message names it. */
void expect_matrix(OpId op, Operand a, int64_t rows, int64_t cols, Operand like);
/* Requires that a is present, dense and has n elements. */
void expect_vector(OpId op, Operand a, int64_t n, Operand like);
/* Like expect_vector, but also requires that a has exactly this type. */
void expect_typed(OpId op, Operand a, DType dtype, int64_t n, Operand like);
/* Requires that `like` has a float type and that a has the same type. */
void expect_storage(OpId op, Operand a, Operand like);
/* Requires that a has the type of `like` or the compute type of that type. */
void expect_gradient(OpId op, Operand a, Operand like);
/* Requires that a and b do not start at the same address. Partial overlap is not checked, because
 * slices of one buffer legitimately interleave. */
void expect_apart(OpId op, Operand a, Operand b);
/* Unless ok, ends the program with an error message that gives the rule for an argument that is no
 * tensor, and the argument's value. */
void expect_argument(OpId op, bool ok, const char *rule, long long value);

/* A call in progress and the table of functions that serves it. */
typedef struct {
    const OpTable *table;
    OpId op;
    int64_t noted; /* number of its entry in the device's flight recorder; 0: none */
} OpCall;

/* Begins a call of `op`, which computes in `storage` and writes `elements` elements. Chooses the
 * table of functions for type `table`. Records the start of the call in the device's flight
 * recorder and profile, if they are attached. */
OpCall call_begin(Device *dev, OpId op, DType table, DType storage, int64_t elements);
/* Ends the program with EXIT_UNAVAILABLE and a message that names the op and the device, unless
 * `present` is true (the table's entry is not NULL). Only ops that are OP_WITHOUT_CUDA in oplist.h
 * lack a CUDA implementation. trainer_warm_up calls each op that a run needs once, so a run that
 * needs such an op ends at its start. */
void call_require(const Device *dev, OpCall call, bool present);
void call_end(Device *dev, OpCall call);

/* Return the number of elements that a call writes. There is one function per type of the first
 * argument after dev: a tensor, the tensors of attention backward, the step's state, or n ranges of
 * weights. */
static inline int64_t written_tensor(Tensor x, int n)
{
    (void)n;
    return tensor_count(x);
}

static inline int64_t written_gradients(const AttentionTensors *t, int n)
{
    (void)n;
    return tensor_count(t->q) + tensor_count(t->k) + tensor_count(t->v) + tensor_count(t->dbq) +
           tensor_count(t->dbk) + tensor_count(t->dbv);
}

static inline int64_t written_state(const StepState *state, int n)
{
    (void)state;
    return n > 0;
}

static inline int64_t written_ranges(const UpdateRange *range, int n)
{
    int64_t elements = 0;
    for (int i = 0; i < n; i++)
        elements += tensor_count(range[i].weight);
    return elements;
}

/* WRITTEN(dev, first, second, ...) is the number of elements that an op with these arguments
 * writes. */
#define WRITTEN(...) WRITTEN_OF(__VA_ARGS__, 0)
#define WRITTEN_OF(dev_, first, second, ...)                                                       \
    _Generic((first),                                                                              \
        Tensor: written_tensor,                                                                    \
        const AttentionTensors *: written_gradients,                                               \
        StepState *: written_state,                                                                \
        const UpdateRange *: written_ranges)(first, _Generic((second), int: (second), default: 1))

/* Reports the call to the recorder, if there is one, and runs the implementation of `name` for this
 * storage type between call_begin and call_end. `dev` is taken from the caller's scope. */
#define RUN(name, storage, ...) RUN_FROM(name, storage, storage, __VA_ARGS__)
/* Like RUN, but with the implementation from the table for the type `table_`. */
#define RUN_FROM(name, table_, storage, ...)                                                       \
    do {                                                                                           \
        if (dev->recorder) record_##name(storage, __VA_ARGS__);                                    \
        OpCall call = call_begin(dev, OP_##name, table_, storage, WRITTEN(__VA_ARGS__));           \
        call_require(dev, call, call.table->name != NULL);                                         \
        call.table->name(__VA_ARGS__);                                                             \
        call_end(dev, call);                                                                       \
    } while (0)

#endif
