/* prefetch.h -- when a unit's weights are gathered, how long they stay, and where: a pure function
 * of a step's uses, the units' sizes and DeepSpeed's keys. Sizes are in elements. */
#ifndef PARALLEL_ZERO_PREFETCH_H
#define PARALLEL_ZERO_PREFETCH_H

#include "model/param/store.h"

typedef struct {
    int64_t prefetch_bucket_size; /* elements gathered ahead of their use at any time */
    int64_t max_live_parameters;  /* elements gathered at any time; at least gathers_least */
    int64_t max_reuse_distance;   /* a unit stays when between two of its uses no more elements
                                     than this are used */
} GatherLimits;

/* One stay of a unit's weights in the buffer. Points are uses of weights, counted from 0 in the
 * order of the step; uses of a gradient alone are none. A unit that is used at point i is surely
 * released when point i + 2 begins, for a layer has two units at most. */
typedef struct {
    int unit;
    int64_t at;          /* gathered when this point begins, before its use */
    int64_t first, last; /* points at which it is used first and last */
    int64_t offset;      /* its place: elements into the buffer */
} Gather;

/* In the order in which they are carried out: `at` and `first` ascend. */
typedef struct {
    Gather *gather;
    int64_t n;
    int64_t elements; /* of the buffer: never more than max_live_parameters */
} GatherPlan;

/* The least max_live_parameters for these uses: the largest pair of units that are used in
 * succession. size[unit] is 0 for a unit that need not be gathered. */
int64_t gathers_least(const int64_t *size, const Use *uses, int64_t n_uses);
/* Free with gathers_free. */
GatherPlan gathers_plan(const int64_t *size, const Use *uses, int64_t n_uses,
                        const GatherLimits *limits);
void gathers_free(GatherPlan *plan);

#endif
