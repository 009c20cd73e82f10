/* embedding.c -- see embedding.h. A tied table is one unit with two users: here and in the head. */
#include "model/embedding.h"

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

void embedding_forward(const Pass *pass, const Embedding *e, Tensor x)
{
    ParamStore *store = pass->store;
    op_token_forward(pass->dev, x, store->weight(store, e->token, 1), pass->tokens, 0);
    region_exit_forward(pass->tp, x, x);
    if (e->position < 0) return;
    op_position_add(pass->dev, x, store->weight(store, e->position, 1), pass->positions);
}

void embedding_backward(const Pass *pass, const Embedding *e, Tensor d, const bool *accumulate)
{
    ParamStore *store = pass->store;
    if (e->position >= 0)
        op_position_backward(pass->dev, store->grad(store, e->position, 1), d, pass->positions,
                             accumulate[1]);
    region_exit_backward(pass->tp, d, d);
    op_token_backward(pass->dev, store->grad(store, e->token, 1), d, pass->tokens, 0,
                      accumulate[0]);
}
