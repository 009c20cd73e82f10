/* param.h -- the table of parameters: a description of each parameter and its place in memory.
 *
 * One table, the same on every rank, describes each parameter in one row: name, unit, shape, dtype,
 * how tensor parallelism splits it, optimizer group, initialisation, offset. Parameters are stored
 * in units: flat, padded buffers, one for each block, token table, position table, final norm and
 * untied head. Weights are gathered and gradients are reduced one unit at a time. Checkpoints store
 * parameters by name and do not depend on units. */
#ifndef MODEL_PARAM_PARAM_H
#define MODEL_PARAM_PARAM_H

#include "configs/grid_place.h"
#include "model/core/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* How the ranks of a tensor-parallel group compute the gradient of a row, and whether it must be
 * summed over the ranks. */
typedef enum {
    TP_GRAD_CUT,   /* each rank has its own part: nothing to sum */
    TP_GRAD_WHOLE, /* every rank computes the same whole gradient; not used yet */
    /* Norms, positions, and biases that are added after a sum over the ranks: a partial sum
     * over this rank's rows under sequence parallelism, else whole. */
    TP_GRAD_PARTIAL_IF_SP,
    TP_GRAD_PARTIAL, /* QK-norm: a partial sum over this rank's heads */
    /* k and v, if there are fewer kv heads than ranks. Ranks that share a kv head have equal
     * weights, but each computes the gradient from its own query heads only, so these partial sums
     * must be added. */
    TP_GRAD_SUBGROUP,
} TpGrad;

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL } Init;

/* Optimizer groups: whether weight decay applies to a row. */
typedef enum { GROUP_DECAY, GROUP_NO_DECAY, GROUP_COUNT } ParamGroup;

typedef struct {
    /* "block.7.attn.q.weight": used in logs and as checkpoint key; its hash selects the random
     * numbers of the initial weights. */
    char name[56];
    int unit;
    /* Rows with the same pack number are adjacent without gaps, so that one product (Linear)
     * reads them as one matrix. */
    int pack;
    DType dtype;
    int ndim;
    int64_t dim[2];    /* logical shape, as in checkpoints */
    int64_t padded[2]; /* with padding rows, which stay zero */
    int64_t local[2];  /* size of each tensor-parallel rank's part of `padded` */
    int tp_dim;        /* -1 replicated, 0 rows are split, 1 columns are split */
    int sharers;       /* if split: number of adjacent ranks that have the same part */
    TpGrad tp_grad;
    ParamGroup group;
    int64_t offset; /* position in its unit, in elements */
    Init init;
    float std;
} Param;

/* A part of a unit, including gaps between rows, in which all rows have the same tp_grad and the
 * same group. */
typedef struct {
    int64_t offset, count;
    ParamGroup group;
    TpGrad tp_grad;
} Range;

/* The pipeline stages that hold a unit. A token table that is tied to the head is on the first and
 * the last stage of the pipeline; every other unit is on one stage. stage[0] counts the unit in the
 * gradient norm and writes it to checkpoints. */
typedef struct {
    int stage[2], n;
} Home;
static inline bool home_is(const Home *home, int stage)
{
    return home->stage[0] == stage || (home->n > 1 && home->stage[1] == stage);
}

typedef struct {
    int first, count; /* first row and number of rows in the table */
    Home home;
    DType dtype;
    int64_t size; /* size in elements, padded to PARAM_ALIGNMENT */
    Range *range;
    int n_ranges;
} Unit;

typedef struct ParamTable {
    int tp; /* number of tensor-parallel ranks; 0 means 1 */
    /* Number of kv heads: TP_GRAD_SUBGROUP rows are split into at most that many parts; 0: no
     * limit. */
    int kv;
    Param *param;
    int n_params, capacity;
    Unit *unit;
    int n_units;
} ParamTable;

/* Packs start at multiples of this many elements, and the size of a unit is padded to a multiple of
 * it. */
#define PARAM_ALIGNMENT ((int64_t)128)

/* Describes a row that is added to the table. param_table_layout computes the other fields of
 * Param. */
typedef struct {
    const char *name;
    int pack;            /* < 0: alone in its pack; rows with the same number are adjacent */
    int64_t rows, cols;  /* cols 0: a vector of `rows` */
    int64_t padded_rows; /* 0: same as rows */
    int tp_dim;
    TpGrad tp_grad;
    ParamGroup group;
    Init init;
    double std;
} ParamSpec;
/* Adds a row and returns its index. Units must be added in ascending order, each with all its
 * rows. */
int param_table_add(ParamTable *table, int unit, DType dtype, const ParamSpec *spec);
/* Computes offsets and ranges: within a unit, rows are sorted by (tp_grad, group) and otherwise
 * keep their order. Call once, after all rows are added. */
void param_table_layout(ParamTable *table);
void param_table_free(ParamTable *table);

/* Returns the number of logical (not padding) elements of one row. */
int64_t param_count(const Param *param);
/* Returns the number of logical elements of all rows. */
int64_t param_table_count(const ParamTable *table);

/* Returns whether this rank counts its part of row `param` in the gradient norm and writes it to
 * checkpoints. Exactly one of the ranks that hold the same part does so. If the row is not split,
 * this is the first rank of the tensor-parallel group. If ranks share a kv head, it is the first of
 * these ranks. If two stages hold the unit, it is on the first one. `at` is this rank's place in a
 * grid of `size`. */
bool param_owned_here(const ParamTable *table, int param, const GridPlace *size,
                      const GridPlace *at);

#endif
