/* head.h -- the last layer: final norm, logits in chunks of rows, cross entropy. Forward and
 * backward in one pass over each chunk, so logits are never kept.
 *
 * Each tensor-parallel rank has some columns of the logits. They are never gathered for the loss:
 * of each row the largest logit, the sum of exponentials and the target's logit are. */
#ifndef MODEL_HEAD_H
#define MODEL_HEAD_H

#include "model/residual.h"

typedef struct {
    int norm_unit, table_unit;
    NormParams norm;
    int table; /* the untied head, or the token table */
} Head;

typedef struct {
    Tensor normed, stats; /* (S, C), (S, 2) compute; S rows of the stream */
    Tensor in;            /* (N, C): normed itself, or all ranks' where rows are cut */
    Tensor dnormed;       /* (N, C): of in */
    Tensor logits;        /* (chunk, Vp) */
    Tensor most, terms;   /* (chunk), (chunk, 2) compute: of the vocabulary-parallel loss; absent
                             where a rank has all columns */
    Tensor losses;        /* (N) compute */
    int64_t chunk;        /* rows */
} HeadActs;

/* Adds the final norm's unit and, untied, the head's; `token_unit`, `token` name the tied table.
 * Returns the next unit. */
int head_add_params(Head *head, ParamTable *table, const GptShape *shape, int unit, int token_unit,
                    int token);

/* N rows; `backward`: space for gradients too. All of it is scratch of the layer. */
void head_layout(HeadActs *acts, const GptShape *shape, int64_t N, bool backward, Arena *shared);

/* stats (2) f64 += {nats, targets} of all N rows of the stream, alike on all ranks; x (S, C)
 * storage, this rank's. With grad (else NULL), all times scale (1) f64: grad->d = dx, and the
 * weights' gradients =/+= as accumulate[0] says of the norm, accumulate[1] of the table. The units
 * are acquired. */
void head_loss(const Pass *pass, const Head *head, HeadActs *acts, Tensor x, Tensor stats,
               Tensor scale, ResidualGrad *grad, const bool *accumulate);
/* logits (n, Vp), all columns, of rows x (n, C), n <= acts' rows; where rows are cut x is this
 * rank's part of all. For generation and tests. */
void head_logits(const Pass *pass, const Head *head, HeadActs *acts, Tensor x, Tensor logits);

#endif
