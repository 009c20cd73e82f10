/* oracle.c -- calls the oracle of each op; has the oracles of copies, sums, random numbers,
 * embeddings and activations. */
#include "tests/support/oracle/oracle.h"

#include "model/core/check.h"
#include "model/core/rng.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

double oracle_round(DType type, double x)
{
    double cell;
    dtype_set(type, &cell, 0, x);
    return dtype_get(type, &cell, 0);
}

double oracle_stochastic(double x, uint64_t seed, uint64_t stream, int64_t update, int64_t element)
{
    uint64_t block = (uint64_t)element / 8;
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, word[4];
    uint32_t ctr[4] = {(uint32_t)block, 0x80000000u + (uint32_t)update, (uint32_t)stream,
                       (uint32_t)(stream >> 32)};
    int exponent;
    philox4x32(ctr, key, word);
    uint32_t pair = word[element % 8 / 2], random = element % 2 ? pair / 65536 : pair % 65536;
    /* |x| is in [2^(exponent - 1), 2^exponent), where the spacing of bf16 is 2^(exponent - 8). */
    frexp(x, &exponent);
    double step = ldexp(1, (exponent < -125 ? -125 : exponent) - 8), steps = fabs(x) / step;
    double up = floor((steps - floor(steps)) * 65536) + random >= 65536;
    return copysign((floor(steps) + up) * step, x);
}

double oracle_stochastic_at(double x, uint64_t seed, const Segment *segment, int segments,
                            int64_t update, int64_t i)
{
    int last = segments - 1;
    while (last > 0 && segment[last].start > i)
        last--;
    const Segment *s = &segment[last];
    int64_t row = 0, col = i - s->start;
    for (; col >= s->cols; row++)
        col -= s->cols;
    return oracle_stochastic(x, seed, s->stream, update, s->first + row * s->whole_cols + col);
}

/* ---- memory ---------------------------------------------------------------------------------- */

void oracle_memory(OracleCall *call)
{
    const OpCase *c = call->c;
    double **v = call->v;
    for (int64_t i = 0; i < c->n * c->cols; i++) {
        if (c->op == OP_fill) v[0][i] = c->value;
        if (c->op == OP_copy) v[0][i] = v[1][i];
        if (c->op == OP_add) v[0][i] = v[1][i] + v[2][i];
    }
    call->magnitude[0] = c->op == OP_add;
}

void oracle_maximum(OracleCall *call)
{
    const OpCase *c = call->c;
    for (int64_t i = 0; i < c->n; i++) {
        call->v[0][i] = call->v[1][i];
        for (int64_t k = 1; k < c->groups; k++)
            call->v[0][i] = fmax(call->v[0][i], call->v[1 + k][i]);
    }
}

void oracle_sum(OracleCall *call)
{
    const OpCase *c = call->c;
    for (int64_t i = 0; i < c->n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < c->groups; k++)
            sum += call->v[1 + k][i];
        call->v[0][i] = sum;
    }
    call->magnitude[0] = 1;
}

/* Draws normal numbers by the Box-Muller transform. Each pair of elements (2p, 2p + 1) uses one
 * Philox block: the upper 52 bits of both of its 64-bit halves. */
void oracle_normal(OracleCall *call)
{
    const OpCase *c = call->c;
    int64_t row = 0, col = -c->part.start; /* position in the rank's part of the parameter */
    for (int64_t i = 0; i < c->n; i++, col++) {
        for (; c->part.cols > 0 && col >= c->part.cols; row++)
            col -= c->part.cols;
        uint64_t index = (uint64_t)(c->part.first + row * c->part.whole_cols + col);
        uint64_t pair = index / 2, stream = c->part.stream;
        uint32_t ctr[4] = {(uint32_t)pair, (uint32_t)(pair >> 32), (uint32_t)stream,
                           (uint32_t)(stream >> 32)},
                 key[2] = {42, 0}, out[4];
        philox4x32(ctr, key, out);
        uint64_t a = (uint64_t)out[1] << 32 | out[0], b = (uint64_t)out[3] << 32 | out[2];
        double u = 1 - (double)(a >> 12) / 4503599627370496.0;
        double angle = 2 * PI * ((double)(b >> 12) / 4503599627370496.0);
        double radius = sqrt(-2 * log(u));
        call->v[0][i] = c->value * radius * (index % 2 ? sin(angle) : cos(angle));
    }
    call->magnitude[0] = c->value;
}

/* ---- embedding ------------------------------------------------------------------------------- */

void oracle_embedding(OracleCall *call)
{
    const OpCase *c = call->c;
    double *out = call->v[0];
    const double *in = call->v[1], *index = call->v[2];
    bool token = c->op == OP_token_forward || c->op == OP_token_backward;
    bool backward = c->op == OP_token_backward || c->op == OP_position_backward;
    for (int64_t i = 0; backward && !c->accumulate && i < c->table * c->cols; i++)
        out[i] = 0;
    for (int64_t n = 0; n < c->n; n++) {
        int64_t row = (int64_t)index[n] - (token ? c->first : 0);
        bool inside = row >= 0 && row < c->table;
        for (int64_t j = 0; j < c->cols; j++) {
            double *x = &out[n * c->cols + j];
            if (c->op == OP_token_forward) *x = inside ? in[row * c->cols + j] : 0;
            if (c->op == OP_position_add) *x += in[row * c->cols + j];
            if (backward && inside) out[row * c->cols + j] += in[n * c->cols + j];
        }
    }
    call->magnitude[0] = 1;
}

/* ---- activation ------------------------------------------------------------------------------ */

double oracle_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / PI) * (x + 0.044715 * x * x * x)));
}

double oracle_gelu_slope(double x)
{
    double t = tanh(sqrt(2 / PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / PI) * (1 + 3 * 0.044715 * x * x);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void oracle_activation(OracleCall *call)
{
    const OpCase *c = call->c;
    bool backward = c->op == OP_activation_backward;
    bool swiglu = c->activation == ACTIVATION_SWIGLU;
    double *out = call->v[0];
    const double *dy = call->v[1], *x = call->v[backward ? 2 : 1];
    for (int64_t n = 0; n < c->n; n++) {
        for (int64_t j = 0; j < c->cols; j++) {
            int64_t i = n * c->cols + j, at = swiglu ? n * 2 * c->cols + j : i, up = at + c->cols;
            double z = x[at], y, slope;
            if (swiglu) {
                y = z * sigmoid(z) * x[up];
                slope = (sigmoid(z) + z * sigmoid(z) * (1 - sigmoid(z))) * x[up];
            } else if (c->activation == ACTIVATION_GELU) {
                y = oracle_gelu(z);
                slope = oracle_gelu_slope(z);
            } else {
                y = z > 0 ? z * z : 0;
                slope = z > 0 ? 2 * z : 0;
            }
            if (!backward) {
                out[i] = y;
                continue;
            }
            out[at] = dy[i] * slope;
            if (swiglu) out[up] = dy[i] * z * sigmoid(z);
        }
    }
    call->magnitude[0] = 1;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

void oracle_derive(OracleCall *call)
{
    if (call->c->op == OP_norm_backward) oracle_norm_stats(call->c, call->v[5], call->v[6]);
    if (call->c->op == OP_attention_backward) oracle_attention_derive(call);
    if (call->c->op == OP_loss_terms || call->c->op == OP_loss_finish) oracle_cut_loss_derive(call);
    for (int64_t i = 0; call->c->op == OP_loss_sum && i < call->c->n; i++)
        if (call->v[2][i] < 0) call->v[1][i] = 0;
}

void oracle_run(OracleCall *call)
{
    switch (call->c->op) {
    case OP_fill:
    case OP_copy:
    case OP_add: oracle_memory(call); break;
    case OP_sum: oracle_sum(call); break;
    case OP_maximum: oracle_maximum(call); break;
    case OP_column_sum:
        oracle_column_sums(call->v[0], NULL, tensor_2d(call->v[1], F64, call->c->n, call->c->cols));
        call->magnitude[0] = 1;
        break;
    case OP_normal: oracle_normal(call); break;
    case OP_token_forward:
    case OP_token_backward:
    case OP_position_add:
    case OP_position_backward: oracle_embedding(call); break;
    case OP_norm_forward:
    case OP_residual_norm_forward:
    case OP_norm_backward:
    case OP_bias_residual: oracle_norm(call); break;
    case OP_linear_forward:
    case OP_linear_residual_forward:
    case OP_linear_backward_input:
    case OP_linear_backward_weight: oracle_linear(call); break;
    case OP_activation_forward:
    case OP_activation_backward: oracle_activation(call); break;
    case OP_rope: oracle_rope(call); break;
    case OP_attention_forward:
    case OP_attention_backward: oracle_attention(call); break;
    case OP_loss:
    case OP_loss_sum: oracle_loss(call); break;
    case OP_loss_max:
    case OP_loss_terms:
    case OP_loss_finish: oracle_cut_loss(call); break;
    case OP_sq_norm:
    case OP_adamw:
    case OP_sgd: oracle_optimizer(call); break;
    default: CHECK(0, "no oracle for op %d", (int)call->c->op);
    }
}
