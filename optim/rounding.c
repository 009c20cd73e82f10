/* rounding.c -- see rounding.h. */
#include "optim/rounding.h"

#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/rounding_rule.h"
#include "model/param/extents.h"

int rounding_segments(const ParamTable *table, const GridPlace *at, int unit, int64_t offset,
                      int64_t count, Segment *segment, int max)
{
    int n = 0;
    for (const Param *p = param_behind(table, unit, -1), *next; p != NULL; p = next) {
        int64_t elements = p->padded[0] * p->padded[1];
        next = param_behind(table, unit, p->offset);
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
                                   .first = param_part_first(p, at),
                                   .cols = p->local[1],
                                   .whole_cols = p->padded[1]};
    }
    return n;
}
