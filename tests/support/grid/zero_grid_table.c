/* zero_grid_table.c -- builds a parameter table with a row of every kind for any grid, and computes
 * how many of its elements are sent in a step. */
#include "tests/support/grid/zero_grid.h"

#include <stdio.h>

static void add(ParamTable *table, const ZeroGridCase *c, int unit, const char *what, ParamSpec row)
{
    char name[56];
    snprintf(name, sizeof name, "unit.%d.%s", unit, what);
    row.name = name;
    row.init = INIT_ZERO;
    param_table_add(table, unit, c->dtype, &row);
}

/* Adds the rows of block u. The rows k and v form a pack, whose number is that of the unit. */
static void add_block(ParamTable *t, const ZeroGridCase *c, int u)
{
    ParamSpec norm = {.pack = -1, .rows = 7, .tp_dim = -1, .tp_grad = TP_GRAD_PARTIAL_IF_SP},
              q = {.pack = -1, .rows = 24, .cols = 5, .tp_dim = 0, .tp_grad = TP_GRAD_CUT},
              k = {.pack = u, .rows = 3L * c->kv, .cols = 5, .tp_grad = TP_GRAD_SUBGROUP},
              qk = {.pack = -1, .rows = 6, .tp_dim = -1, .tp_grad = TP_GRAD_PARTIAL},
              out = {.pack = -1, .rows = 5, .cols = 24, .tp_dim = 1, .tp_grad = TP_GRAD_CUT},
              shift = norm, bias = k, bend = out;
    norm.group = qk.group = shift.group = bias.group = GROUP_NO_DECAY;
    shift.rows = 5;
    bias.pack = -1;
    bias.cols = 0;
    bend.rows = 3;
    bend.cols = 12;
    add(t, c, u, "norm", norm);
    add(t, c, u, "q", q);
    add(t, c, u, "k", k);
    add(t, c, u, "v", k);
    add(t, c, u, "k.bias", bias);
    add(t, c, u, "q_norm", qk);
    add(t, c, u, "out", out);
    add(t, c, u, "out.bias", shift);
    add(t, c, u, "bend", bend);
    t->unit[u].home.stage[0] = (u - 1) * c->size.pp / ZERO_GRID_BLOCKS;
}

void zero_grid_table(ParamTable *t, const ZeroGridCase *c)
{
    ParamSpec token = {.pack = -1, .rows = 37, .cols = 5, .padded_rows = 48, .tp_dim = 0},
              norm = {.pack = -1, .rows = 9, .tp_dim = -1, .tp_grad = TP_GRAD_PARTIAL_IF_SP};
    *t = (ParamTable){.tp = c->size.tp, .kv = c->kv};
    add(t, c, 0, "token", token);
    for (int u = 1; u <= ZERO_GRID_BLOCKS; u++)
        add_block(t, c, u);
    add(t, c, ZERO_GRID_BLOCKS + 1, "norm", norm);
    t->unit[ZERO_GRID_BLOCKS + 1].home.stage[0] = c->size.pp - 1;
    if (c->tied && c->size.pp > 1) t->unit[0].home = (Home){{0, c->size.pp - 1}, 2};
    if (!c->tied) {
        add(t, c, ZERO_GRID_BLOCKS + 2, "head", token);
        t->unit[ZERO_GRID_BLOCKS + 2].home.stage[0] = c->size.pp - 1;
    }
    param_table_layout(t);
}

bool zero_grid_here(const ParamTable *table, int unit, const GridPlace *at)
{
    const Home *home = &table->unit[unit].home;
    return home->stage[0] == at->pp || (home->n > 1 && home->stage[1] == at->pp);
}

int zero_grid_layers(const ZeroGridCase *c, const ParamTable *table, int stage, int *unit)
{
    int n = 0;
    for (int u = 0; u < table->n_units; u++)
        if (zero_grid_here(table, u, &(GridPlace){.pp = stage}) && (u > 0 || stage == 0))
            unit[n++] = u;
    if (c->tied && stage == c->size.pp - 1) unit[n++] = 0;
    return n;
}

int64_t zero_grid_padded(const ZeroGridCase *c, const ParamTable *table, int unit)
{
    int64_t grain = 128L * c->size.dp;
    return (table->unit[unit].size + grain - 1) / grain * grain;
}

int zero_grid_shard(const ZeroGridCase *c)
{
    return c->shard > 0 ? c->shard : c->size.dp;
}

int zero_grid_stage(const ZeroGridCase *c)
{
    int stage = c->size.dp == 1 ? 0 : c->zero.stage;
    return zero_grid_shard(c) == 1 && stage > 1 ? 1 : stage;
}

/* Returns the TpGrad of the row that contains element `e` of the unit. */
static TpGrad kind_at(const Unit *unit, int64_t e)
{
    for (int r = 0; r < unit->n_ranges; r++)
        if (e >= unit->range[r].offset && e < unit->range[r].offset + unit->range[r].count)
            return unit->range[r].tp_grad;
    return TP_GRAD_WHOLE; /* padding */
}

static void count_element(ZeroGridSent *sent, bool begins)
{
    sent->elements++;
    sent->calls += begins;
}

ZeroGridWire zero_grid_wire(const ZeroGridCase *c, const ParamTable *table, const GridPlace *at)
{
    ZeroGridWire wire = {0};
    int stage = zero_grid_stage(c), shard = zero_grid_shard(c), groups = c->size.dp / shard;
    bool all = stage == 0;
    for (int u = 0; u < table->n_units; u++) {
        const Unit *unit = &table->unit[u];
        /* A shard group divides the unit into parts; the k-th ranks of all groups divide the k-th
         * part into shares. */
        int64_t size = zero_grid_here(table, u, at) ? zero_grid_padded(c, table, u) : 0,
                part = size / (all ? 1 : c->size.dp),
                first = all ? 0 : (at->dp % shard * groups + at->dp / shard) * part;
        bool once = stage < 2 || (c->tied && u == 0 && c->size.pp == 1);
        wire.units += size;
        wire.sums += shard > 1 ? size * (once ? 1 : c->micros) : 0;
        wire.replicate.elements += groups > 1 ? size / shard : 0;
        wire.replicate.calls += groups > 1 && size > 0;
        for (int64_t e = first; e < first + part; e++) {
            TpGrad kind = kind_at(unit, e);
            bool begins = e == first || kind != kind_at(unit, e - 1);
            if (unit->home.n > 1) count_element(&wire.tie, e == first);
            if (kind == TP_GRAD_PARTIAL ||
                (kind == TP_GRAD_PARTIAL_IF_SP && c->zero.sequence_parallel))
                count_element(&wire.tp, begins);
            if (kind == TP_GRAD_SUBGROUP) count_element(&wire.kv, begins);
        }
    }
    return wire;
}

int64_t zero_grid_gathered(const ZeroGridCase *c, const ParamTable *table, const Use *use,
                           int64_t n)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || use[i].unit != use[i - 1].unit)
            elements += zero_grid_padded(c, table, use[i].unit);
    return elements;
}
