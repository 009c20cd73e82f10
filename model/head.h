/* head.h -- the last layer: final norm, logits in chunks of rows, cross entropy. Forward and
 * backward in one pass over each chunk, so logits are never kept. */
#ifndef MODEL_HEAD_H
#define MODEL_HEAD_H

#include "model/residual.h"

typedef struct {
    int norm_unit, table_unit;
    NormParams norm;
    int table; /* the untied head, or the token table */
} Head;

typedef struct {
    Tensor normed, stats; /* (N, C), (N, 2) compute */
    Tensor dnormed;       /* (N, C) */
    Tensor logits;        /* (chunk, Vp) */
    Tensor losses;        /* (N) compute */
    int64_t chunk;        /* rows */
} HeadActs;

/* Adds the final norm's unit and, untied, the head's; `token_unit`, `token` name the tied table.
 * Returns the next unit. */
int head_add_params(Head *head, ParamTable *table, const GptShape *shape, int unit, int token_unit,
                    int token);

/* N rows; `backward`: space for gradients too. All of it is scratch of the layer. */
void head_layout(HeadActs *acts, const GptShape *shape, int64_t N, bool backward, Arena *shared);

/* stats (2) f64 += {nats, targets} of x (N, C) storage. With grad (else NULL), all times scale (1)
 * f64: grad->d = dx, and the weights' gradients =/+= as accumulate[0] says of the norm,
 * accumulate[1] of the table. The units are acquired. */
void head_loss(const Pass *pass, const Head *head, HeadActs *acts, Tensor x, Tensor stats,
               Tensor scale, ResidualGrad *grad, const bool *accumulate);
/* logits (n, Vp) of rows x (n, C), n <= acts' rows; for generation and tests. */
void head_logits(const Pass *pass, const Head *head, HeadActs *acts, Tensor x, Tensor logits);

#endif
