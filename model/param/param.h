/* param.h -- what a parameter is, and where its numbers lie.
 *
 * One table, the same on every rank, says everything about every parameter: name, unit, shape,
 * dtype, how tensor parallelism cuts it, optimizer group, init, offset. Parameters lie in *units*
 * (token table, position table, each block, final norm, untied head): flat, padded buffers, the
 * grain in which weights are gathered and gradients reduced. Checkpoints name parameters, never
 * units. */
#ifndef MODEL_PARAM_PARAM_H
#define MODEL_PARAM_PARAM_H

#include "configs/grid_place.h"
#include "model/core/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* What a rank computes of the gradient of a row, and what is summed over tensor-parallel ranks. */
typedef enum {
    TP_GRAD_CUT,           /* each rank has its own part: nothing to do */
    TP_GRAD_WHOLE,         /* every rank computes the whole, equal gradient; no row has it yet */
    TP_GRAD_PARTIAL_IF_SP, /* norms: partial sums under sequence parallel, whole otherwise */
    TP_GRAD_PARTIAL,       /* QK-norm: each rank sums over its own heads */
    TP_GRAD_SUBGROUP, /* kv heads < tp: the ranks that share a head have equal weights, and each
                         sums over its own query heads: partial sums among them */
} TpGrad;

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL } Init;

/* Optimizer groups: which rules apply to a row. */
typedef enum { GROUP_DECAY, GROUP_NO_DECAY, GROUP_COUNT } ParamGroup;

typedef struct {
    char name[56]; /* "block.7.attn.q.weight": log, checkpoint key, test name; its hash keys the
                      init stream */
    int unit;
    int pack; /* rows of one pack lie gap-free in row order: one Linear spans them. Unique number
                 per pack */
    DType dtype;
    int ndim;
    int64_t dim[2];    /* logical shape: what checkpoints hold */
    int64_t padded[2]; /* with padding rows, which stay zero */
    int64_t local[2];  /* this tensor-parallel rank's part of `padded`, of one size on all */
    int tp_dim;        /* -1 replicated, 0 rows, 1 columns */
    int sharers;       /* of a row that is cut: neighbouring ranks that hold the same part */
    TpGrad tp_grad;
    ParamGroup group;
    int64_t offset; /* elements into its unit */
    Init init;
    float std;
} Param;

/* A part of a unit in which all rows have equal (tp_grad, group), gaps included. */
typedef struct {
    int64_t offset, count;
    ParamGroup group;
    TpGrad tp_grad;
} Range;

/* The pipeline stages that hold a unit: one, or the first and the last where the tables of
 * embedding and head are tied. The first of them counts it. */
typedef struct {
    int stage[2], n;
} Home;
static inline bool home_is(const Home *home, int stage)
{
    return home->stage[0] == stage || (home->n > 1 && home->stage[1] == stage);
}

typedef struct {
    int first, count; /* rows of the table */
    Home home;
    DType dtype;
    int64_t size; /* elements, padded to PARAM_ALIGNMENT */
    Range *range;
    int n_ranges;
} Unit;

typedef struct ParamTable {
    int tp; /* tensor-parallel ranks that rows are cut over; 0 is 1 */
    int kv; /* heads of keys and values: TP_GRAD_SUBGROUP rows have at most so many parts; 0: any */
    Param *param;
    int n_params, capacity;
    Unit *unit;
    int n_units;
} ParamTable;

/* Packs start at multiples of this many elements, and units are padded to one. */
#define PARAM_ALIGNMENT ((int64_t)128)

/* A row as it is added to the table; param_table_layout works out the rest of a Param. */
typedef struct {
    const char *name;
    int pack;           /* < 0: a pack of its own; rows with the same pack >= 0 follow each other */
    int64_t rows, cols; /* cols 0: a vector of `rows` */
    int64_t padded_rows; /* 0: rows */
    int tp_dim;
    TpGrad tp_grad;
    ParamGroup group;
    Init init;
    double std;
} ParamSpec;
/* Adds a row and returns its index. Units come in ascending order, each with all its rows. */
int param_table_add(ParamTable *table, int unit, DType dtype, const ParamSpec *spec);
/* Assigns offsets and ranges: within a unit rows are laid out by (tp_grad, group), stable. Call
 * once, after all rows. */
void param_table_layout(ParamTable *table);
void param_table_free(ParamTable *table);

/* Logical elements of one row, of all rows. */
int64_t param_count(const Param *param);
int64_t param_table_count(const ParamTable *table);

/* The one owner rule, for norms and checkpoints: whether the rank at `at` in a grid of `size`
 * counts row `param`, which it holds. All ranks of a tensor-parallel group hold a row that is not
 * cut, and its first counts it; of the ranks that share a head of keys and values the first counts
 * its part; of the stages that hold a unit the first does. */
bool param_owned_here(const ParamTable *table, int param, const GridPlace *size,
                      const GridPlace *at);

#endif
