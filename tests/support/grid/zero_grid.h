/* zero_grid.h -- the store on a grid of ranks without a model: a table made by hand has rows of
 * every kind, gradients are drawn by element, and a naive simulation says what must come out. */
#ifndef TESTS_SUPPORT_GRID_ZERO_GRID_H
#define TESTS_SUPPORT_GRID_ZERO_GRID_H

#include "parallel/zero/zero.h"

enum { ZERO_GRID_RANKS = 16, ZERO_GRID_BLOCKS = 5 };

typedef struct {
    GridPlace size;
    int kv; /* heads of keys and values */
    bool tied;
    bool drawn; /* gradients are real numbers; else small integers, whose sums are exact */
    int64_t micros;
    DType dtype;
    ZeroOptions zero; /* stage, sequence_parallel, sizes of buckets */
    /* NULL, or what a test breaks on a rank before anything is used; on a table of its own. */
    void (*plant)(Grid *grid, ParamTable *table);
    Purpose counts; /* PURPOSE_UPDATE: a fault; a rank counts all that it updates */
} ZeroGridCase;

/* What comes out, for the logical elements of all rows in the table's order. */
typedef struct {
    int64_t elements;
    double *gradient; /* as the ranks that count them have them; the caller frees */
    double sq_norm;   /* sum over the ranks */
    /* The first difference to the naive simulation; "": there is none. Compared are an element's
     * sum on every rank that updates it; how often it is counted; the norm; a weight after its
     * update, wherever it is used; the numbers of elements that travel; the bytes that are kept. */
    char wrong[512];
} ZeroGridResult;

/* The table: a token table, blocks with a row of every kind, a norm, and an untied head. */
void zero_grid_table(ParamTable *table, const ZeroGridCase *c);
/* Whether this stage has the unit; the unit's elements, padded for its shards. */
bool zero_grid_here(const ParamTable *table, int unit, const GridPlace *at);
int64_t zero_grid_padded(const ZeroGridCase *c, const ParamTable *table, int unit);
/* The units of a stage's layers in their order: those of its homes, a tied table where the
 * embedding is, and where the head is. Returns how many. */
int zero_grid_layers(const ZeroGridCase *c, const ParamTable *table, int stage, int *unit);
/* What a rank sends to be summed at the end of a step, over each group that has several ranks:
 * elements, of those that it keeps, counted one by one; and calls: one for all neighbours in a unit
 * that are summed for the same reason. units: elements of its stage's units, padded. */
typedef struct {
    int64_t elements, calls;
} ZeroGridSent;
typedef struct {
    ZeroGridSent tp, kv, tie;
    int64_t units;
} ZeroGridWire;
ZeroGridWire zero_grid_wire(const ZeroGridCase *c, const ParamTable *table, const GridPlace *at);
/* Elements that stage 3 gathers for these uses of weights where nothing is kept for a later one:
 * each unit anew, but where it is used twice in a row. */
int64_t zero_grid_gathered(const ZeroGridCase *c, const ParamTable *table, const Use *use,
                           int64_t n);
/* Two steps on as many threads as the grid has ranks. */
ZeroGridResult zero_grid_run(const ZeroGridCase *c);
void zero_grid_free(ZeroGridResult *r);
/* A case for a grid with rows of every kind: no buckets, nothing gathered ahead. */
ZeroGridCase zero_grid_case(GridPlace size, int stage);

#endif
