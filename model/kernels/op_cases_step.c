/* op_cases_step.c -- describes the operands of the ops that follow a model's layers: losses and
 * optimizers. */
#include "model/kernels/op_specs.h"

/* Describes the operands of the loss ops for logits of which this rank has the columns from
 * c->first on. */
static int cut_loss_operands(const OpCase *c, OperandSpec *s)
{
    /* The bound is the same as for the whole vocabulary. */
    double depth = 16 + 4 * c->value + sum_depth(c->vocab_size);
    OperandSpec logits = filled(matrix("logits", ROLE_IN, c->n, c->cols), FILL_NORMAL, 0, c->value),
                targets = integers("targets", c->n, -1, c->vocab_size),
                most = typed(vector("most", ROLE_IN, c->n), TYPE_COMPUTE),
                terms = shaped(vector("terms", ROLE_IN, 1), 2, c->n, 2, 0);
    terms = deep(typed(terms, TYPE_COMPUTE), 0, depth);
    int i = 0;
    switch (c->op) {
    case OP_loss_max:
        /* A maximum involves no rounding. */
        s[i] = deep(most, 0, 0);
        s[i++].role = ROLE_OUT;
        s[i++] = logits;
        return i;
    case OP_loss_terms:
        s[i] = terms;
        s[i++].role = ROLE_OUT;
        s[i++] = logits;
        s[i++] = targets;
        s[i++] = derived(most, 0, 1);
        return i;
    default:
        s[i++] = deep(typed(vector("losses", ROLE_OUT, c->n), TYPE_COMPUTE), 0, depth);
        s[i] = deep(logits, 1, depth);
        s[i++].role = c->option ? ROLE_UPDATE : ROLE_IN;
        s[i++] = targets;
        s[i++] = derived(most, 0, 1);
        s[i++] = derived(terms, 0, 1);
        s[i] = filled(typed(vector("scale", ROLE_IN, 1), TYPE_F64), FILL_UNIFORM, 0.5, 2);
        s[i] = optional(s[i], c->option);
        return i + 1;
    }
}

int op_case_loss_operands(const OpCase *c, OperandSpec *s)
{
    if (c->op == OP_loss_sum) {
        s[0] = deep(typed(vector("stats", ROLE_UPDATE, 2), TYPE_F64), 0, 2 + sum_depth(c->n));
        s[1] = derived(typed(vector("losses", ROLE_IN, c->n), TYPE_COMPUTE), 0, 12);
        s[2] = integers("targets", c->n, -1, 50);
        return 3;
    }
    if (c->op != OP_loss) return cut_loss_operands(c, s);
    /* Errors of the exponents grow with the spread of the logits. */
    double depth = 16 + 4 * c->value + sum_depth(c->vocab_size);
    s[0] = deep(typed(vector("losses", ROLE_OUT, c->n), TYPE_COMPUTE), 0, depth);
    s[1] = filled(matrix("logits", c->option ? ROLE_UPDATE : ROLE_IN, c->n, c->cols), FILL_NORMAL,
                  0, c->value);
    s[1] = deep(s[1], 1, depth);
    s[2] = integers("targets", c->n, -1, c->vocab_size);
    s[3] = optional(filled(typed(vector("scale", ROLE_IN, 1), TYPE_F64), FILL_UNIFORM, 0.5, 2),
                    c->option);
    return 4;
}

int op_case_optimizer_operands(const OpCase *c, OperandSpec *s)
{
    if (c->op == OP_sq_norm) {
        s[0] = deep(typed(vector("stats", ROLE_UPDATE, 1), TYPE_F64), 0, 2 + sum_depth(c->n));
        s[1] = vector("x", ROLE_IN, c->n);
        return 2;
    }
    if (c->op == OP_hash) {
        s[0] = typed(vector("sum", ROLE_UPDATE, 1), TYPE_I64);
        s[1] = vector("x", ROLE_IN, c->n);
        return 2;
    }
    /* Stochastic rounding has an error of up to one step, twice that of rounding to nearest. */
    s[0] =
        deep(vector("weight", c->option ? ROLE_OUT : ROLE_UPDATE, c->n), c->stochastic ? 2 : 1, 16);
    s[1] = typed(vector("grad", ROLE_IN, c->n), TYPE_GRAD);
    s[2] =
        optional(deep(typed(vector("master", ROLE_UPDATE, c->n), TYPE_COMPUTE), 0, 16), c->option);
    OperandSpec average = vector("exp_avg", ROLE_UPDATE, c->n);
    s[3] = c->moments ? deep(average, 1, 8) : deep(typed(average, TYPE_COMPUTE), 0, 8);
    OperandSpec segments =
        typed(matrix("segments", ROLE_IN, CASE_SEGMENTS, SEGMENT_WORDS), TYPE_I64);
    segments.dense = true;
    segments = optional(filled(segments, FILL_SEGMENTS, 0, 0), c->stochastic || c->moments);
    if (c->op == OP_sgd) {
        s[3].name = "momentum";
        s[3] = optional(s[3], c->value != 0);
        s[4] = segments;
        return 5;
    }
    /* Averages of squares are not negative, and the op takes their square root, so they are filled
     * with numbers in [0, 1). */
    s[4] = filled(s[3], FILL_UNIFORM, 0, 1);
    s[4].name = "exp_avg_sq";
    if (c->moments) s[4] = deep(s[4], 2, 8);
    s[5] = segments;
    return 6;
}
