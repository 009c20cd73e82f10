/* cut_store.c -- implements cut_store.h: a parameter store that is split into pieces at odd
 * elements. */
#include "tests/support/model/cut_store.h"

#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

int64_t cut_store_border(const CutStore *s, int unit, int part)
{
    int64_t size = s->base.table->unit[unit].size, end = tensor_count(s->weight[unit]);
    if (part == 0) return 0;
    if (part == s->parts || (unit % 3 == 2 && part > s->parts / 2)) return end;
    if (unit % 3 == 1 && part == s->parts - 1) return size;
    return (unit % 3 == 1 ? size * part / (s->parts - 1) : end * part / s->parts) | 1;
}

static int cut_shards(ParamStore *base, Purpose purpose, Shard *shards, int max)
{
    const CutStore *s = (const CutStore *)base;
    int n = 0;
    (void)purpose;
    for (int u = 0; u < base->table->n_units; u++) {
        const Unit *unit = &base->table->unit[u];
        int64_t from = cut_store_border(s, u, s->part), to = cut_store_border(s, u, s->part + 1);
        for (int r = 0; r < unit->n_ranges; r++) {
            int64_t begin = unit->range[r].offset, end = begin + unit->range[r].count;
            if (r + 1 == unit->n_ranges) end = tensor_count(s->weight[u]);
            if (begin < from) begin = from;
            if (end > to) end = to;
            if (begin >= end) continue;
            if (n < max)
                shards[n] = (Shard){.unit = u,
                                    .offset = begin,
                                    .count = end - begin,
                                    .group = unit->range[r].group,
                                    .weight = tensor_slice_rows(s->weight[u], begin, end - begin),
                                    .grad = tensor_slice_rows(s->grad[u], begin, end - begin)};
            n++;
        }
    }
    return n;
}

static void cut_publish(ParamStore *base, int unit, Event *updated)
{
    (void)updated;
    assert_int_equal(((CutStore *)base)->published++, unit);
}

CutStore *cut_store_open(const ParamTable *table, GridPlace at, int parts, DType grad)
{
    CutStore *s = must_calloc(1, sizeof *s);
    s->base = (ParamStore){.table = table, .at = at, .shards = cut_shards, .publish = cut_publish};
    s->parts = parts;
    assert_true(table->n_units <= CUT_MOST_UNITS);
    for (int u = 0; u < table->n_units; u++) {
        int64_t n = table->unit[u].size + 57;
        s->weight[u] = tensor_1d(must_calloc((size_t)n, sizeof(double)), table->unit[u].dtype, n);
        s->grad[u] = tensor_1d(must_calloc((size_t)n, sizeof(double)), grad, n);
    }
    return s;
}

void cut_store_close(CutStore *s)
{
    for (int u = 0; u < s->base.table->n_units; u++) {
        free(s->weight[u].data);
        free(s->grad[u].data);
    }
    free(s);
}

void cut_table(ParamTable *table, int tp, DType dtype)
{
    static const ParamSpec spec[] = {
        {.name = "rows",
         .pack = -1,
         .rows = 21,
         .cols = 10,
         .padded_rows = 32,
         .tp_dim = 0,
         .init = INIT_NORMAL,
         .std = 0.5},
        {.name = "columns",
         .pack = -1,
         .rows = 19,
         .cols = 28,
         .tp_dim = 1,
         .init = INIT_NORMAL,
         .std = 0.5},
        {.name = "shared",
         .pack = -1,
         .rows = 14,
         .cols = 11,
         .tp_dim = 0,
         .tp_grad = TP_GRAD_SUBGROUP,
         .init = INIT_NORMAL,
         .std = 0.5},
        {.name = "all",
         .pack = -1,
         .rows = 19,
         .cols = 13,
         .tp_dim = -1,
         .init = INIT_NORMAL,
         .std = 2},
        {.name = "ones",
         .pack = -1,
         .rows = 36,
         .tp_dim = 0,
         .group = GROUP_NO_DECAY,
         .init = INIT_ONE},
        {.name = "zeros", .pack = -1, .rows = 9, .tp_dim = -1, .group = GROUP_NO_DECAY},
    };
    *table = (ParamTable){.tp = tp, .kv = 2};
    for (int unit = 0; unit < 3; unit++)
        for (size_t i = 0; i < sizeof spec / sizeof *spec; i++) {
            char name[32];
            ParamSpec named = spec[i];
            snprintf(name, sizeof name, "%d.%s", unit, spec[i].name);
            named.name = name;
            param_table_add(table, unit, dtype, &named);
        }
    param_table_layout(table);
}

int64_t cut_element(const Param *p, GridPlace at, int64_t k)
{
    int part = at.tp / p->sharers;
    int64_t row = k / p->local[1] + (p->tp_dim == 0 ? part * p->local[0] : 0);
    int64_t col = k % p->local[1] + (p->tp_dim == 1 ? part * p->local[1] : 0);
    return row * p->dim[1] + col;
}
