/* embedding.h -- the first layer: looks up tokens in the token table (its rows are split over
 * tensor-parallel ranks) and adds learned positions, if the model has them. */
#ifndef MODEL_EMBEDDING_H
#define MODEL_EMBEDDING_H

#include "model/shape.h"

typedef struct {
    /* The token table: its parameter unit (param.h), and its row in the parameter table. */
    int token_unit, token;
    int position_unit, position; /* those of the position table; -1 with rotary positions */
} Embedding;

/* Describes a table with one row per token of the vocabulary: the token table or the table of an
 * untied head. */
ParamSpec vocab_table_spec(const GptShape *shape, const char *name);
/* Returns the token id of the first row of such a table on this rank. */
int64_t vocab_first_row(const ParamStore *store, int row);
/* Adds each table as a separate parameter unit, from number `unit` on; returns the next free unit
 * number. */
int embedding_add_params(Embedding *embedding, ParamTable *table, const GptShape *shape, int unit);

/* For the memory plan: takes from `scratch` the (N, C) tensor that forward and backward need under
 * sequence parallelism, and gives it back. */
void embedding_layout(const GptShape *shape, int64_t N, Arena *scratch);
/* Computes x (S, C) = rows of the token table (+ rows of the position table); S is the number of
 * this rank's rows of the residual stream. The caller has acquired the tables' weights. */
void embedding_forward(const Pass *pass, const Embedding *embedding, Tensor x);
/* Computes the tables' gradients from d (S, C). accumulate[0] (token table) and accumulate[1]
 * (position table) say whether to add (+=) or write (=). The caller has acquired the gradients;
 * weights are not read. */
void embedding_backward(const Pass *pass, const Embedding *embedding, Tensor d,
                        const bool *accumulate);

#endif
