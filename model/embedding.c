/* embedding.c -- implements embedding.h. A token table that is tied to the head is one parameter
 * unit, which two layers use: this one and the head.
 *
 * Each tensor-parallel rank has some rows of the token table. It looks up the tokens that it has
 * and writes zero rows for the other tokens; the sum over the ranks is the full result. */
#include "model/embedding.h"

#include "model/param/extents.h"

ParamSpec vocab_table_spec(const GptShape *s, const char *name)
{
    return (ParamSpec){.name = name,
                       .pack = -1,
                       .rows = s->V,
                       .cols = s->C,
                       .padded_rows = s->Vp,
                       .tp_dim = 0,
                       .tp_grad = TP_GRAD_CUT,
                       .group = GROUP_DECAY,
                       .init = INIT_NORMAL,
                       .std = s->init_std};
}

int embedding_add_params(Embedding *e, ParamTable *table, const GptShape *s, int unit)
{
    ParamSpec token = vocab_table_spec(s, "token.weight");
    *e = (Embedding){.token_unit = unit, .position_unit = -1, .position = -1};
    e->token = param_table_add(table, unit++, s->dtype, &token);
    if (s->position == POSITION_LEARNED) {
        ParamSpec position = {.name = "position.weight",
                              .pack = -1,
                              .rows = s->P,
                              .cols = s->C,
                              .tp_dim = -1,
                              .tp_grad = TP_GRAD_PARTIAL_IF_SP,
                              .group = GROUP_DECAY,
                              .init = INIT_NORMAL,
                              .std = s->init_std};
        e->position_unit = unit;
        e->position = param_table_add(table, unit++, s->dtype, &position);
    }
    return unit;
}

int64_t vocab_first_row(const ParamStore *store, int row)
{
    const Param *p = &store->table->param[row];
    return param_part_first(p, &store->at) / p->local[1];
}

/* Returns a tensor for all N rows: the stream's own tensor, or, under sequence parallelism, one in
 * scratch. */
static Tensor whole_rows(const GptShape *s, int64_t N, Tensor stream, Arena *scratch)
{
    return s->row_parts > 1 ? arena_tensor(scratch, s->dtype, 2, N, s->C, 0) : stream;
}

void embedding_layout(const GptShape *s, int64_t N, Arena *scratch)
{
    size_t mark = arena_mark(scratch);
    whole_rows(s, N, NO_TENSOR, scratch);
    arena_rewind(scratch, mark);
}

void embedding_forward(const Pass *pass, const Embedding *e, Tensor x)
{
    ParamStore *store = pass->store;
    size_t mark = arena_mark(pass->scratch);
    Tensor found = whole_rows(pass->shape, pass_rows(pass), x, pass->scratch);
    op_token_forward(pass->dev, found, store->weight(store, e->token, 1), pass->tokens,
                     vocab_first_row(store, e->token));
    /* Each token is in the table of one rank, and all other ranks contribute zero rows. */
    region_exit_forward(pass->tp, x, found);
    if (e->position >= 0)
        op_position_add(pass->dev, x, store->weight(store, e->position, 1),
                        region_rows(pass->tp, pass->positions));
    arena_rewind(pass->scratch, mark);
}

void embedding_backward(const Pass *pass, const Embedding *e, Tensor d, const bool *accumulate)
{
    ParamStore *store = pass->store;
    size_t mark = arena_mark(pass->scratch);
    Tensor dfound = whole_rows(pass->shape, pass_rows(pass), d, pass->scratch);
    /* In forward, positions were added to this rank's rows after the sum over the ranks. */
    if (e->position >= 0)
        op_position_backward(pass->dev, store->grad(store, e->position, 1), d,
                             region_rows(pass->tp, pass->positions), accumulate[1]);
    region_exit_backward(pass->tp, dfound, d);
    op_token_backward(pass->dev, store->grad(store, e->token, 1), dfound, pass->tokens,
                      vocab_first_row(store, e->token), accumulate[0]);
    arena_rewind(pass->scratch, mark);
}
