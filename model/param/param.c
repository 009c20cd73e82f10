/* param.c -- builds the parameter table: rows, offsets in units, and ranges. */
#include "model/param/param.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Splits a row over the table's tensor-parallel ranks. Ranks that share a kv head have the same
 * part. */
static void cut_row(const ParamTable *table, Param *p)
{
    bool shared = p->tp_grad == TP_GRAD_SUBGROUP && table->kv > 0 && table->kv < table->tp;
    int parts = shared ? table->kv : table->tp;
    CHECK(table->tp % parts == 0, "%d heads of keys and values over %d tensor-parallel ranks",
          table->kv, table->tp);
    CHECK(p->padded[p->tp_dim] % parts == 0, "%s: %lld over %d tensor-parallel ranks", p->name,
          (long long)p->padded[p->tp_dim], parts);
    p->local[p->tp_dim] /= parts;
    p->sharers = table->tp / parts;
}

int param_table_add(ParamTable *table, int unit, DType dtype, const ParamSpec *spec)
{
    if (table->n_params == table->capacity) {
        table->capacity = table->capacity ? 2 * table->capacity : 64;
        table->param = must_realloc(table->param, (size_t)table->capacity * sizeof *table->param);
    }
    /* The rows of a unit are adjacent in the table, so a unit is described by its first row and a
     * count. */
    CHECK(unit == table->n_units || unit == table->n_units - 1, "unit %d after %d", unit,
          table->n_units - 1);
    if (unit == table->n_units) {
        table->n_units++;
        table->unit = must_realloc(table->unit, (size_t)table->n_units * sizeof *table->unit);
        table->unit[unit] = (Unit){.first = table->n_params, .dtype = dtype, .home = {.n = 1}};
    }
    int index = table->n_params++;
    Param *p = &table->param[index];
    *p = (Param){.unit = unit,
                 /* A row that is alone in its pack gets a pack number that no other row has. */
                 .pack = spec->pack >= 0 ? spec->pack : -1 - index,
                 .dtype = dtype,
                 .ndim = spec->cols ? 2 : 1,
                 .dim = {spec->rows, spec->cols ? spec->cols : 1},
                 .tp_dim = spec->tp_dim,
                 .sharers = 1,
                 .tp_grad = spec->tp_grad,
                 .group = spec->group,
                 .init = spec->init,
                 .std = (float)spec->std};
    int n = snprintf(p->name, sizeof p->name, "%s", spec->name);
    CHECK(n > 0 && n < (int)sizeof p->name, "parameter name \"%s\" is too long", spec->name);
    /* Padding rows give a product a width that kernels handle well. They are not stored in
     * checkpoints. */
    p->padded[0] = spec->padded_rows ? spec->padded_rows : p->dim[0];
    p->padded[1] = p->dim[1];
    p->local[0] = p->padded[0];
    p->local[1] = p->padded[1];
    if (spec->tp_dim >= 0 && table->tp > 1) cut_row(table, p);
    table->unit[unit].count++;
    return index;
}

/* Returns the sort key of a row within its unit. Rows with the same key are adjacent, so that the
 * optimizer, or a reduction over ranks, handles all of them in one pass. */
static int layout_key(const Param *p)
{
    return (int)p->tp_grad * GROUP_COUNT + (int)p->group;
}

/* Places the rows with this key from `offset` on; returns the end. */
static int64_t layout_rows(ParamTable *table, const Unit *unit, int key, int64_t offset)
{
    const Param *last = NULL;
    for (int i = unit->first; i < unit->first + unit->count; i++) {
        Param *p = &table->param[i];
        if (layout_key(p) != key) continue;
        /* No gap within a pack, because a product reads its rows as one matrix. */
        if (last == NULL || last->pack != p->pack) offset = round_up(offset, PARAM_ALIGNMENT);
        p->offset = offset;
        offset += p->local[0] * p->local[1];
        last = p;
    }
    return round_up(offset, PARAM_ALIGNMENT);
}

void param_table_layout(ParamTable *table)
{
    for (int u = 0; u < table->n_units; u++) {
        Unit *unit = &table->unit[u];
        int64_t offset = 0;
        /* Ascending keys, so that ranges with the same tp_grad are adjacent. */
        unit->range = must_calloc((TP_GRAD_SUBGROUP + 1) * GROUP_COUNT, sizeof *unit->range);
        for (int key = 0; key < (TP_GRAD_SUBGROUP + 1) * GROUP_COUNT; key++) {
            int64_t end = layout_rows(table, unit, key, offset);
            if (end == offset) continue;
            unit->range[unit->n_ranges++] = (Range){.offset = offset,
                                                    .count = end - offset,
                                                    .group = (ParamGroup)(key % GROUP_COUNT),
                                                    .tp_grad = (TpGrad)(key / GROUP_COUNT)};
            offset = end;
        }
        unit->size = offset;
    }
}

void param_table_free(ParamTable *table)
{
    for (int u = 0; u < table->n_units; u++)
        free(table->unit[u].range);
    free(table->unit);
    free(table->param);
    *table = (ParamTable){0};
}

int64_t param_count(const Param *param)
{
    return param->dim[0] * param->dim[1];
}

int64_t param_table_count(const ParamTable *table)
{
    int64_t n = 0;
    for (int i = 0; i < table->n_params; i++)
        n += param_count(&table->param[i]);
    return n;
}

bool param_owned_here(const ParamTable *table, int param, const GridPlace *size,
                      const GridPlace *at)
{
    CHECK(at->tp < size->tp, "coordinate %d of %d tensor-parallel ranks", at->tp, size->tp);
    const Param *row = &table->param[param];
    const Home *home = &table->unit[row->unit].home;
    /* Two stages may hold a tied table with equal values; only the first one counts it. */
    if (home->n > 1 && at->pp != home->stage[0]) return false;
    return row->tp_dim < 0 ? at->tp == 0 : at->tp % row->sharers == 0;
}
