/* param.h -- what a parameter is, and where its numbers lie.
 *
 * One table, the same on every rank, says everything about every parameter: name, unit, shape,
 * dtype, how tensor parallelism cuts it, optimizer group, init, offset. Parameters lie in *units*
 * (token table, position table, each block, final norm, untied head): flat, padded buffers, the
 * grain in which weights are gathered and gradients reduced. Checkpoints name parameters, never
 * units. */
#ifndef MODEL_PARAM_PARAM_H
#define MODEL_PARAM_PARAM_H

#include "model/core/device.h"

/* How the gradient of a row is finished over the tensor-parallel axis. */
typedef enum {
    TP_GRAD_CUT,           /* each rank has its own part: nothing to do */
    TP_GRAD_WHOLE,         /* every rank computes the whole, equal gradient */
    TP_GRAD_PARTIAL_IF_SP, /* norms: partial sums under sequence parallel, whole otherwise */
    TP_GRAD_PARTIAL,       /* QK-norm: each rank sums over its own heads */
    TP_GRAD_SUBGROUP,      /* kv heads < tp: equal on the ranks that share a head */
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
    int64_t local[2];  /* this tensor-parallel rank's part of `padded`, equal on all */
    int tp_dim;        /* -1 replicated, 0 rows, 1 columns */
    TpGrad tp_grad;
    ParamGroup group;
    int64_t offset; /* elements into its unit */
    Init init;
    float std;
} Param;

/* A run of a unit in which all rows have equal (tp_grad, group), gaps included. */
typedef struct {
    int64_t offset, count;
    ParamGroup group;
    TpGrad tp_grad;
} Range;

typedef struct {
    int first, count; /* rows of the table */
    DType dtype;
    int64_t size; /* elements, padded to PARAM_ALIGNMENT */
    Range *range;
    int n_ranges;
} Unit;

typedef struct ParamTable {
    Param *param;
    int n_params, capacity;
    Unit *unit;
    int n_units;
} ParamTable;

/* Packs start at multiples of this many elements; units are padded to it (for shards: times dp). */
#define PARAM_ALIGNMENT ((int64_t)128)

/* Building: rows of one unit are added together, units in ascending order. Returns the row's index.
 * `pack` < 0 gives the row a pack of its own; rows with the same pack >= 0 must follow each other.
 */
typedef struct {
    const char *name;
    int pack;
    int64_t rows, cols;  /* cols 0: a vector of `rows` */
    int64_t padded_rows; /* 0: rows */
    int tp_dim;
    TpGrad tp_grad;
    ParamGroup group;
    Init init;
    double std;
} ParamSpec;
int param_table_add(ParamTable *table, int unit, DType dtype, const ParamSpec *spec);
/* Assigns offsets and ranges: within a unit rows are laid out by (tp_grad, group), stable. Call
 * once, after all rows. */
void param_table_layout(ParamTable *table);
void param_table_free(ParamTable *table);

/* Row called `name`, or -1. */
int param_find(const ParamTable *table, const char *name);
/* Logical elements of one row, of all rows. */
int64_t param_count(const Param *param);
int64_t param_table_count(const ParamTable *table);
/* The one owner rule, for norms and checkpoints: which rank of a grid counts and writes row
 * `param`. */
bool param_owned_here(const ParamTable *table, int param, int tp_rank);

/* ---- the store: the contract behind which sharding and prefetch hide ------------------------- */

/* One use of a unit in a step, in the order in which the model will ask. */
typedef struct {
    int unit;
    bool weight, gradient; /* acquires the weights; acquires and releases the gradient */
} Use;

/* Why somebody walks the runs: to count each element once over all ranks (norm), or to update what
 * this rank keeps. */
typedef enum { PURPOSE_COUNT, PURPOSE_UPDATE } Purpose;

/* A piece of one range of a unit that this rank owns. Tensors are flat and dense. */
typedef struct {
    int unit;
    int64_t offset, count; /* elements into the unit */
    ParamGroup group;
    Tensor weight, grad;
} OwnedRun;

/* Implemented by parallel/zero/zero.c. The model says when it needs weights and when it is done
 * with gradients, never what must be communicated. */
typedef struct ParamStore ParamStore;
struct ParamStore {
    const ParamTable *table;
    /* The step's uses in order. Tells the first (=) and the last (reduce) gradient release of each
     * unit. */
    void (*step_begin)(ParamStore *, const Use *uses, int n);
    /* Full weights of the unit, ready on the compute stream, until release. */
    void (*acquire)(ParamStore *, int unit);
    void (*release)(ParamStore *, int unit);
    /* Between acquire and release: rows [param, param + n) of one pack as one tensor (their rows
     * stacked). */
    Tensor (*weight)(ParamStore *, int param, int n);
    /* True: add (+=). False: write (=) every parameter of the unit; gaps and padding are zeroed by
     * the store. */
    bool (*grad_acquire)(ParamStore *, int unit);
    Tensor (*grad)(ParamStore *, int param, int n);
    void (*grad_release)(ParamStore *, int unit);
    /* Finishes what is reduced once a step. */
    void (*step_end)(ParamStore *);
    /* Fills runs[0..max) and returns how many there are. */
    int (*owned)(ParamStore *, Purpose purpose, OwnedRun *runs, int max);
    /* After the update of a unit: other ranks see the new weights. */
    void (*publish)(ParamStore *, int unit);
};

/* Fills every row's local part by global element index; padding and gaps zero. Needs acquired
 * units. */
void param_init_unit(Device *dev, ParamStore *store, int unit, uint64_t seed);

#endif
