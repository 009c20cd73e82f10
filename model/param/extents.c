/* extents.c -- implements extents.h: maps ranges of a unit's flat buffer to elements of
 * parameters. */
#include "model/param/extents.h"

const Param *param_next_in_unit(const ParamTable *table, int unit, int64_t after)
{
    const Unit *u = &table->unit[unit];
    const Param *next = NULL;
    for (int i = u->first; i < u->first + u->count; i++) {
        const Param *p = &table->param[i];
        if (p->offset > after && (next == NULL || p->offset < next->offset)) next = p;
    }
    return next;
}

int64_t param_part_first(const Param *param, const GridPlace *at)
{
    if (param->tp_dim < 0) return 0;
    int64_t part = at->tp / param->sharers;
    return part * param->local[1] * (param->tp_dim == 0 ? param->local[0] : 1);
}

/* Returns how many elements of this rank's part are logical, that is, not padding. Padding rows are
 * the last rows of the whole parameter, so they are also the last of a part. */
static int64_t logical_elements(const Param *p, const GridPlace *at)
{
    int64_t before = p->tp_dim == 0 ? at->tp / p->sharers * p->local[0] : 0;
    int64_t rows = p->dim[0] - before;
    if (rows > p->local[0]) rows = p->local[0];
    return rows > 0 ? rows * p->local[1] : 0;
}

int param_extents(const ParamTable *table, const GridPlace *at, int unit, int64_t offset,
                  int64_t count, ParamExtent *extent, int max)
{
    int n = 0;
    for (const Param *p = param_next_in_unit(table, unit, -1); p != NULL;
         p = param_next_in_unit(table, unit, p->offset)) {
        int64_t begin = p->offset, end = p->offset + logical_elements(p, at);
        if (begin < offset) begin = offset;
        if (end > offset + count) end = offset + count;
        if (begin >= end) continue;
        if (n++ >= max) continue;
        extent[n - 1] = (ParamExtent){.param = (int)(p - table->param),
                                      .offset = begin,
                                      .count = end - begin,
                                      .from = begin - p->offset,
                                      .first = param_part_first(p, at),
                                      .cols = p->local[1],
                                      .whole_cols = p->dim[1]};
    }
    return n;
}
