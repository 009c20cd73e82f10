/* op_cases_run.c -- calls the op of a case, and computes the case's cost and its description. */
#include "model/core/check.h"
#include "model/core/min_max.h"
#include "model/kernels/op_cases.h"

#include <stdio.h>

DType op_case_dtype(TypeClass type, DType storage, DType grad)
{
    switch (type) {
    case TYPE_STORAGE: return storage;
    case TYPE_COMPUTE: return dtype_compute(storage);
    case TYPE_GRAD: return grad;
    case TYPE_I32: return I32;
    case TYPE_I64: return I64;
    default: return F64;
    }
}

StepDecision op_case_decision(void)
{
    return (StepDecision){.apply = 1, .update = 3, .lr = 0.01, .grad_scale = 0.25};
}

AdamW op_case_adamw(const OpCase *c)
{
    return (AdamW){.beta1 = 0.9,
                   .beta2 = 0.95,
                   .epsilon = 1e-8,
                   .weight_decay = 0.1,
                   .decoupled = !c->variant,
                   .bias_correction = !c->variant};
}

Sgd op_case_sgd(const OpCase *c)
{
    return (Sgd){.momentum = c->value,
                 .dampening = c->variant || c->value == 0 ? 0 : 0.25,
                 .weight_decay = 0.1,
                 .nesterov = c->variant};
}

int64_t op_bench_segment_word(const OpCase *c, int64_t word)
{
    const int64_t segment = word / SEGMENT_WORDS, share = c->n / CASE_SEGMENTS / 128 * 128;
    const int64_t words[5] = {11 + segment, segment * share, 0, 768, 768};
    return words[word % SEGMENT_WORDS];
}

DType op_case_grad(const OpCase *c, DType storage)
{
    return c->stochastic ? storage : dtype_compute(storage);
}

static void run_optimizer(Device *dev, const OpCase *c, const Tensor t[],
                          const StepDecision *decision)
{
    AdamW adamw = op_case_adamw(c);
    Sgd sgd = op_case_sgd(c);
    UpdateRange range = {.weight = t[0], .grad = t[1], .master = t[2], .slot = {t[3]}};
    if (c->op == OP_adamw) range.slot[1] = t[4];
    if (c->stochastic || c->moments)
        range.rounding = (Rounding){.seed = CASE_SEED, .segments = t[c->op == OP_adamw ? 5 : 4]};
    switch (c->op) {
    case OP_sq_norm: op_sq_norm(dev, t[0], &t[1], 1); break;
    case OP_hash: op_hash(dev, t[0], t[1], 0); break;
    case OP_adamw: op_adamw(dev, &range, 1, decision, &adamw); break;
    default: op_sgd(dev, &range, 1, decision, &sgd); break;
    }
}

static void run_matrix(Device *dev, const OpCase *c, const Tensor t[])
{
    const Attention *a = &c->attention;
    switch (c->op) {
    case OP_linear_forward:
        op_linear_forward(dev, t[0], t[1], t[2], t[3], c->epilogue, t[4]);
        break;
    case OP_linear_residual_forward:
        op_linear_residual_forward(dev, t[0], t[1], t[2], t[3], t[4]);
        break;
    case OP_linear_backward_input:
        op_linear_backward_input(dev, t[0], t[1], t[2], c->epilogue, t[3], c->accumulate);
        break;
    case OP_linear_backward_weight:
        op_linear_backward_weight(dev, t[0], t[1], t[2], t[3], t[4], c->accumulate);
        break;
    case OP_attention_forward:
        op_attention_forward(dev, t[0], t[1], t[2], t[3], t[4], *a, t[5]);
        break;
    default:
        op_attention_backward(dev,
                              &(AttentionTensors){t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7],
                                                  t[8], t[9], t[10], t[11], t[12],
                                                  c->accumulate_db},
                              c->accumulate, *a);
        break;
    }
}

static void run_norm(Device *dev, const OpCase *c, const Tensor t[])
{
    Norm norm = {.kind = c->norm, .epsilon = 1e-5};
    switch (c->op) {
    case OP_norm_forward: op_norm_forward(dev, t[0], t[1], t[2], t[3], t[4], norm); break;
    case OP_residual_norm_forward:
        op_residual_norm_forward(dev, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], norm);
        break;
    default:
        op_norm_backward(dev, t[0], c->accumulate_dx, t[1], t[2], t[3], c->accumulate, t[4], t[5],
                         t[6], t[7], norm);
        break;
    }
}

static void run_loss(Device *dev, const OpCase *c, const Tensor t[])
{
    int64_t first = c->first, size = c->vocab_size;
    switch (c->op) {
    case OP_loss: op_loss(dev, t[0], t[1], t[2], size, t[3], c->option); break;
    case OP_loss_max: op_loss_max(dev, t[0], t[1], first, size); break;
    case OP_loss_terms: op_loss_terms(dev, t[0], t[1], t[2], t[3], first, size); break;
    case OP_loss_finish:
        op_loss_finish(dev, t[0], t[1], t[2], t[3], t[4], first, size, t[5], c->option);
        break;
    default: op_loss_sum(dev, t[0], t[1], t[2]); break;
    }
}

void op_case_run(Device *dev, const OpCase *c, const Tensor t[CASE_OPERANDS],
                 const StepDecision *decision)
{
    /* The tensors are in the order in which op_case_operands describes them. */
    switch (c->op) {
    case OP_fill: op_fill(dev, t[0], c->value); break;
    case OP_copy: op_copy(dev, t[0], t[1]); break;
    case OP_add: op_add(dev, t[0], t[1], t[2]); break;
    case OP_sum: op_sum(dev, t[0], t + 1, (int)c->groups); break;
    case OP_maximum: op_maximum(dev, t[0], t + 1, (int)c->groups); break;
    case OP_column_sum: op_column_sum(dev, t[0], t[1]); break;
    /* Any seed will do, as long as the oracle draws from the same one. */
    case OP_normal: op_normal(dev, t[0], 42, &c->part, c->value); break;
    case OP_token_forward: op_token_forward(dev, t[0], t[1], t[2], c->first); break;
    case OP_token_backward:
        op_token_backward(dev, t[0], t[1], t[2], c->first, c->accumulate);
        break;
    case OP_position_add: op_position_add(dev, t[0], t[1], t[2]); break;
    case OP_position_backward: op_position_backward(dev, t[0], t[1], t[2], c->accumulate); break;
    case OP_norm_forward:
    case OP_residual_norm_forward:
    case OP_norm_backward: run_norm(dev, c, t); break;
    case OP_bias_residual: op_bias_residual(dev, t[0], t[1], t[2], t[3]); break;
    case OP_activation_forward: op_activation_forward(dev, t[0], t[1], c->activation); break;
    case OP_activation_backward:
        op_activation_backward(dev, t[0], t[1], t[2], c->activation);
        break;
    case OP_rope: op_rope(dev, t[0], t[1], t[2], c->option); break;
    case OP_loss:
    case OP_loss_max:
    case OP_loss_terms:
    case OP_loss_finish:
    case OP_loss_sum: run_loss(dev, c, t); break;
    case OP_sq_norm:
    case OP_hash:
    case OP_adamw:
    case OP_sgd: run_optimizer(dev, c, t, decision); break;
    default: run_matrix(dev, c, t); break;
    }
}

/* Returns whether indices select rows of this operand: then at most one row per index is read, or
 * read and written. */
static bool is_picked(const OpCase *c, int operand)
{
    switch (c->op) {
    case OP_token_forward:
    case OP_position_add:
    case OP_rope: return operand == 1;
    case OP_token_backward:
    case OP_position_backward: return operand == 0 && c->accumulate;
    default: return false;
    }
}

double op_case_bytes(const OpCase *c, DType storage, DType grad)
{
    OperandSpec spec[CASE_OPERANDS];
    int count = op_case_operands(c, spec);
    double bytes = 0;
    for (int i = 0; i < count; i++) {
        if (spec[i].role == ROLE_ABSENT) continue;
        if (is_picked(c, i)) spec[i].dim[0] = min_i64(spec[i].dim[0], c->n);
        double n = 1;
        for (int d = 0; d < spec[i].ndim; d++)
            n *= (double)spec[i].dim[d];
        double size = (double)dtype_size(op_case_dtype(spec[i].type, storage, grad));
        bytes += n * size * (spec[i].role == ROLE_UPDATE ? 2 : 1);
    }
    return bytes;
}

double op_case_flops(const OpCase *c)
{
    switch (c->op) {
    case OP_linear_forward:
    case OP_linear_residual_forward:
    case OP_linear_backward_input:
    case OP_linear_backward_weight:
        return 2.0 * (double)c->n * (double)c->cols * (double)c->outputs;
    case OP_attention_forward:
    case OP_attention_backward: {
        const Attention *a = &c->attention;
        double seen = 0;
        for (int64_t t = 0; t < c->tq; t++)
            seen += (double)(t + a->causal_offset < c->tk ? t + a->causal_offset + 1 : c->tk);
        /* Two matrix multiplications forward; five backward, one of which recomputes the scores. */
        double products = c->op == OP_attention_forward ? 2 : 5;
        return 2 * products * seen * (double)(c->batch * a->heads * a->head_size);
    }
    default: return 0;
    }
}

const char *op_case_describe(const OpCase *c, char *buf, size_t n)
{
    static const char *const norm[] = {"layernorm", "rmsnorm"};
    static const char *const activation[] = {"gelu", "relu2", "swiglu"};
    static const char *const epilogue[] = {"", " +gelu", " +gelu of sum"};
    const Attention *a = &c->attention;
    bool is_norm = c->op >= OP_norm_forward && c->op <= OP_norm_backward;
    bool is_activation = c->op == OP_activation_forward || c->op == OP_activation_backward;
    int k = snprintf(buf, n, "%s", op_name[c->op]);
    if (c->batch)
        k += snprintf(buf + k, n - (size_t)k, " B%lld Tq%lld Tk%lld H%lld G%lld D%lld off%lld",
                      (long long)c->batch, (long long)c->tq, (long long)c->tk, (long long)a->heads,
                      (long long)a->kv_heads, (long long)a->head_size, (long long)a->causal_offset);
    else
        k += snprintf(buf + k, n - (size_t)k, " %lldx%lld", (long long)c->n, (long long)c->cols);
    if (c->outputs) k += snprintf(buf + k, n - (size_t)k, "x%lld", (long long)c->outputs);
    if (c->table) k += snprintf(buf + k, n - (size_t)k, " table %lld", (long long)c->table);
    if (c->groups) k += snprintf(buf + k, n - (size_t)k, " K%lld", (long long)c->groups);
    if (c->vocab_size) k += snprintf(buf + k, n - (size_t)k, " V%lld", (long long)c->vocab_size);
    if (c->first) k += snprintf(buf + k, n - (size_t)k, " from %lld", (long long)c->first);
    snprintf(buf + k, n - (size_t)k, "%s%s%s%s%s%s%s%s%s%s%s", is_norm ? " " : "",
             is_norm ? norm[c->norm] : "", is_activation ? " " : "",
             is_activation ? activation[c->activation] : "", epilogue[c->epilogue],
             c->accumulate ? " +=" : "",
             c->accumulate_db ? " bias +="
             : c->bias        ? " bias"
                              : "",
             c->option ? " option" : "", c->alias ? " in place" : "",
             c->stochastic ? " stochastic" : "", c->moments ? " bf16 averages" : "");
    return buf;
}
