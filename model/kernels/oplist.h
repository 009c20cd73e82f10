/* oplist.h -- the list of all ops as a macro: one row OP(name, (arguments)) per op. The tables of
 * function pointers, the names and the dispatch in ops.c are generated from it; the contracts are
 * in ops.h. To add an op, add a row here, the names of its arguments in op_arguments.h, a contract
 * and a checking function in ops.{h,c}, a rule in op_cost.c if it reads or writes a tensor more or
 * less than once, a CPU implementation, and a case in op_cases.c with its oracle.
 *
 * A CUDA implementation may follow later. Until then the row is OP_WITHOUT_CUDA(name, (arguments)),
 * and the CUDA table holds NULL for the op. A run on CUDA that needs the op then ends at its start
 * with an error message that names the op and the device. A file that includes this list defines
 * both macros before and undefines them after. */
OP(fill, (Device * dev, Tensor x, double value))
OP(copy, (Device * dev, Tensor y, Tensor x))
OP(add, (Device * dev, Tensor y, Tensor a, Tensor b))
OP(sum, (Device * dev, Tensor dst, const Tensor *src, int n))
OP(maximum, (Device * dev, Tensor dst, const Tensor *src, int n))
OP(column_sum, (Device * dev, Tensor columns, Tensor x))
OP(normal, (Device * dev, Tensor x, uint64_t seed, const Segment *part, double std))
OP(token_forward, (Device * dev, Tensor x, Tensor table, Tensor tokens, int64_t first_row))
OP(token_backward,
   (Device * dev, Tensor dtable, Tensor dx, Tensor tokens, int64_t first_row, bool accumulate))
OP(position_add, (Device * dev, Tensor x, Tensor table, Tensor positions))
OP(position_backward, (Device * dev, Tensor dtable, Tensor dx, Tensor positions, bool accumulate))
OP(norm_forward, (Device * dev, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, Norm norm))
OP(residual_norm_forward, (Device * dev, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor a,
                           Tensor bias, Tensor w, Tensor b, Norm norm))
OP(norm_backward,
   (Device * dev, Tensor dx, bool accumulate_dx, Tensor columns, Tensor dw, Tensor db,
    bool accumulate, Tensor dy, Tensor x, Tensor stats, Tensor w, Norm norm))
OP(bias_residual, (Device * dev, Tensor y, Tensor a, Tensor bias, Tensor x))
OP(linear_forward,
   (Device * dev, Tensor y, Tensor x, Tensor w, Tensor bias, Epilogue epilogue, Tensor pre))
OP(linear_residual_forward,
   (Device * dev, Tensor y, Tensor x, Tensor w, Tensor bias, Tensor residual))
OP(linear_backward_input,
   (Device * dev, Tensor dx, Tensor dy, Tensor w, Epilogue epilogue, Tensor pre, bool accumulate))
OP(linear_backward_weight,
   (Device * dev, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor columns, bool accumulate))
OP(activation_forward, (Device * dev, Tensor y, Tensor x, ActivationKind kind))
OP(activation_backward, (Device * dev, Tensor dx, Tensor dy, Tensor x, ActivationKind kind))
OP(rope, (Device * dev, Tensor x, Tensor table, Tensor positions, bool inverse))
OP(attention_forward, (Device * dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                       Attention attention, Tensor first_key))
OP(attention_backward,
   (Device * dev, const AttentionTensors *t, bool accumulate, Attention attention))
OP(loss, (Device * dev, Tensor losses, Tensor logits, Tensor targets, int64_t vocab_size,
          Tensor scale, bool backward))
OP(loss_max, (Device * dev, Tensor most, Tensor logits, int64_t first_col, int64_t vocab_size))
OP(loss_terms, (Device * dev, Tensor terms, Tensor logits, Tensor targets, Tensor most,
                int64_t first_col, int64_t vocab_size))
OP(loss_finish, (Device * dev, Tensor losses, Tensor logits, Tensor targets, Tensor most,
                 Tensor terms, int64_t first_col, int64_t vocab_size, Tensor scale, bool backward))
OP(loss_sum, (Device * dev, Tensor stats, Tensor losses, Tensor targets))
OP(sq_norm, (Device * dev, Tensor stats, const Tensor *x, int n))
OP(hash, (Device * dev, Tensor sum, Tensor x, int64_t first))
OP(step_decide, (Device * dev, StepState *state, StepStats *stats, StepDecision *decision,
                 Tensor lr_table, const StepConstants *constants))
OP(adamw, (Device * dev, const UpdateRange *range, int n, const StepDecision *decision,
           const AdamW *hyper))
OP(sgd,
   (Device * dev, const UpdateRange *range, int n, const StepDecision *decision, const Sgd *hyper))
