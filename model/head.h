/* head.h -- the last layer: final norm, logits and cross entropy. It runs forward and backward
 * together on one chunk of rows at a time, so the logits of a whole micro-batch are never stored.
 *
 * Each tensor-parallel rank computes some columns of the logits. The loss does not gather them; for
 * each row the ranks combine only the largest logit, the sum of exponentials and the target's
 * logit. */
#ifndef MODEL_HEAD_H
#define MODEL_HEAD_H

#include "model/residual.h"

typedef struct {
    int norm_unit, table_unit;
    NormParams norm;
    int table; /* the untied head's table, or the token table */
} Head;

typedef struct {
    Tensor normed, stats; /* (S, C); (S, 2) in the compute dtype; S: rows of the stream */
    /* (N, C): the same as normed, or the gathered rows of all ranks under sequence parallelism. */
    Tensor in;
    Tensor dnormed; /* (N, C): gradient of `in` */
    Tensor logits;  /* (chunk, Vp), where Vp is the padded vocabulary */
    /* For the vocabulary-parallel loss, in the compute dtype. For each row `most` (chunk) is the
     * largest logit, and `terms` (chunk, 2) is {sum of exp(logit - most), target's logit - most}.
     * Absent if the rank has all columns. */
    Tensor most, terms;
    Tensor losses; /* (N): loss of each row, in the compute dtype */
    int64_t chunk; /* number of rows in a chunk */
} HeadActs;

/* Adds the final norm as a parameter unit (param.h) and, if the head is untied, its table as
 * another unit. If it is tied, `token_unit` and `token` name the token table. Returns the next free
 * unit number. */
int head_add_params(Head *head, ParamTable *table, const GptShape *shape, int unit, int token_unit,
                    int token);

/* Places the head's tensors for N rows in `shared`, those of gradients only if `backward`. */
void head_layout(HeadActs *acts, const GptShape *shape, int64_t N, bool backward, Arena *shared);

/* Computes the loss of all N rows. Adds {loss in nats, number of targets} of all rows to stats (2)
 * f64, or those of each sequence to its row of stats (B, 2) f64. The result is the same on all
 * ranks. x (S, C) is this rank's rows of the residual stream. If grad is not NULL, also writes
 * grad->d = dx and computes the weights' gradients, all multiplied by scale (1) f64; accumulate[0]
 * (norm) and accumulate[1] (table) select += or =. The caller has acquired the units. */
void head_loss(const Pass *pass, const Head *head, HeadActs *acts, Tensor x, Tensor stats,
               Tensor scale, ResidualGrad *grad, const bool *accumulate);
/* Computes logits (n, Vp), all columns, of the rows x (n, C); n is at most the N of head_layout.
 * Under sequence parallelism x is this rank's part of the rows. For generation and tests. */
void head_logits(const Pass *pass, const Head *head, HeadActs *acts, Tensor x, Tensor logits);

#endif
