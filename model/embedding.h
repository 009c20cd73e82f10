/* embedding.h -- the first layer: token table (vocab-parallel) plus, when positions are learned,
 * the position table. */
#ifndef MODEL_EMBEDDING_H
#define MODEL_EMBEDDING_H

#include "model/shape.h"

typedef struct {
    int token_unit, token;       /* unit and row of the token table */
    int position_unit, position; /* -1 with rotary positions */
} Embedding;

/* A table with one row per token of the vocabulary: the embedding's, and an untied head's. */
ParamSpec vocab_table_spec(const GptShape *shape, const char *name);
/* The token to which the first row of this rank's part of such a table belongs. */
int64_t vocab_first_row(const ParamStore *store, int row);
/* Adds the tables as units of their own; returns the next free unit. */
int embedding_add_params(Embedding *embedding, ParamTable *table, const GptShape *shape, int unit);

/* Takes from `scratch` what either pass takes of it where the rows of the stream are cut, and gives
 * it back: all N rows (N, C). */
void embedding_layout(const GptShape *shape, int64_t N, Arena *scratch);
/* x (S, C) = token rows (+ position rows), S the rows of the stream. Its units are acquired. */
void embedding_forward(const Pass *pass, const Embedding *embedding, Tensor x);
/* The tables' gradients =/+= d (S, C), as `accumulate` says of the token table and of the position
 * table. Their gradients are acquired; weights are not read. */
void embedding_backward(const Pass *pass, const Embedding *embedding, Tensor d,
                        const bool *accumulate);

#endif
