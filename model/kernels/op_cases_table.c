/* op_cases_table.c -- the lists of cases: odd ones to check, and those of a GPT-2 124M step (B 1, T
 * 1024) to time. */
#include "model/kernels/op_cases.h"

#define ATTENTION(h, g, d, offset)                                                                 \
    {                                                                                              \
        .heads = (h), .kv_heads = (g), .head_size = (d), .causal_offset = (offset), .scale = 0.35  \
    }

static const OpCase check_cases[] = {
    {OP_fill, .n = 1, .cols = 1, .value = 0.1},
    {OP_fill, .n = 3, .cols = 17, .value = -2.75},
    {OP_fill, .n = 5, .cols = 131, .value = 0},
    {OP_copy, .n = 1, .cols = 1},
    {OP_copy, .n = 7, .cols = 33},
    {OP_copy, .n = 40, .cols = 67},
    {OP_add, .n = 1, .cols = 1},
    {OP_add, .n = 9, .cols = 31},
    {OP_add, .n = 6, .cols = 65, .alias = 1},
    {OP_add, .n = 3, .cols = 17, .alias = 2},
    {OP_sum, .n = 1, .groups = 1},
    {OP_sum, .n = 1031, .groups = 1, .alias = 1},
    {OP_sum, .n = 17, .groups = 2},
    {OP_sum, .n = 1027, .groups = 2, .option = true},
    {OP_sum, .n = 1032, .groups = 3, .alias = 3},
    {OP_sum, .n = 333, .groups = 8, .alias = 2},
    {OP_sum, .n = 2056, .groups = 11},
    {OP_sum, .n = 515, .groups = 11, .option = true},
    {OP_normal, .n = 1, .part = {.stream = 7}, .value = 0.02},
    {OP_normal, .n = 1029, .part = {7, 0, 17, 0, 0}, .value = 1},
    {OP_normal, .n = 300, .part = {7, -1, (int64_t)1 << 33, 0, 0}, .value = 0.02},
    /* Columns of a parameter, begun within a row: in rows shorter and longer than a kernel's step,
     * of odd and even numbers of elements; one column alone. */
    {OP_normal, .n = 701, .part = {7, -5, 9, 7, 21}, .value = 1},
    {OP_normal, .n = 1200, .part = {(uint64_t)7 << 40, -601, 602, 600, 1202}, .value = 0.02},
    {OP_normal, .n = 33, .part = {7, 0, 4, 1, 5}, .value = 1},
    {OP_token_forward, .n = 1, .cols = 1, .table = 1},
    {OP_token_forward, .n = 33, .cols = 17, .table = 11, .first = 5},
    {OP_token_forward, .n = 5, .cols = 40, .table = 70},
    {OP_token_backward, .n = 1, .cols = 1, .table = 1},
    {OP_token_backward, .n = 3, .cols = 3, .table = 17, .accumulate = true},
    {OP_token_backward, .n = 133, .cols = 37, .table = 11, .first = 5},
    {OP_token_backward, .n = 133, .cols = 37, .table = 11, .first = 5, .accumulate = true},
    {OP_token_backward, .n = 2000, .cols = 8, .table = 3},
    {OP_position_add, .n = 1, .cols = 1, .table = 1},
    {OP_position_add, .n = 21, .cols = 35, .table = 8},
    {OP_position_backward, .n = 1, .cols = 1, .table = 1},
    {OP_position_backward, .n = 65, .cols = 19, .table = 9},
    {OP_position_backward, .n = 65, .cols = 19, .table = 9, .accumulate = true},

    {OP_norm_forward, .n = 1, .cols = 1, .bias = true},
    {OP_norm_forward, .n = 3, .cols = 17, .bias = true},
    {OP_norm_forward, .n = 19, .cols = 131, .bias = true, .alias = 1},
    {OP_norm_forward, .n = 5, .cols = 48, .groups = 3},
    {OP_norm_forward, .n = 1, .cols = 3, .norm = NORM_RMSNORM},
    {OP_norm_forward, .n = 17, .cols = 67, .norm = NORM_RMSNORM},
    {OP_norm_forward, .n = 9, .cols = 60, .groups = 4, .norm = NORM_RMSNORM, .alias = 1},
    {OP_norm_forward, .n = 21, .cols = 768, .bias = true},
    {OP_norm_forward, .n = 7, .cols = 768, .groups = 12, .norm = NORM_RMSNORM},
    {OP_norm_forward, .n = 2, .cols = 8200, .bias = true},
    {OP_residual_norm_forward, .n = 1, .cols = 3, .bias = true},
    {OP_residual_norm_forward, .n = 17, .cols = 35, .bias = true, .alias = 1},
    {OP_residual_norm_forward, .n = 5, .cols = 129, .norm = NORM_RMSNORM},
    {OP_residual_norm_forward, .n = 5, .cols = 64, .norm = NORM_RMSNORM, .alias = 1},
    {OP_residual_norm_forward, .n = 2, .cols = 1600, .bias = true},
    {OP_norm_backward, .n = 1, .cols = 3, .bias = true},
    {OP_norm_backward, .n = 21, .cols = 17, .bias = true, .accumulate = true, .accumulate_dx = true,
     .option = true},
    {OP_norm_backward, .n = 7, .cols = 131, .bias = true, .alias = 1, .option = true},
    {OP_norm_backward, .n = 130, .cols = 20, .accumulate_dx = true},
    {OP_norm_backward, .n = 6, .cols = 48, .groups = 3, .accumulate = true, .alias = 1},
    {OP_norm_backward, .n = 1, .cols = 3, .norm = NORM_RMSNORM},
    {OP_norm_backward, .n = 35, .cols = 67, .norm = NORM_RMSNORM, .accumulate = true,
     .accumulate_dx = true, .option = true},
    {OP_norm_backward, .n = 9, .cols = 60, .groups = 4, .norm = NORM_RMSNORM, .alias = 1},
    {OP_norm_backward, .n = 21, .cols = 768, .bias = true},
    {OP_norm_backward, .n = 19, .cols = 768, .bias = true, .accumulate = true,
     .accumulate_dx = true, .option = true},
    {OP_norm_backward, .n = 7, .cols = 768, .groups = 12, .norm = NORM_RMSNORM},
    {OP_norm_backward, .n = 300, .cols = 260, .bias = true, .accumulate = true, .option = true},
    {OP_norm_backward, .n = 2, .cols = 2056, .bias = true, .option = true},
    {OP_norm_backward, .n = 3, .cols = 6001, .norm = NORM_RMSNORM, .option = true},
    {OP_norm_backward, .n = 2, .cols = 2056, .bias = true, .accumulate = true,
     .accumulate_dx = true, .option = true},
    {OP_bias_residual, .n = 1, .cols = 1, .bias = true},
    {OP_bias_residual, .n = 17, .cols = 33, .bias = true, .alias = 1},
    {OP_bias_residual, .n = 4, .cols = 19, .bias = true, .alias = 2},
    {OP_bias_residual, .n = 3, .cols = 70},

    {OP_linear_forward, .n = 1, .cols = 1, .outputs = 1},
    {OP_linear_forward, .n = 3, .cols = 17, .outputs = 5, .bias = true},
    {OP_linear_forward, .n = 17, .cols = 3, .outputs = 33, .bias = true, .epilogue = EPILOGUE_GELU},
    {OP_linear_forward, .n = 37, .cols = 67, .outputs = 131, .bias = true,
     .epilogue = EPILOGUE_GELU, .option = true},
    {OP_linear_forward, .n = 65, .cols = 300, .outputs = 29, .epilogue = EPILOGUE_GELU,
     .option = true},
    {OP_linear_forward, .n = 1, .cols = 129, .outputs = 70, .bias = true},
    /* Rows of pre in packs of 8, as cuBLASLt wants them, and others. */
    {OP_linear_forward, .n = 1, .cols = 1, .outputs = 1, .bias = true,
     .epilogue = EPILOGUE_GELU_OF_SUM, .option = true},
    {OP_linear_forward, .n = 17, .cols = 3, .outputs = 33, .bias = true,
     .epilogue = EPILOGUE_GELU_OF_SUM},
    {OP_linear_forward, .n = 3, .cols = 40, .outputs = 24, .epilogue = EPILOGUE_GELU_OF_SUM},
    {OP_linear_forward, .n = 37, .cols = 64, .outputs = 136, .bias = true,
     .epilogue = EPILOGUE_GELU_OF_SUM, .option = true},
    {OP_linear_forward, .n = 37, .cols = 67, .outputs = 133, .bias = true,
     .epilogue = EPILOGUE_GELU_OF_SUM, .option = true},
    {OP_linear_forward, .n = 65, .cols = 300, .outputs = 64, .epilogue = EPILOGUE_GELU_OF_SUM,
     .option = true},
    {OP_linear_backward_input, .n = 1, .cols = 1, .outputs = 1},
    {OP_linear_backward_input, .n = 3, .cols = 17, .outputs = 5},
    {OP_linear_backward_input, .n = 37, .cols = 67, .outputs = 131, .epilogue = EPILOGUE_GELU},
    {OP_linear_backward_input, .n = 65, .cols = 29, .outputs = 300},
    {OP_linear_backward_weight, .n = 1, .cols = 1, .outputs = 1, .bias = true},
    {OP_linear_backward_weight, .n = 17, .cols = 3, .outputs = 5, .bias = true, .accumulate = true},
    {OP_linear_backward_weight, .n = 131, .cols = 37, .outputs = 67, .bias = true},
    {OP_linear_backward_weight, .n = 300, .cols = 65, .outputs = 29, .accumulate = true},
    {OP_linear_backward_weight, .n = 1300, .cols = 8, .outputs = 264, .bias = true},
    {OP_linear_backward_weight, .n = 5, .cols = 3, .outputs = 600, .bias = true, .option = true},
    {OP_linear_backward_weight, .n = 19, .cols = 7, .outputs = 35, .bias = true, .accumulate = true,
     .option = true},

    {OP_activation_forward, .n = 1, .cols = 1},
    {OP_activation_forward, .n = 5, .cols = 67},
    {OP_activation_forward, .n = 3, .cols = 33, .activation = ACTIVATION_RELU2},
    {OP_activation_forward, .n = 1, .cols = 3, .activation = ACTIVATION_SWIGLU},
    {OP_activation_forward, .n = 7, .cols = 65, .activation = ACTIVATION_SWIGLU},
    {OP_activation_backward, .n = 1, .cols = 3},
    {OP_activation_backward, .n = 5, .cols = 67, .alias = 1},
    {OP_activation_backward, .n = 3, .cols = 33, .activation = ACTIVATION_RELU2, .alias = 1},
    {OP_activation_backward, .n = 17, .cols = 19, .activation = ACTIVATION_RELU2},
    {OP_activation_backward, .n = 7, .cols = 65, .activation = ACTIVATION_SWIGLU},
    {OP_activation_backward, .n = 7, .cols = 33, .activation = ACTIVATION_SWIGLU, .alias = 2},

    {OP_rope, .n = 1, .cols = 2, .groups = 1, .table = 1},
    {OP_rope, .n = 17, .cols = 42, .groups = 3, .table = 9},
    {OP_rope, .n = 9, .cols = 192, .groups = 2, .table = 33, .option = true},
    {OP_rope, .n = 17, .cols = 256, .groups = 4, .table = 33},

    {OP_attention_forward, .batch = 1, .tq = 1, .tk = 1, .attention = ATTENTION(1, 1, 1, 0)},
    {OP_attention_forward, .batch = 2, .tq = 17, .tk = 17, .attention = ATTENTION(3, 3, 5, 0)},
    {OP_attention_forward, .batch = 1, .tq = 67, .tk = 67, .attention = ATTENTION(4, 2, 16, 0)},
    {OP_attention_forward, .batch = 2, .tq = 131, .tk = 131, .attention = ATTENTION(2, 1, 24, 0),
     .option = true},
    {OP_attention_forward, .batch = 1, .tq = 3, .tk = 20, .attention = ATTENTION(6, 3, 8, 17)},
    {OP_attention_forward, .batch = 2, .tq = 1, .tk = 70, .attention = ATTENTION(4, 1, 64, 69)},
    {OP_attention_forward, .batch = 2, .tq = 9, .tk = 5, .attention = ATTENTION(2, 2, 7, 9)},
    {OP_attention_forward, .batch = 1, .tq = 5, .tk = 33, .attention = ATTENTION(2, 2, 33, 4)},
    {OP_attention_forward, .batch = 1, .tq = 261, .tk = 261, .attention = ATTENTION(2, 1, 8, 0),
     .option = true},
    {OP_attention_backward, .batch = 1, .tq = 1, .tk = 1, .attention = ATTENTION(1, 1, 1, 0)},
    {OP_attention_backward, .batch = 2, .tq = 17, .tk = 17, .attention = ATTENTION(3, 3, 5, 0),
     .accumulate = true},
    {OP_attention_backward, .batch = 1, .tq = 67, .tk = 67, .attention = ATTENTION(4, 2, 16, 0)},
    {OP_attention_backward, .batch = 2, .tq = 131, .tk = 131, .attention = ATTENTION(2, 1, 24, 0),
     .option = true, .accumulate = true},
    {OP_attention_backward, .batch = 1, .tq = 3, .tk = 20, .attention = ATTENTION(6, 3, 8, 17)},
    {OP_attention_backward, .batch = 1, .tq = 5, .tk = 33, .attention = ATTENTION(2, 2, 33, 4)},
    {OP_attention_backward, .batch = 2, .tq = 9, .tk = 5, .attention = ATTENTION(2, 2, 7, 9)},
    {OP_attention_backward, .batch = 1, .tq = 261, .tk = 261, .attention = ATTENTION(2, 1, 8, 0)},
    {OP_attention_forward, .batch = 1, .tq = 65, .tk = 65, .attention = ATTENTION(2, 1, 32, 0)},
    {OP_attention_backward, .batch = 1, .tq = 65, .tk = 65, .attention = ATTENTION(2, 1, 32, 0)},
    {OP_attention_forward, .batch = 1, .tq = 131, .tk = 131, .attention = ATTENTION(2, 1, 64, 0),
     .option = true},
    {OP_attention_backward, .batch = 1, .tq = 131, .tk = 131, .attention = ATTENTION(2, 1, 64, 0),
     .option = true},
    {OP_attention_forward, .batch = 1, .tq = 40, .tk = 140, .attention = ATTENTION(2, 1, 56, 100)},
    {OP_attention_backward, .batch = 1, .tq = 40, .tk = 140, .attention = ATTENTION(2, 1, 56, 100)},
    {OP_attention_forward, .batch = 1, .tq = 67, .tk = 67, .attention = ATTENTION(2, 2, 96, 0)},
    {OP_attention_backward, .batch = 1, .tq = 67, .tk = 67, .attention = ATTENTION(2, 2, 96, 0)},
    {OP_attention_forward, .batch = 1, .tq = 131, .tk = 131, .attention = ATTENTION(2, 1, 128, 0),
     .option = true},
    {OP_attention_backward, .batch = 1, .tq = 131, .tk = 131, .attention = ATTENTION(2, 1, 128, 0),
     .option = true},
    {OP_attention_forward, .batch = 1, .tq = 67, .tk = 67, .attention = ATTENTION(1, 1, 192, 0)},
    {OP_attention_backward, .batch = 1, .tq = 67, .tk = 67, .attention = ATTENTION(1, 1, 192, 0)},
    {OP_attention_forward, .batch = 1, .tq = 67, .tk = 67, .attention = ATTENTION(2, 1, 256, 0),
     .option = true},
    {OP_attention_backward, .batch = 1, .tq = 67, .tk = 67, .attention = ATTENTION(2, 1, 256, 0),
     .option = true},

    {OP_loss, .n = 1, .cols = 1, .vocab_size = 1, .value = 1},
    {OP_loss, .n = 3, .cols = 17, .vocab_size = 17, .value = 1, .option = true},
    {OP_loss, .n = 9, .cols = 40, .vocab_size = 31, .value = 2, .option = true},
    {OP_loss, .n = 5, .cols = 40, .vocab_size = 31, .value = 2},
    {OP_loss, .n = 65, .cols = 640, .vocab_size = 601, .value = 3, .option = true},
    {OP_loss_sum, .n = 1},
    {OP_loss_sum, .n = 997},

    {OP_sq_norm, .n = 1},
    {OP_sq_norm, .n = 17},
    {OP_sq_norm, .n = 3 * SQ_NORM_BLOCK + 5},
    {OP_adamw, .n = 1},
    {OP_adamw, .n = 1031, .option = true},
    {OP_adamw, .n = 67, .variant = true},
    {OP_adamw, .n = 67, .variant = true, .option = true},
    {OP_adamw, .n = 1, .stochastic = true},
    {OP_adamw, .n = 1028, .stochastic = true},
    {OP_adamw, .n = 67, .variant = true, .stochastic = true},
    {OP_sgd, .n = 1},
    {OP_sgd, .n = 1031, .option = true, .value = 0.9},
    {OP_sgd, .n = 67, .value = 0.9, .variant = true},
    {OP_sgd, .n = 67, .option = true},
    {OP_sgd, .n = 1028, .value = 0.9, .stochastic = true},
    {OP_sgd, .n = 67, .stochastic = true},

    /* Large enough to be cut among threads, and longer than the kernels' inner blocks. */
    {OP_fill, .n = 131, .cols = 1031, .value = 0.3},
    {OP_copy, .n = 131, .cols = 1031},
    {OP_add, .n = 131, .cols = 1031},
    {OP_sum, .n = 135001, .groups = 4},
    {OP_normal, .n = 20011, .part = {7, -3, 0, 96, 192}, .value = 1},
    {OP_token_forward, .n = 131, .cols = 1031, .table = 60, .first = 4},
    {OP_token_backward, .n = 131, .cols = 1031, .table = 60, .first = 4},
    {OP_token_backward, .n = 2111, .cols = 65, .table = 17, .accumulate = true},
    {OP_position_add, .n = 131, .cols = 1031, .table = 40},
    {OP_position_backward, .n = 131, .cols = 1031, .table = 40, .accumulate = true},
    {OP_norm_forward, .n = 131, .cols = 1031, .bias = true},
    {OP_norm_forward, .n = 517, .cols = 258, .groups = 6, .norm = NORM_RMSNORM},
    {OP_residual_norm_forward, .n = 131, .cols = 1031, .bias = true},
    {OP_norm_backward, .n = 131, .cols = 1031, .bias = true, .accumulate = true, .option = true},
    {OP_norm_backward, .n = 517, .cols = 258, .groups = 6, .norm = NORM_RMSNORM,
     .accumulate_dx = true},
    {OP_bias_residual, .n = 131, .cols = 1031, .bias = true},
    {OP_linear_forward, .n = 263, .cols = 521, .outputs = 389, .bias = true,
     .epilogue = EPILOGUE_GELU, .option = true},
    {OP_linear_forward, .n = 131, .cols = 264, .outputs = 392, .bias = true,
     .epilogue = EPILOGUE_GELU_OF_SUM, .option = true},
    {OP_linear_backward_input, .n = 263, .cols = 389, .outputs = 521, .epilogue = EPILOGUE_GELU},
    {OP_linear_backward_weight, .n = 521, .cols = 263, .outputs = 389, .bias = true,
     .accumulate = true},
    {OP_activation_forward, .n = 131, .cols = 1031},
    {OP_activation_backward, .n = 67, .cols = 1031, .activation = ACTIVATION_SWIGLU},
    {OP_rope, .n = 259, .cols = 480, .groups = 5, .table = 259},
    {OP_attention_forward, .batch = 1, .tq = 33, .tk = 1100,
     .attention = ATTENTION(4, 2, 16, 1067)},
    {OP_attention_forward, .batch = 1, .tq = 597, .tk = 597, .attention = ATTENTION(2, 1, 24, 0),
     .option = true},
    {OP_attention_backward, .batch = 1, .tq = 33, .tk = 1100,
     .attention = ATTENTION(4, 2, 16, 1067)},
    {OP_attention_backward, .batch = 1, .tq = 597, .tk = 597, .attention = ATTENTION(2, 1, 24, 0),
     .option = true, .accumulate = true},
    {OP_loss, .n = 67, .cols = 2176, .vocab_size = 2053, .value = 2, .option = true},
    {OP_sq_norm, .n = 40 * SQ_NORM_BLOCK + 5},
    {OP_adamw, .n = 135001, .option = true},
    {OP_sgd, .n = 135001, .value = 0.9},
    {OP_adamw, .n = 70000, .stochastic = true},
};

static const OpCase bench_cases[] = {
    {OP_fill, .n = 1024, .cols = 3072, .value = 1},
    {OP_copy, .n = 1024, .cols = 3072},
    {OP_add, .n = 1024, .cols = 3072},
    {OP_sum, .n = 1 << 22, .groups = 2, .alias = 1},
    {OP_sum, .n = 1 << 22, .groups = 8},
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
    {OP_attention_backward, .batch = 4, .tq = 64, .tk = 64, .attention = ATTENTION(12, 12, 64, 0)},
    {OP_attention_backward, .batch = 1, .tq = 1024, .tk = 1024,
     .attention = ATTENTION(12, 12, 64, 0)},
    {OP_loss, .n = 128, .cols = 50304, .vocab_size = 50257, .value = 2, .option = true},
    {OP_loss_sum, .n = 1024},
    {OP_sq_norm, .n = 1 << 23},
    {OP_adamw, .n = 1 << 23},
    {OP_adamw, .n = 1 << 23, .stochastic = true},
    {OP_sgd, .n = 1 << 23, .value = 0.9, .stochastic = true},
    {OP_sgd, .n = 1 << 23, .value = 0.9},
};

int op_cases_check(const OpCase **cases)
{
    *cases = check_cases;
    return (int)(sizeof check_cases / sizeof check_cases[0]);
}

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
    case OP_normal:
    case OP_sq_norm:
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
