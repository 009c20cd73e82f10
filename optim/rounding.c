/* rounding.c -- see rounding.h. */
#include "optim/rounding.h"

#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/rounding_rule.h"

/* The row of the unit with the lowest offset above `after` (-1: of all); NULL past the last. */
static const Param *next_param(const ParamTable *table, const Unit *unit, int64_t after)
{
    const Param *next = NULL;
    for (int i = unit->first; i < unit->first + unit->count; i++) {
        const Param *p = &table->param[i];
        if (p->offset > after && (next == NULL || p->offset < next->offset)) next = p;
    }
    return next;
}

int rounding_segments(const ParamTable *table, int unit, int64_t offset, int64_t count,
                      Segment *segment, int max)
{
    const Unit *u = &table->unit[unit];
    int n = 0;
    for (const Param *p = next_param(table, u, -1), *next; p != NULL; p = next) {
        int64_t cols = p->ndim == 2 ? p->local[1] : 1, elements = p->local[0] * cols;
        next = next_param(table, u, p->offset);
        /* Parameters that end before the range, or begin behind it. One that began earlier
         * counts: the range may start inside it, or in the gap behind it. */
        if ((next != NULL && next->offset <= offset) || p->offset >= offset + count) continue;
        if (elements > ROUNDING_ELEMENTS)
            fail(EXIT_CONFIG,
                 "%s has %lld elements, and stochastic rounding tells at most %lld apart; write "
                 "bf16.bf16_master_weights_and_grads false",
                 p->name, (long long)elements, (long long)ROUNDING_ELEMENTS);
        if (n++ >= max) continue;
        segment[n - 1] = (Segment){.stream = rng_stream(p->name),
                                   .start = p->offset - offset,
                                   .first = 0,
                                   .cols = cols,
                                   .whole_cols = cols};
    }
    return n;
}
