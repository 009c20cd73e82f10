/* store.h -- ParamStore, the first of the three contracts that the model asks for (region.h and
 * stage.h are the others): when weights are needed, and when gradients are done.
 *
 * The model announces the order in which a step will use its units. Where the numbers are between
 * two uses, and what ranks must send each other for a use, is decided by the store alone: the model
 * sees neither shards nor prefetch. Implemented by parallel/zero.
 *
 * A weight is valid between acquire and release and no longer. Who reads and writes weights besides
 * the model (checkpoints, initial weights, the optimizer) does so over shards, which are resident.
 */
#ifndef MODEL_PARAM_STORE_H
#define MODEL_PARAM_STORE_H

#include "model/core/tensor.h"
#include "model/param/param.h"

/* One use of a unit in a step. */
typedef struct {
    int unit;
    bool weight, gradient; /* acquires the weights; acquires and releases the gradient */
} Use;

/* What somebody wants the shards for: to count each element once over all ranks (the gradient's
 * norm), or to update all that this rank keeps. */
typedef enum { PURPOSE_COUNT, PURPOSE_UPDATE } Purpose;

/* A contiguous piece of one range of a unit that belongs to this rank. Tensors are flat and dense.
 * The unit's last range has its padding, too, so a shard may hold no parameter at all. */
typedef struct {
    int unit;
    int64_t offset, count; /* elements into the unit */
    ParamGroup group;
    Tensor weight, grad;
} Shard;

typedef struct ParamStore ParamStore;
struct ParamStore {
    const ParamTable *table;
    GridPlace at; /* this rank's place: which part of a cut row it holds */
    /* The step's uses in order. They determine which release of a unit's gradient is the first of
     * the step (write, =) and which the last (reduce over the ranks). A use that comes out of this
     * order ends the program. n = 0: weights are read in any order, and no gradients are used. */
    void (*step_begin)(ParamStore *, const Use *uses, int64_t n);
    /* Full weights of the unit, ready on the compute stream, until release. */
    void (*acquire)(ParamStore *, int unit);
    void (*release)(ParamStore *, int unit);
    /* Between acquire and release: table rows [param, param + n), of one pack, stacked into one
     * dense tensor of the unit's dtype: (rows, cols), or (rows) for vectors; padding included. */
    Tensor (*weight)(ParamStore *, int param, int n);
    /* True: add (+=). False: write (=) every parameter of the unit; gaps and padding are zeroed by
     * the store. */
    bool (*grad_acquire)(ParamStore *, int unit);
    /* Between grad_acquire and grad_release: their gradients, likewise, in the gradient's dtype. */
    Tensor (*grad)(ParamStore *, int param, int n);
    void (*grad_release)(ParamStore *, int unit);
    /* Finishes what is reduced once a step. */
    void (*step_end)(ParamStore *);
    /* Fills shards[0..max), in ascending order of units, and returns how many there are. */
    int (*shards)(ParamStore *, Purpose purpose, Shard *shards, int max);
    /* After the update of a unit: other ranks see the new weights. All ranks call it, for the same
     * units in the same order, whether they have a shard of them or not. */
    void (*publish)(ParamStore *, int unit);
};

#endif
