/* op_cases.c -- describes the operands of each op for tests and benchmarks: names, roles, types,
 * shapes, initial values and error bounds. The fields are explained in op_cases.h. */
#include "model/core/check.h"
#include "model/kernels/op_specs.h"

static int memory_operands(const OpCase *c, OperandSpec *s)
{
    OperandSpec *p = s;
    switch (c->op) {
    case OP_fill: *p++ = deep(matrix("x", ROLE_OUT, c->n, c->cols), 1, 1); break;
    case OP_copy:
        *p++ = deep(matrix("y", ROLE_OUT, c->n, c->cols), 0, 0);
        *p++ = matrix("x", ROLE_IN, c->n, c->cols);
        break;
    case OP_add:
        *p++ = deep(matrix("y", ROLE_OUT, c->n, c->cols), 1, 1);
        *p++ = matrix("a", ROLE_IN, c->n, c->cols);
        *p++ = matrix("b", ROLE_IN, c->n, c->cols);
        s[0].alias_of = c->alias ? 1 + c->alias : 0;
        break;
    case OP_maximum:
        *p++ = deep(vector("dst", ROLE_OUT, c->n), 0, 0);
        s[0].alias_of = c->alias ? 1 + c->alias : 0;
        while (p - s <= c->groups)
            *p++ = vector("src", ROLE_IN, c->n);
        break;
    case OP_column_sum:
        *p++ =
            deep(typed(vector("columns", ROLE_OUT, c->cols), TYPE_COMPUTE), 0, 1 + sum_depth(c->n));
        *p++ = matrix("x", ROLE_IN, c->n, c->cols);
        break;
    case OP_sum:
        *p++ = deep(vector("dst", ROLE_OUT, c->n), 1, 1 + sum_depth(c->groups));
        /* Sums convert from gradient to storage type or back, but a destination that is also a
         * source has the type of the sources. */
        s[0].type = c->option || c->alias ? TYPE_STORAGE : TYPE_GRAD;
        s[0].alias_of = c->alias ? 1 + c->alias : 0;
        while (p - s <= c->groups)
            *p++ = typed(vector("src", ROLE_IN, c->n), c->option ? TYPE_GRAD : TYPE_STORAGE);
        break;
    default:
        /* op_normal: the rounding error of an angle of up to 2 pi is of the order of 2 pi roundoff
         * units, hence the bound of 16. */
        *p++ = deep(vector("x", ROLE_OUT, c->n), 1, 16);
        break;
    }
    return (int)(p - s);
}

static int embedding_operands(const OpCase *c, OperandSpec *s)
{
    int64_t first = c->first > 2 ? c->first - 2 : 0;
    OperandSpec tokens = integers("tokens", c->n, first, c->first + c->table + 2),
                positions = integers("positions", c->n, 0, c->table);
    OperandSpec x = matrix("x", ROLE_OUT, c->n, c->cols),
                table = matrix("table", ROLE_IN, c->table, c->cols);
    OperandSpec dtable = matrix("dtable", output(c->accumulate), c->table, c->cols);
    dtable = deep(typed(dtable, TYPE_GRAD), 1, 1 + sum_depth(c->n));
    bool token = c->op == OP_token_forward || c->op == OP_token_backward;
    if (c->op == OP_token_forward || c->op == OP_position_add) {
        s[0] = deep(x, 1, 1);
        s[0].role = token ? ROLE_OUT : ROLE_UPDATE;
        s[1] = table;
    } else {
        s[0] = dtable;
        s[1] = matrix("dx", ROLE_IN, c->n, c->cols);
    }
    s[2] = token ? tokens : positions;
    return 3;
}

static int norm_operands(const OpCase *c, OperandSpec *s)
{
    int64_t groups = c->groups ? c->groups : 1, width = c->cols / groups;
    /* Besides the sum over a row, about 10 operations affect an element, forward or backward: mean,
     * difference, square, variance, epsilon, root, quotient, the multiplications by the quotient
     * and by w, and the addition of b. A bound of 16 leaves room for backends that use more: on
     * CUDA there are 14, because each of two means is a product with the rounded 1 / W, and a
     * reciprocal root of 2 ulp (4 roundoff errors) replaces root and quotient. */
    double depth = sum_depth(width) + 16;
    bool layernorm = c->norm == NORM_LAYERNORM;
    OperandSpec stats = shaped(vector("stats", ROLE_OUT, 1), 2, c->n * groups, 2, 0);
    stats = deep(typed(stats, TYPE_COMPUTE), 0, depth);
    OperandSpec w = vector("w", ROLE_IN, width),
                b = optional(vector("b", ROLE_IN, width), layernorm && c->bias);
    if (c->op == OP_norm_forward) {
        s[0] = deep(matrix("y", ROLE_OUT, c->n, c->cols), 1, depth);
        s[0].alias_of = c->alias ? 3 : 0;
        s[1] = stats;
        s[2] = matrix("x", ROLE_IN, c->n, c->cols);
        s[3] = w;
        s[4] = b;
        return 5;
    }
    if (c->op == OP_residual_norm_forward) {
        /* The oracle's sum is rounded to storage, too, so two roundings are allowed: one by the op
         * and one by the oracle. */
        s[0] = deep(matrix("sum", ROLE_OUT, c->n, c->cols), 2, 2);
        s[0].alias_of = c->alias ? 4 : 0;
        /* y is rounded once. Before that, op and oracle each rounded the residual sum to storage,
         * from slightly different values. Occasionally they round to two neighbouring numbers,
         * which are 2 u apart. The fourth rounding allows for weights above 1. */
        s[1] = deep(matrix("y", ROLE_OUT, c->n, c->cols), 4, depth);
        s[2] = stats;
        s[3] = matrix("x", ROLE_IN, c->n, c->cols);
        s[4] = matrix("a", ROLE_IN, c->n, c->cols);
        s[5] = optional(vector("bias", ROLE_IN, c->cols), c->bias);
        s[6] = w;
        s[7] = b;
        return 8;
    }
    s[0] = deep(matrix("dx", output(c->accumulate_dx), c->n, c->cols), 1, depth);
    s[0].alias_of = c->alias ? 5 : 0;
    s[1] = deep(typed(vector("columns", ROLE_OUT, c->cols), TYPE_COMPUTE), 0, 1 + sum_depth(c->n));
    s[1].sums_of = 1;
    s[1] = optional(s[1], c->option);
    /* A term of dw takes 3 operations and `+=` one more; the bound allows twice as many. */
    s[2] = deep(typed(vector("dw", output(c->accumulate), width), TYPE_GRAD), 1,
                sum_depth(c->n * groups) + 8);
    s[3] = s[2];
    s[3].name = "db";
    s[3] = optional(s[3], layernorm && c->bias);
    s[4] = matrix("dy", ROLE_IN, c->n, c->cols);
    s[5] = matrix("x", ROLE_IN, c->n, c->cols);
    s[6] = derived(stats, 0.5, 1.5);
    s[6].role = ROLE_IN;
    s[7] = w;
    return 8;
}

static int residual_operands(const OpCase *c, OperandSpec *s)
{
    s[0] = deep(matrix("y", ROLE_OUT, c->n, c->cols), 1, 2);
    s[0].alias_of = c->alias == 1 ? 4 : c->alias == 2 ? 2 : 0;
    s[1] = matrix("a", ROLE_IN, c->n, c->cols);
    s[2] = optional(vector("bias", ROLE_IN, c->cols), c->bias);
    s[3] = matrix("x", ROLE_IN, c->n, c->cols);
    return 4;
}

static int linear_operands(const OpCase *c, OperandSpec *s)
{
    int64_t n = c->n, i = c->cols, o = c->outputs;
    bool gelu = c->epilogue == EPILOGUE_GELU;
    switch (c->op) {
    case OP_linear_forward:
        /* EPILOGUE_GELU rounds the sum before GELU, whose slope is at most 1.13, and rounds the
         * result again. EPILOGUE_GELU_OF_SUM rounds only the result. */
        s[0] = deep(matrix("y", ROLE_OUT, n, o), gelu ? 3 : 1, 8 + 2 * sum_depth(i));
        s[1] = matrix("x", ROLE_IN, n, i);
        s[2] = matrix("w", ROLE_IN, o, i);
        s[3] = optional(vector("bias", ROLE_IN, o), c->bias);
        s[4] = optional(deep(matrix("pre", ROLE_OUT, n, o), 1, 2 + sum_depth(i)), c->option);
        return 5;
    case OP_linear_residual_forward:
        /* The product p may be rounded before the sum is: the error is u |p| + u |y|. As |p| <= |y|
         * + |bias| + |residual| <= |y| + 2, and y is of the order of 1 or more, it is at most 4 u
         * times the larger of |y| and 1. */
        s[0] = deep(matrix("y", ROLE_OUT, n, o), 4, 4 + sum_depth(i));
        s[1] = matrix("x", ROLE_IN, n, i);
        s[2] = matrix("w", ROLE_IN, o, i);
        s[3] = optional(filled(vector("bias", ROLE_IN, o), FILL_UNIFORM, -1, 1), c->bias);
        s[4] = filled(matrix("residual", ROLE_IN, n, o), FILL_UNIFORM, -1, 1);
        return 5;
    case OP_linear_backward_input:
        s[0] = matrix("dx", output(c->accumulate), n, i);
        s[0] = deep(s[0], gelu ? 3 : 1, 8 + 2 * sum_depth(o));
        s[1] = matrix("dy", ROLE_IN, n, o);
        s[2] = matrix("w", ROLE_IN, o, i);
        s[3] = optional(matrix("pre", ROLE_IN, n, i), gelu);
        return 4;
    default:
        s[0] = matrix("dw", output(c->accumulate), o, i);
        s[0] = deep(typed(s[0], TYPE_GRAD), 1, 2 + sum_depth(n));
        s[1] = vector("db", output(c->accumulate), o);
        s[1] = optional(deep(typed(s[1], TYPE_GRAD), 1, 2 + sum_depth(n)), c->bias);
        s[2] = matrix("dy", ROLE_IN, n, o);
        s[3] = matrix("x", ROLE_IN, n, i);
        /* The columns are not the column sums of dy, so the result shows whether the op used the
         * given sums or computed its own. */
        s[4] = optional(typed(vector("columns", ROLE_IN, o), TYPE_COMPUTE), c->option);
        return 5;
    }
}

static int activation_operands(const OpCase *c, OperandSpec *s)
{
    int64_t in = c->activation == ACTIVATION_SWIGLU ? 2 * c->cols : c->cols;
    OperandSpec x = filled(matrix("x", ROLE_IN, c->n, in), FILL_NORMAL, 0, 2);
    if (c->op == OP_activation_forward) {
        s[0] = deep(matrix("y", ROLE_OUT, c->n, c->cols), 1, 12);
        s[1] = x;
        return 2;
    }
    s[0] = deep(matrix("dx", ROLE_OUT, c->n, in), 1, 24);
    s[0].alias_of = c->alias ? 1 + c->alias : 0;
    s[1] = matrix("dy", ROLE_IN, c->n, c->cols);
    s[2] = x;
    return 3;
}

static int rope_operands(const OpCase *c, OperandSpec *s)
{
    s[0] = deep(matrix("x", ROLE_UPDATE, c->n, c->cols), 1, 4);
    s[1] = filled(matrix("table", ROLE_IN, c->table, c->cols / c->groups), FILL_UNIFORM, -1, 1);
    s[1].type = TYPE_COMPUTE;
    s[2] = integers("positions", c->n, 0, c->table);
    return 3;
}

static OperandSpec factored(OperandSpec s, double factors)
{
    s.factors = factors;
    return s;
}

/* Describes the gradient of a bias: the column sums of output number sums_of - 1, which has `rows`
 * rows. */
static OperandSpec bias_sums(const OpCase *c, const char *name, int sums_of, int64_t cols,
                             int64_t rows)
{
    OperandSpec s = typed(vector(name, output(c->accumulate_db), cols), TYPE_GRAD);
    s = deep(s, 1, 2 + sum_depth(rows));
    s.sums_of = sums_of;
    return optional(s, c->bias);
}

static int attention_operands(const OpCase *c, OperandSpec *s)
{
    const Attention *a = &c->attention;
    int64_t d = a->head_size, hd = a->heads * d, gd = a->kv_heads * d;
    /* An error of a score is an error of the exponent. Scores are of the order of 4, so their
     * errors count 4 times. */
    double depth = 16 + 4 * sum_depth(d) + 2 * sum_depth(c->tk);
    OperandSpec lse = shaped(vector("lse", ROLE_OUT, 1), 3, c->batch, a->heads, c->tq);
    lse = deep(typed(lse, TYPE_COMPUTE), 0, depth);
    OperandSpec first_key = integers("first_key", c->batch * c->tq, 0, 0);
    first_key.fill = FILL_FIRST_KEY;
    int i = 0;
    if (c->op == OP_attention_backward) {
        depth = 2 * depth + 2 * sum_depth(c->tq * (a->heads / a->kv_heads));
        /* A rounded factor (OperandSpec.factors) adds its error to a term of the sum. dv has the
         * largest terms relative to its sums, so its bound is the largest. */
        s[i++] =
            factored(deep(cube("dq", output(c->accumulate), c->batch, c->tq, hd), 1, depth), 3);
        s[i++] =
            factored(deep(cube("dk", output(c->accumulate), c->batch, c->tk, gd), 1, depth), 3);
        s[i++] =
            factored(deep(cube("dv", output(c->accumulate), c->batch, c->tk, gd), 1, depth), 7);
        s[i++] = cube("dout", ROLE_IN, c->batch, c->tq, hd);
    } else {
        s[i++] = factored(deep(cube("o", ROLE_OUT, c->batch, c->tq, hd), 1, depth), 2);
        s[i++] = lse;
    }
    s[i++] = cube("q", ROLE_IN, c->batch, c->tq, hd);
    s[i++] = cube("k", ROLE_IN, c->batch, c->tk, gd);
    s[i++] = cube("v", ROLE_IN, c->batch, c->tk, gd);
    if (c->op == OP_attention_backward) {
        s[i++] = derived(cube("o", ROLE_IN, c->batch, c->tq, hd), -1, 1);
        lse.role = ROLE_IN;
        s[i++] = derived(lse, 3, 4);
    }
    s[i++] = optional(first_key, c->option);
    if (c->op == OP_attention_backward) {
        /* Operands 0, 1 and 2 are dq, dk and dv. */
        s[i++] = bias_sums(c, "dbq", 1, hd, c->batch * c->tq);
        s[i++] = bias_sums(c, "dbk", 2, gd, c->batch * c->tk);
        s[i++] = bias_sums(c, "dbv", 3, gd, c->batch * c->tk);
    }
    return i;
}

int op_case_operands(const OpCase *c, OperandSpec spec[CASE_OPERANDS])
{
    /* The default case fails, so the first test that loops over all ops finds an op that was added
     * without a case here. */
    switch (c->op) {
    case OP_fill:
    case OP_copy:
    case OP_add:
    case OP_sum:
    case OP_maximum:
    case OP_column_sum:
    case OP_normal: return memory_operands(c, spec);
    case OP_token_forward:
    case OP_token_backward:
    case OP_position_add:
    case OP_position_backward: return embedding_operands(c, spec);
    case OP_norm_forward:
    case OP_residual_norm_forward:
    case OP_norm_backward: return norm_operands(c, spec);
    case OP_bias_residual: return residual_operands(c, spec);
    case OP_linear_forward:
    case OP_linear_residual_forward:
    case OP_linear_backward_input:
    case OP_linear_backward_weight: return linear_operands(c, spec);
    case OP_activation_forward:
    case OP_activation_backward: return activation_operands(c, spec);
    case OP_rope: return rope_operands(c, spec);
    case OP_attention_forward:
    case OP_attention_backward: return attention_operands(c, spec);
    /* The operands of the ops that end a step are in op_cases_step.c. */
    case OP_loss:
    case OP_loss_max:
    case OP_loss_terms:
    case OP_loss_finish:
    case OP_loss_sum: return op_case_loss_operands(c, spec);
    case OP_sq_norm:
    case OP_hash:
    case OP_adamw:
    case OP_sgd: return op_case_optimizer_operands(c, spec);
    default: CHECK(0, "op %d has no case: its operands are not tensors", (int)c->op);
    }
}
