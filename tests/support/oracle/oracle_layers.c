/* oracle_layers.c -- the oracles of norms, linear layers, losses and optimizer updates, in double
 * precision. */
#include "tests/support/oracle/oracle.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- norm ------------------------------------------------------------------------------------ */

static const double EPSILON = 1e-5;

void oracle_norm_stats(const OpCase *c, const double *x, double *stats)
{
    int64_t groups = c->groups ? c->groups : 1, width = c->cols / groups;
    for (int64_t g = 0; g < c->n * groups; g++) {
        double mean = 0, square = 0;
        for (int64_t j = 0; c->norm == NORM_LAYERNORM && j < width; j++)
            mean += x[g * width + j] / (double)width;
        for (int64_t j = 0; j < width; j++)
            square += pow(x[g * width + j] - mean, 2) / (double)width;
        stats[2 * g] = mean;
        stats[2 * g + 1] = 1 / sqrt(square + EPSILON);
    }
}

static void normalise(const OpCase *c, double *y, double *stats, const double *x, const double *w,
                      const double *b)
{
    int64_t width = c->cols / (c->groups ? c->groups : 1);
    oracle_norm_stats(c, x, stats);
    for (int64_t i = 0; i < c->n * c->cols; i++) {
        int64_t g = i / width, j = i % width;
        y[i] = (x[i] - stats[2 * g]) * stats[2 * g + 1] * w[j] + (b ? b[j] : 0);
    }
}

/* The backward pass of a norm. For each group, with h = normalised x and g = dy w,
 * dx = (g - mean(g) - h mean(g h)) / std; RMSNorm has no mean(g) term. */
static void norm_backward(OracleCall *call)
{
    const OpCase *c = call->c;
    double *dx = call->v[0], *dw = call->v[2], *db = call->v[3], magnitude = 0;
    const double *dy = call->v[4], *x = call->v[5], *stats = call->v[6], *w = call->v[7];
    int64_t width = c->cols / (c->groups ? c->groups : 1), groups = c->n * (c->cols / width);
    for (int64_t j = 0; !c->accumulate && j < width; j++) {
        dw[j] = 0;
        if (db) db[j] = 0;
    }
    for (int64_t g = 0; g < groups; g++) {
        double mean = stats[2 * g], rstd = stats[2 * g + 1], mean_g = 0, mean_gh = 0;
        for (int64_t j = 0; j < width; j++) {
            double h = (x[g * width + j] - mean) * rstd, d = dy[g * width + j];
            mean_g += d * w[j] / (double)width;
            mean_gh += d * w[j] * h / (double)width;
            dw[j] += d * h;
            if (db) db[j] += d;
        }
        if (c->norm == NORM_RMSNORM) mean_g = 0;
        for (int64_t j = 0; j < width; j++) {
            double h = (x[g * width + j] - mean) * rstd, term = dy[g * width + j] * w[j] * rstd;
            double value = term - (mean_g + h * mean_gh) * rstd;
            dx[g * width + j] = value + (c->accumulate_dx ? dx[g * width + j] : 0);
            magnitude += term * term / (double)(groups * width);
        }
    }
    call->magnitude[0] = call->magnitude[1] = sqrt(magnitude);
    call->magnitude[2] = call->magnitude[3] = 1; /* the terms of dw and db are of the order of dy */
}

void oracle_column_sums(double *sums, const double *start, Tensor x)
{
    int64_t cols = tensor_cols(x);
    for (int64_t j = 0; j < cols; j++)
        sums[j] = start ? start[j] : 0;
    for (int64_t n = 0; n < tensor_rows(x); n++)
        for (int64_t j = 0; j < cols; j++)
            sums[j] += dtype_get(x.dtype, tensor_row(x, n), j);
}

void oracle_norm(OracleCall *call)
{
    const OpCase *c = call->c;
    double **v = call->v;
    switch (c->op) {
    case OP_norm_forward:
        normalise(c, v[0], v[1], v[2], v[3], v[4]);
        call->magnitude[0] = call->magnitude[1] = 1;
        break;
    case OP_residual_norm_forward:
        for (int64_t i = 0; i < c->n * c->cols; i++)
            v[0][i] =
                oracle_round(call->storage, v[3][i] + v[4][i] + (v[5] ? v[5][i % c->cols] : 0));
        normalise(c, v[1], v[2], v[0], v[6], v[7]);
        call->magnitude[0] = call->magnitude[1] = call->magnitude[2] = 1;
        break;
    case OP_norm_backward: norm_backward(call); break;
    default:
        for (int64_t i = 0; i < c->n * c->cols; i++)
            v[0][i] = v[3][i] + v[1][i] + (v[2] ? v[2][i % c->cols] : 0);
        call->magnitude[0] = 1;
    }
}

/* ---- linear ---------------------------------------------------------------------------------- */

static void linear_forward(OracleCall *call)
{
    const OpCase *c = call->c;
    bool adds = c->op == OP_linear_residual_forward;
    double *y = call->v[0], *pre = adds ? NULL : call->v[4];
    const double *x = call->v[1], *w = call->v[2], *bias = call->v[3];
    for (int64_t n = 0; n < c->n; n++) {
        for (int64_t o = 0; o < c->outputs; o++) {
            double sum = bias ? bias[o] : 0;
            for (int64_t i = 0; i < c->cols; i++)
                sum += x[n * c->cols + i] * w[o * c->cols + i];
            if (adds) sum += call->v[4][n * c->outputs + o];
            if (pre) pre[n * c->outputs + o] = sum;
            if (c->epilogue == EPILOGUE_GELU) sum = oracle_gelu(oracle_round(call->storage, sum));
            if (c->epilogue == EPILOGUE_GELU_OF_SUM) sum = oracle_gelu(sum);
            y[n * c->outputs + o] = sum;
        }
    }
}

void oracle_linear(OracleCall *call)
{
    const OpCase *c = call->c;
    double **v = call->v;
    int64_t in = c->cols, out = c->outputs;
    /* The sum of k products of standard normal numbers is of the order of sqrt(k). */
    bool forward = c->op == OP_linear_forward || c->op == OP_linear_residual_forward;
    int64_t terms = forward ? in : c->op == OP_linear_backward_input ? out : c->n;
    call->magnitude[0] = call->magnitude[1] = call->magnitude[4] = sqrt((double)terms);
    if (forward) linear_forward(call);
    for (int64_t n = 0; c->op == OP_linear_backward_input && n < c->n; n++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = c->accumulate ? v[0][n * in + i] : 0;
            for (int64_t o = 0; o < out; o++)
                sum += v[1][n * out + o] * v[2][o * in + i];
            if (c->epilogue == EPILOGUE_GELU) sum *= oracle_gelu_slope(v[3][n * in + i]);
            v[0][n * in + i] = sum;
        }
    }
    for (int64_t o = 0; c->op == OP_linear_backward_weight && o < out; o++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = c->accumulate ? v[0][o * in + i] : 0;
            for (int64_t n = 0; n < c->n; n++)
                sum += v[2][n * out + o] * v[3][n * in + i];
            v[0][o * in + i] = sum;
        }
        if (v[1] == NULL) continue;
        if (!c->accumulate) v[1][o] = 0;
        for (int64_t n = 0; v[4] == NULL && n < c->n; n++)
            v[1][o] += v[2][n * out + o];
        if (v[4]) v[1][o] += v[4][o];
    }
}

/* ---- loss ------------------------------------------------------------------------------------ */

void oracle_loss(OracleCall *call)
{
    const OpCase *c = call->c;
    double **v = call->v;
    const double *target = v[2];
    for (int64_t n = 0; c->op == OP_loss_sum && n < c->n; n++) {
        v[0][0] += v[1][n];
        v[0][1] += target[n] >= 0;
    }
    for (int64_t n = 0; c->op == OP_loss && n < c->n; n++) {
        double *logits = v[1] + n * c->cols, max = logits[0], sum = 0;
        int64_t y = (int64_t)target[n];
        for (int64_t j = 1; j < c->vocab_size; j++)
            max = fmax(max, logits[j]);
        for (int64_t j = 0; j < c->vocab_size; j++)
            sum += exp(logits[j] - max);
        double lse = max + log(sum);
        v[0][n] = y < 0 ? 0 : lse - logits[y];
        for (int64_t j = 0; c->option && j < c->cols; j++) {
            double p = exp(logits[j] - lse) - (j == y);
            logits[j] = y < 0 || j >= c->vocab_size ? 0 : v[3][0] * p;
        }
    }
    if (c->op == OP_loss) call->magnitude[0] = 1;
    if (c->op == OP_loss) call->magnitude[1] = 1 / sqrt((double)c->vocab_size); /* p - onehot */
}

/* Returns how many columns of this rank belong to the vocabulary; the others are padding. */
static int64_t vocabulary_here(const OpCase *c)
{
    return (int64_t)fmax(0, fmin((double)c->cols, (double)(c->vocab_size - c->first)));
}

/* Simulates another rank that has a larger logit in every second row and contributes terms to the
 * sum in all rows. */
void oracle_cut_loss_derive(OracleCall *call)
{
    const OpCase *c = call->c;
    bool finish = c->op == OP_loss_finish;
    const double *logits = call->v[1], *target = call->v[2];
    double *most = call->v[3], *terms = finish ? call->v[4] : NULL;
    int64_t cols = vocabulary_here(c);
    for (int64_t n = 0; n < c->n; n++) {
        double max = 1, sum = 0.25;
        int64_t own = (int64_t)target[n] - c->first;
        for (int64_t j = 0; j < cols; j++)
            max = fmax(max, logits[n * c->cols + j] + (double)(n % 2));
        most[n] = oracle_round(dtype_compute(call->storage), max);
        for (int64_t j = 0; j < cols; j++)
            sum += exp(logits[n * c->cols + j] - most[n]);
        if (terms == NULL) continue;
        terms[2 * n] = sum;
        terms[2 * n + 1] = own >= 0 && own < cols ? logits[n * c->cols + own] - most[n] : -0.75;
        if (target[n] < 0) terms[2 * n] = terms[2 * n + 1] = 0;
    }
}

void oracle_cut_loss(OracleCall *call)
{
    const OpCase *c = call->c;
    double **v = call->v;
    int64_t cols = vocabulary_here(c);
    for (int64_t n = 0; n < c->n; n++) {
        double *logits = v[1] + n * c->cols, max = -INFINITY, sum = 0;
        int64_t own = c->op == OP_loss_max ? 0 : (int64_t)v[2][n] - c->first;
        bool counts = c->op == OP_loss_max || v[2][n] >= 0;
        for (int64_t j = 0; j < cols; j++) {
            max = fmax(max, logits[j]);
            if (c->op == OP_loss_terms && counts) sum += exp(logits[j] - v[3][n]);
        }
        if (c->op == OP_loss_max) v[0][n] = max;
        if (c->op == OP_loss_terms) {
            v[0][2 * n] = sum;
            v[0][2 * n + 1] = counts && own >= 0 && own < cols ? logits[own] - v[3][n] : 0;
        }
        if (c->op != OP_loss_finish) continue;
        v[0][n] = counts ? log(v[4][2 * n]) - v[4][2 * n + 1] : 0;
        for (int64_t j = 0; c->option && j < c->cols; j++) {
            double p = exp(logits[j] - v[3][n]) / v[4][2 * n] - (j == own);
            logits[j] = counts && j < cols ? v[5][0] * p : 0;
        }
    }
    call->magnitude[0] = c->op == OP_loss_max ? 0 : 1;
    call->magnitude[1] = 1 / sqrt((double)c->vocab_size); /* p - onehot */
}

/* ---- optimizer ------------------------------------------------------------------------------- */

static void adamw_element(const OpCase *c, double *w, double g, double *m, double *s)
{
    StepDecision d = op_case_decision();
    AdamW a = op_case_adamw(c);
    double t = (double)d.update;
    g *= d.grad_scale;
    if (!a.decoupled) g += a.weight_decay * *w;
    *m = a.beta1 * *m + (1 - a.beta1) * g;
    *s = a.beta2 * *s + (1 - a.beta2) * g * g;
    double m_hat = a.bias_correction ? *m / (1 - pow(a.beta1, t)) : *m;
    double s_hat = a.bias_correction ? *s / (1 - pow(a.beta2, t)) : *s;
    if (a.decoupled) *w -= d.lr * a.weight_decay * *w;
    *w -= d.lr * m_hat / (sqrt(s_hat) + a.epsilon);
}

static void sgd_element(const OpCase *c, double *w, double g, double *momentum)
{
    StepDecision d = op_case_decision();
    Sgd s = op_case_sgd(c);
    g = g * d.grad_scale + s.weight_decay * *w;
    if (momentum) {
        *momentum = d.update == 1 ? g : s.momentum * *momentum + (1 - s.dampening) * g;
        g = s.nesterov ? g + s.momentum * *momentum : *momentum;
    }
    *w -= d.lr * g;
}

void oracle_optimizer(OracleCall *call)
{
    const OpCase *c = call->c;
    double **v = call->v;
    Segment segment[CASE_SEGMENTS], squares[CASE_SEGMENTS];
    const double *words = v[c->op == OP_adamw ? 5 : 4];
    for (int k = 0; (c->stochastic || c->moments) && k < CASE_SEGMENTS; k++, words += SEGMENT_WORDS)
        segment[k] = (Segment){(uint64_t)words[0], (int64_t)words[1], (int64_t)words[2],
                               (int64_t)words[3], (int64_t)words[4]};
    memcpy(squares, segment, sizeof squares);
    for (int k = 0; c->moments && k < CASE_SEGMENTS; k++)
        squares[k].stream = segment[k].stream ^ 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < c->n; i++) {
        if (c->op == OP_sq_norm) {
            v[0][0] += v[1][i] * v[1][i];
            continue;
        }
        double *w = v[2] ? &v[2][i] : &v[0][i];
        if (c->op == OP_adamw) adamw_element(c, w, v[1][i], &v[3][i], &v[4][i]);
        if (c->moments)
            v[4][i] = oracle_stochastic_at(v[4][i], CASE_SEED, squares, CASE_SEGMENTS,
                                           op_case_decision().update, i);
        if (c->op == OP_sgd) sgd_element(c, w, v[1][i], v[3] ? &v[3][i] : NULL);
        if (c->stochastic)
            *w = oracle_stochastic_at(*w, CASE_SEED, segment, CASE_SEGMENTS,
                                      op_case_decision().update, i);
        v[0][i] = *w;
    }
    call->magnitude[0] = call->magnitude[2] = call->magnitude[3] = 1;
}
