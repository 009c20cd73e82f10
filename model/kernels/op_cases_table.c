/* op_cases_table.c -- the cases that `./train bench ops` times: the op calls of a GPT-2 124M step
 * (B 1, T 1024). */
#include "model/kernels/op_cases.h"

#define ATTENTION(h, g, d, offset)                                                                 \
    {                                                                                              \
        .heads = (h), .kv_heads = (g), .head_size = (d), .causal_offset = (offset), .scale = 0.35  \
    }

static const OpCase bench_cases[] = {
    {OP_fill, .n = 1024, .cols = 3072, .value = 1},
    {OP_copy, .n = 1024, .cols = 3072},
    {OP_add, .n = 1024, .cols = 3072},
    {OP_sum, .n = 1 << 22, .groups = 2, .alias = 1},
    {OP_sum, .n = 1 << 22, .groups = 8},
    {OP_maximum, .n = 1 << 10, .groups = 2, .alias = 1},
    {OP_column_sum, .n = 1024, .cols = 768},
    {OP_normal, .n = 1 << 20, .value = 0.02},
    {OP_token_forward, .n = 1024, .cols = 768, .table = 50304},
    {OP_token_backward, .n = 1024, .cols = 768, .table = 50304, .accumulate = true},
    {OP_position_add, .n = 1024, .cols = 768, .table = 1024},
    {OP_position_backward, .n = 1024, .cols = 768, .table = 1024, .accumulate = true},
    {OP_norm_forward, .n = 1024, .cols = 768, .bias = true},
    {OP_norm_forward, .n = 1024, .cols = 768, .norm = NORM_RMSNORM},
    {OP_norm_forward, .n = 1024, .cols = 768, .groups = 12, .norm = NORM_RMSNORM},
    {OP_residual_norm_forward, .n = 1024, .cols = 768, .bias = true},
    {OP_norm_backward, .n = 1024, .cols = 768, .bias = true, .accumulate = true,
     .accumulate_dx = true, .option = true},
    {OP_norm_backward, .n = 1024, .cols = 768, .norm = NORM_RMSNORM, .accumulate = true,
     .accumulate_dx = true},
    {OP_bias_residual, .n = 1024, .cols = 768, .bias = true},
    {OP_linear_forward, .n = 1024, .cols = 768, .outputs = 2304, .bias = true},
    {OP_linear_forward, .n = 1024, .cols = 768, .outputs = 3072, .bias = true,
     .epilogue = EPILOGUE_GELU, .option = true},
    {OP_linear_forward, .n = 1024, .cols = 768, .outputs = 3072, .bias = true,
     .epilogue = EPILOGUE_GELU_OF_SUM, .option = true},
    {OP_linear_residual_forward, .n = 1024, .cols = 768, .outputs = 768, .bias = true},
    {OP_linear_backward_input, .n = 1024, .cols = 3072, .outputs = 768, .epilogue = EPILOGUE_GELU},
    {OP_linear_backward_weight, .n = 1024, .cols = 768, .outputs = 3072, .bias = true,
     .accumulate = true},
    {OP_activation_forward, .n = 1024, .cols = 3072},
    {OP_activation_forward, .n = 1024, .cols = 3072, .activation = ACTIVATION_RELU2},
    {OP_activation_forward, .n = 1024, .cols = 3072, .activation = ACTIVATION_SWIGLU},
    {OP_activation_backward, .n = 1024, .cols = 3072},
    {OP_activation_backward, .n = 1024, .cols = 3072, .activation = ACTIVATION_RELU2},
    {OP_activation_backward, .n = 1024, .cols = 3072, .activation = ACTIVATION_SWIGLU},
    {OP_rope, .n = 1024, .cols = 768, .groups = 12, .table = 1024},
    {OP_attention_forward, .batch = 4, .tq = 64, .tk = 64, .attention = ATTENTION(12, 12, 64, 0)},
    {OP_attention_forward, .batch = 1, .tq = 1024, .tk = 1024,
     .attention = ATTENTION(12, 12, 64, 0)},
    {OP_attention_forward, .batch = 1, .tq = 1024, .tk = 1024,
     .attention = ATTENTION(6, 6, 128, 0)}, /* heads as in larger models */
    {OP_attention_backward, .batch = 4, .tq = 64, .tk = 64, .attention = ATTENTION(12, 12, 64, 0)},
    {OP_attention_backward, .batch = 1, .tq = 1024, .tk = 1024,
     .attention = ATTENTION(12, 12, 64, 0)},
    {OP_attention_backward, .batch = 1, .tq = 1024, .tk = 1024,
     .attention = ATTENTION(12, 12, 64, 0), .bias = true, .accumulate_db = true},
    {OP_attention_backward, .batch = 1, .tq = 1024, .tk = 1024,
     .attention = ATTENTION(6, 6, 128, 0)},
    {OP_loss, .n = 128, .cols = 50304, .vocab_size = 50257, .value = 2, .option = true},
    {OP_loss_max, .n = 128, .cols = 25152, .first = 25152, .vocab_size = 50257, .value = 2},
    {OP_loss_terms, .n = 128, .cols = 25152, .first = 25152, .vocab_size = 50257, .value = 2},
    {OP_loss_finish, .n = 128, .cols = 25152, .first = 25152, .vocab_size = 50257, .value = 2,
     .option = true},
    {OP_loss_sum, .n = 1024},
    {OP_sq_norm, .n = 1 << 23},
    {OP_hash, .n = 1 << 23},
    {OP_adamw, .n = 1 << 23},
    {OP_adamw, .n = 1 << 23, .stochastic = true},
    {OP_sgd, .n = 1 << 23, .value = 0.9, .stochastic = true},
    {OP_sgd, .n = 1 << 23, .value = 0.9},
};

int op_cases_bench(const OpCase **cases)
{
    *cases = bench_cases;
    return (int)(sizeof bench_cases / sizeof bench_cases[0]);
}

enum { BENCH_TOKENS = 1024 };

static int64_t scaled(int64_t at_1024, int64_t tokens)
{
    int64_t n = at_1024 * tokens / BENCH_TOKENS;
    return n > 0 ? n : 1;
}

int64_t op_bench_scaled(int64_t at_1024, int64_t tokens)
{
    return scaled(at_1024, tokens < BENCH_TOKENS ? tokens : BENCH_TOKENS);
}

OpCase op_case_at(const OpCase *c, int64_t tokens)
{
    OpCase at = *c;
    switch (c->op) {
    case OP_sum:
    case OP_maximum:
    case OP_normal:
    case OP_sq_norm:
    case OP_hash:
    case OP_adamw:
    case OP_sgd: at.n = op_bench_scaled(c->n, tokens); break;
    case OP_attention_forward:
    case OP_attention_backward:
        at.tq = at.tk = op_bench_scaled(c->tq, tokens);
        if (tokens > BENCH_TOKENS) at.batch = scaled(c->batch, tokens);
        break;
    default:
        at.n = scaled(c->n, tokens);
        at.table = c->table > BENCH_TOKENS ? op_bench_scaled(c->table, tokens) : c->table;
    }
    return at;
}
