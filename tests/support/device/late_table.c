/* late_table.c -- the late device's table of ops: each op queues a copy of its arguments. Data in
 * host memory that an argument points to is copied too, as a kernel's arguments are. Tensors,
 * states and decisions are in device memory and are not copied.
 *
 * All functions are generated from the list of ops and from the names of their arguments below,
 * which a macro cannot extract from that list. A new op needs a row here. */
#include "tests/support/device/late_inside.h"

#define ARGUMENTS_fill                  x, value
#define ARGUMENTS_copy                  y, x
#define ARGUMENTS_add                   y, a, b
#define ARGUMENTS_sum                   dst, src, n
#define ARGUMENTS_maximum               dst, src, n
#define ARGUMENTS_column_sum            columns, x
#define ARGUMENTS_normal                x, seed, part, std
#define ARGUMENTS_token_forward         x, table, tokens, first_row
#define ARGUMENTS_token_backward        dtable, dx, tokens, first_row, accumulate
#define ARGUMENTS_position_add          x, table, positions
#define ARGUMENTS_position_backward     dtable, dx, positions, accumulate
#define ARGUMENTS_norm_forward          y, stats, x, w, b, norm
#define ARGUMENTS_residual_norm_forward sum, y, stats, x, a, bias, w, b, norm
#define ARGUMENTS_norm_backward                                                                    \
    dx, accumulate_dx, columns, dw, db, accumulate, dy, x, stats, w, norm
#define ARGUMENTS_bias_residual           y, a, bias, x
#define ARGUMENTS_linear_forward          y, x, w, bias, epilogue, pre
#define ARGUMENTS_linear_residual_forward y, x, w, bias, residual
#define ARGUMENTS_linear_backward_input   dx, dy, w, epilogue, pre, accumulate
#define ARGUMENTS_linear_backward_weight  dw, db, dy, x, columns, accumulate
#define ARGUMENTS_activation_forward      y, x, kind
#define ARGUMENTS_activation_backward     dx, dy, x, kind
#define ARGUMENTS_rope                    x, table, positions, inverse
#define ARGUMENTS_attention_forward       o, lse, q, k, v, attention, first_key
#define ARGUMENTS_attention_backward      t, accumulate, attention
#define ARGUMENTS_loss                    losses, logits, targets, vocab_size, scale, backward
#define ARGUMENTS_loss_max                most, logits, first_col, vocab_size
#define ARGUMENTS_loss_terms              terms, logits, targets, most, first_col, vocab_size
#define ARGUMENTS_loss_finish                                                                      \
    losses, logits, targets, most, terms, first_col, vocab_size, scale, backward
#define ARGUMENTS_loss_sum    stats, losses, targets
#define ARGUMENTS_sq_norm     stats, x, n
#define ARGUMENTS_step_decide state, stats, decision, lr_table, constants
#define ARGUMENTS_adamw       range, n, decision, hyper
#define ARGUMENTS_sgd         range, n, decision, hyper

/* EACH(do, a, b, ...) expands to do(a) do(b) ... for up to 16 arguments, LISTED to the same with
 * commas. */
#define NTH(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, n, ...) n
#define EACH_1(between, do, a)                                                                     \
    do                                                                                             \
    (a)
#define EACH_2(between, do, a, ...)                                                                \
    do                                                                                             \
    (a) between() EACH_1(between, do, __VA_ARGS__)
#define EACH_3(between, do, a, ...)                                                                \
    do                                                                                             \
    (a) between() EACH_2(between, do, __VA_ARGS__)
#define EACH_4(between, do, a, ...)                                                                \
    do                                                                                             \
    (a) between() EACH_3(between, do, __VA_ARGS__)
#define EACH_5(between, do, a, ...)                                                                \
    do                                                                                             \
    (a) between() EACH_4(between, do, __VA_ARGS__)
#define EACH_6(between, do, a, ...)                                                                \
    do                                                                                             \
    (a) between() EACH_5(between, do, __VA_ARGS__)
#define EACH_7(between, do, a, ...)                                                                \
    do                                                                                             \
    (a) between() EACH_6(between, do, __VA_ARGS__)
#define EACH_8(between, do, a, ...)                                                                \
    do                                                                                             \
    (a) between() EACH_7(between, do, __VA_ARGS__)
#define EACH_9(between, do, a, ...)                                                                \
    do                                                                                             \
    (a) between() EACH_8(between, do, __VA_ARGS__)
#define EACH_10(between, do, a, ...)                                                               \
    do                                                                                             \
    (a) between() EACH_9(between, do, __VA_ARGS__)
#define EACH_11(between, do, a, ...)                                                               \
    do                                                                                             \
    (a) between() EACH_10(between, do, __VA_ARGS__)
#define EACH_12(between, do, a, ...)                                                               \
    do                                                                                             \
    (a) between() EACH_11(between, do, __VA_ARGS__)
#define EACH_13(between, do, a, ...)                                                               \
    do                                                                                             \
    (a) between() EACH_12(between, do, __VA_ARGS__)
#define EACH_14(between, do, a, ...)                                                               \
    do                                                                                             \
    (a) between() EACH_13(between, do, __VA_ARGS__)
#define EACH_15(between, do, a, ...)                                                               \
    do                                                                                             \
    (a) between() EACH_14(between, do, __VA_ARGS__)
#define EACH_16(between, do, a, ...)                                                               \
    do                                                                                             \
    (a) between() EACH_15(between, do, __VA_ARGS__)
#define EACH_OF(between, do, ...)                                                                  \
    NTH(__VA_ARGS__, EACH_16, EACH_15, EACH_14, EACH_13, EACH_12, EACH_11, EACH_10, EACH_9,        \
        EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, EACH_2, EACH_1, )                          \
    (between, do, __VA_ARGS__)
#define NOTHING()
#define COMMA()          ,
#define EACH(do, ...)    EACH_OF(NOTHING, do, __VA_ARGS__)
#define LISTED(do, ...)  EACH_OF(COMMA, do, __VA_ARGS__)
#define FIELD(parameter) parameter;
#define FIELDS(...)      EACH(FIELD, __VA_ARGS__)
#define TAKEN(name)      .name = name
#define GIVEN(name)      a->name

#define OP(name, parameters)                                                                       \
    typedef struct {                                                                               \
        FIELDS parameters                                                                          \
    } Arguments_##name;
#define OP_WITHOUT_CUDA OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

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
    Arguments_##op_ taken = {.dev = dev, LISTED(TAKEN, ARGUMENTS_##op_)};                          \
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
