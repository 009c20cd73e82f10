/* store.h -- ParamStore, the interface between the model and the storage of weights and gradients.
 * The model tells the store when it needs weights and when gradients are complete. (The other two
 * interfaces are region.h and stage.h.)
 *
 * Before a step, the model announces in which order it will use its units, the groups in which
 * parameters are stored (param.h). The store alone decides where weights and gradients are between
 * two uses, and what the ranks send each other: the model sees neither shards nor prefetch.
 * Implemented by parallel/zero.
 *
 * A weight is valid only between acquire and release. Other code that reads or writes weights
 * (checkpoints, initial weights, the optimizer) uses shards, which always stay in memory. An update
 * of the shards may still be running on another stream than the compute stream, so such code first
 * waits for the device, or for the update (optimizer_await). */
#ifndef MODEL_PARAM_STORE_H
#define MODEL_PARAM_STORE_H

#include "model/core/device.h"
#include "model/param/param.h"

/* One use of a unit in a step: the unit is acquired, used by a layer and released. */
typedef struct {
    int unit;
    bool weight, gradient; /* whether the unit's weights, and its gradient, are acquired */
} Use;

/* The purpose of a list of shards: to count each element once over all ranks (for the gradient
 * norm), or to update all elements that this rank keeps. */
typedef enum { PURPOSE_COUNT, PURPOSE_UPDATE } Purpose;

/* A contiguous part of one range of a unit that belongs to this rank. Tensors are flat and dense.
 * The unit's last range includes its padding, so a shard may contain no parameter at all. */
typedef struct {
    int unit;
    int64_t offset, count; /* position and length in elements of the unit */
    ParamGroup group;
    Tensor weight, grad;
} Shard;

typedef struct ParamStore ParamStore;
struct ParamStore {
    const ParamTable *table;
    GridPlace at; /* this rank's place in the grid: which part of a split row it has */
    /* Begins a step. `uses` lists all uses of units in the step, in order; a use in another order
     * ends the program. The list tells the store which use of a gradient is the first of the step,
     * which writes it (=), and which is the last, after which the gradient is reduced over the
     * ranks. n = 0: weights may be read in any order, and no gradients are used. */
    void (*step_begin)(ParamStore *, const Use *uses, int64_t n);
    /* Makes the full weights of the unit available on the compute stream until release. */
    void (*acquire)(ParamStore *, int unit);
    void (*release)(ParamStore *, int unit);
    /* Valid between acquire and release: returns the table rows [param, param + n), which must be
     * of one pack, as one dense tensor of the unit's dtype. It is (rows, cols), or (rows) for
     * vectors, and includes padding. */
    Tensor (*weight)(ParamStore *, int param, int n);
    /* Makes the unit's gradient available until grad_release. Returns true if it must be added to
     * (+=), false if every parameter of the unit must be written (=); the store zeroes gaps and
     * padding. */
    bool (*grad_acquire)(ParamStore *, int unit);
    /* Valid between grad_acquire and grad_release: like `weight`, but returns gradients, in the
     * gradient's dtype. */
    Tensor (*grad)(ParamStore *, int param, int n);
    void (*grad_release)(ParamStore *, int unit);
    /* Ends the step: finishes the reductions that run once per step. */
    void (*step_end)(ParamStore *);
    /* Fills shards[0..max) in ascending order of units and returns how many there are. */
    int (*shards)(ParamStore *, Purpose purpose, Shard *shards, int max);
    /* Makes the updated weights of a unit visible to the other ranks. All ranks call it for the
     * same units in the same order, even for units of which they have no shard. `updated` is an
     * event on another stream of the device, recorded after the update of this rank's shards of the
     * unit. The event must stay valid until the end of the next step (by then the store has waited
     * for it) or until the store is destroyed. NULL: the update is on the compute stream. */
    void (*publish)(ParamStore *, int unit, Event *updated);
    /* Whether publish may send weights while later units are still updated. If not, all units are
     * updated before the first one is published. */
    bool publish_overlaps;
    /* (n_units) The order in which units are updated and published: the units that the next step
     * uses first come first. It is the same on all ranks of a stage. NULL: the order of the
     * table. */
    const int *order;
};

#endif
