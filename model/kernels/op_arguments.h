/* op_arguments.h -- the names and the structure of each op's arguments, for code that is generated
 * for every op: the recorder of ops, the ops of a counted device (model/core/device_counted.h: it
 * computes nothing), and the tests' device that delays its work
 * (tests/support/device/late_device.h). A macro cannot extract the names from oplist.h, so a new op
 * needs a row here. */
#ifndef MODEL_KERNELS_OP_ARGUMENTS_H
#define MODEL_KERNELS_OP_ARGUMENTS_H

#include "model/kernels/ops.h"

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
#define ARGUMENTS_hash        sum, x, first
#define ARGUMENTS_step_decide state, stats, decision, lr_table, constants
#define ARGUMENTS_adamw       range, n, decision, hyper
#define ARGUMENTS_sgd         range, n, decision, hyper

/* EACH(do, a, b, ...) expands to do(a) do(b) ... for up to 16 arguments. LISTED(do, a, b, ...)
 * expands to do(a), do(b), ... */
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

/* ARGUMENTS_TAKEN(name) is the initialiser of an Arguments_name from the parameters of a function
 * with the op's parameters. */
#define TAKEN(name) .name = name
#define ARGUMENTS_TAKEN(name)                                                                      \
    {                                                                                              \
        .dev = dev, LISTED(TAKEN, ARGUMENTS_##name)                                                \
    }

/* Arguments_NAME holds the arguments of one call of an op. */
#define OP(name, parameters)                                                                       \
    typedef struct {                                                                               \
        FIELDS parameters                                                                          \
    } Arguments_##name;
#define OP_WITHOUT_CUDA OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

#endif
