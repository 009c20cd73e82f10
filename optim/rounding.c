/* rounding.c -- implements rounding.h: lists the parameters in a range of a unit (a flat buffer
 * that stores several parameters), and the index of each element in its parameter. Stochastic
 * rounding derives its random numbers from both. */
#include "optim/rounding.h"

#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/rounding_rule.h"
#include "model/param/extents.h"

int rounding_segments(const ParamTable *table, const GridPlace *at, int unit, int64_t offset,
                      int64_t count, Segment *segment, int max)
{
    int n = 0;
    for (const Param *p = param_next_in_unit(table, unit, -1), *next; p != NULL; p = next) {
        int64_t elements = p->padded[0] * p->padded[1];
        next = param_next_in_unit(table, unit, p->offset);
        /* Skip parameters whose successor begins at or before the start of the range, and those
         * that begin at or after its end. A parameter that begins before the range is listed even
         * if it also ends there, because the range may start in the gap after it. */
        if ((next != NULL && next->offset <= offset) || p->offset >= offset + count) continue;
        /* The element's index is part of the random number's counter, in which it has a limited
         * number of bits. */
        if (elements > ROUNDING_ELEMENTS)
            fail(EXIT_CONFIG,
                 "%s has %lld elements, and stochastic rounding tells at most %lld apart; write "
                 "bf16.bf16_master_weights_and_grads false, and bf16.bf16_optimizer_states false",
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
