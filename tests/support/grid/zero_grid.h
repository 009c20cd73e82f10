/* zero_grid.h -- runs the store on a grid of ranks without a model: a parameter table written for
 * the test has rows of every kind, gradients are drawn for each element, and a simple simulation
 * computes the expected results. */
#ifndef TESTS_SUPPORT_GRID_ZERO_GRID_H
#define TESTS_SUPPORT_GRID_ZERO_GRID_H

#include "parallel/zero/zero.h"

enum { ZERO_GRID_RANKS = 16, ZERO_GRID_BLOCKS = 5 };

typedef struct {
    GridPlace size;
    int shard; /* data-parallel ranks of a shard group; 0: all */
    int kv;    /* number of key/value heads */
    bool tied;
    bool drawn; /* gradients are real numbers; otherwise small integers, whose sums are exact */
    int64_t micros;
    DType dtype;
    ZeroOptions zero; /* stage, sequence_parallel, sizes of buckets */
    /* NULL, or a function that injects a fault on a rank, in its own table, before anything is
     * used. */
    void (*plant)(Grid *grid, ParamTable *table);
    Purpose counts; /* PURPOSE_UPDATE injects a fault: a rank counts everything that it updates */
} ZeroGridCase;

/* The results, for the logical elements of all rows in the table's order. */
typedef struct {
    int64_t elements;
    double *gradient; /* the gradients on the ranks that count them; the caller frees them */
    double sq_norm;   /* sum over the ranks */
    /* The first difference from the simulation; "": none. Compared are: the sum of each element on
     * every rank that updates it; how often it is counted; the norm; each weight after its update,
     * on every rank that uses it; the numbers of elements sent; the bytes stored. */
    char wrong[512];
} ZeroGridResult;

/* Fills in the table: a token table, blocks with a row of every kind, a norm, and an untied head.
 */
void zero_grid_table(ParamTable *table, const ZeroGridCase *c);
/* Return whether this stage has the unit, and the unit's size, padded for its shards. */
bool zero_grid_here(const ParamTable *table, int unit, const GridPlace *at);
/* Return the ranks of a shard group, and the stage that the grid amounts to: with one data-parallel
 * rank nothing is divided, and in groups of one rank only the update is. */
int zero_grid_shard(const ZeroGridCase *c);
int zero_grid_stage(const ZeroGridCase *c);
int64_t zero_grid_padded(const ZeroGridCase *c, const ParamTable *table, int unit);
/* Lists the units of a stage's layers in their order, with a tied table at the embedding and at the
 * head. Returns their number. */
int zero_grid_layers(const ZeroGridCase *c, const ParamTable *table, int stage, int *unit);
/* What a rank sends at the end of a step, for sums over each group of several ranks: the number of
 * elements, and the number of calls, one for consecutive rows of a unit that are summed for the
 * same reason. units: padded size of the stage's units. */
typedef struct {
    int64_t elements, calls;
} ZeroGridSent;
typedef struct {
    ZeroGridSent tp, kv, tie;
    /* over the ranks that hold the same part: its sum, and as much again for updated weights */
    ZeroGridSent replicate;
    int64_t units;
    int64_t sums; /* gradients summed over the shard group, in elements of whole units */
} ZeroGridWire;
ZeroGridWire zero_grid_wire(const ZeroGridCase *c, const ParamTable *table, const GridPlace *at);
/* Returns the elements that stage 3 gathers for these uses of weights if nothing is kept for a
 * later use: each unit is gathered again, except if it is used twice in a row. */
int64_t zero_grid_gathered(const ZeroGridCase *c, const ParamTable *table, const Use *use,
                           int64_t n);
/* Runs two steps on as many threads as the grid has ranks. */
ZeroGridResult zero_grid_run(const ZeroGridCase *c);
void zero_grid_free(ZeroGridResult *r);
/* Returns a case for a grid with rows of every kind, without buckets and prefetch. */
ZeroGridCase zero_grid_case(GridPlace size, int stage);

#endif
