/* late_table.c -- the late device's table of ops: each op queues a copy of its arguments. Data in
 * host memory that an argument points to is copied too, as a kernel's arguments are. Tensors,
 * states and decisions are in device memory and are not copied.
 *
 * All functions are generated from the list of ops and from the names of their arguments
 * (op_arguments.h). */
#include "model/kernels/op_arguments.h"
#include "tests/support/device/late_inside.h"

#define GIVEN(name) a->name

/* Returns how many tensors or ranges an argument of type `const Tensor *` or `const UpdateRange *`
 * points to. */
static size_t listed_of(OpId op, const void *arguments)
{
    switch (op) {
    case OP_sum: return (size_t)((const Arguments_sum *)arguments)->n;
    case OP_maximum: return (size_t)((const Arguments_maximum *)arguments)->n;
    case OP_sq_norm: return (size_t)((const Arguments_sq_norm *)arguments)->n;
    case OP_adamw: return (size_t)((const Arguments_adamw *)arguments)->n;
    case OP_sgd: return (size_t)((const Arguments_sgd *)arguments)->n;
    default: return 0;
    }
}

/* Returns how many hyperparameters the update reads. */
static size_t groups_of(OpId op, const void *arguments)
{
    const Arguments_adamw *adamw = arguments;
    const Arguments_sgd *sgd = arguments;
    return (size_t)(op == OP_adamw ? update_groups(adamw->range, adamw->n)
                                   : update_groups(sgd->range, sgd->n));
}

/* Bytes of host memory that an argument points to. Every argument type must have a row, so that
 * none is forgotten. Enumerations count as unsigned. */
#define POINTED(op, name)                                                                          \
    _Generic(a->name,                     \
        const Tensor *: listed_of(op, a) * sizeof(Tensor),     \
        const UpdateRange *: listed_of(op, a) * sizeof(UpdateRange),     \
        const Segment *: sizeof(Segment),                       \
        const AttentionTensors *: sizeof(AttentionTensors),     \
        const AdamW *: groups_of(op, a) * sizeof(AdamW),                      \
        const Sgd *: groups_of(op, a) * sizeof(Sgd),                            \
        const StepConstants *: sizeof(StepConstants),           \
        const StepDecision *: 0, \
        StepDecision *: 0, \
        StepState *: 0, \
        StepStats *: 0, \
        Tensor: 0, \
        Norm: 0, \
        Attention: 0, \
        bool: 0, \
        int: 0, \
        unsigned: 0, \
        int64_t: 0, \
        uint64_t: 0, \
        double: 0)
#define KEPT(name)                                                                                 \
    if (POINTED(op, name) > 0) late_keep(work, &a->name, POINTED(op, name));

#define NOTE(op_, wide_)                                                                           \
    Arguments_##op_ taken = ARGUMENTS_TAKEN(op_);                                                  \
    note_##op_(dev, &taken, wide_);

#define OP(name_, parameters)                                                                      \
    static void run_##name_(Device *dev, const OpTable *table, void *arguments)                    \
    {                                                                                              \
        Arguments_##name_ *a = arguments;                                                          \
        table->name_(dev, LISTED(GIVEN, ARGUMENTS_##name_));                                       \
    }                                                                                              \
    static void note_##name_(Device *dev, const Arguments_##name_ *taken, bool wide)               \
    {                                                                                              \
        OpId op = OP_##name_;                                                                      \
        LateWork *work =                                                                           \
            late_work((LateWork){.name = op_name[op], .run = run_##name_, .wide = wide}, taken,    \
                      sizeof *taken);                                                              \
        Arguments_##name_ *a = work->arguments;                                                    \
        EACH(KEPT, ARGUMENTS_##name_)                                                              \
        late_issue(dev->compute, work);                                                            \
    }                                                                                              \
    static void narrow_##name_ parameters                                                          \
    {                                                                                              \
        NOTE(name_, false)                                                                         \
    }                                                                                              \
    static void wide_##name_ parameters                                                            \
    {                                                                                              \
        NOTE(name_, true)                                                                          \
    }
#define OP_WITHOUT_CUDA OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

const OpTable late_table_f32 = {
#define OP(name, parameters) .name = narrow_##name,
#define OP_WITHOUT_CUDA      OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};

const OpTable late_table_f64 = {
#define OP(name, parameters) .name = wide_##name,
#define OP_WITHOUT_CUDA      OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};
