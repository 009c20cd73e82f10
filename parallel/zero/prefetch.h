/* prefetch.h -- plans when each unit's weights are gathered, how long they are kept, and where: a
 * pure function of a step's uses of units, the units' sizes and DeepSpeed's keys. Sizes are in
 * elements. */
#ifndef PARALLEL_ZERO_PREFETCH_H
#define PARALLEL_ZERO_PREFETCH_H

#include "model/param/store.h"

typedef struct {
    int64_t prefetch_bucket_size; /* limit of the elements that are gathered ahead of their use at
                                     any time */
    int64_t max_live_parameters;  /* limit of the elements in the buffer at any time; at least
                                     gathers_least */
    int64_t max_reuse_distance;   /* a unit is kept between two of its uses only if the uses in
                                     between read at most this many elements in all */
} GatherLimits;

/* A stay: the time during which a unit's weights are in the buffer. Points are uses of weights,
 * counted from 0 in the order of the step; uses of only a gradient do not count. A unit that is
 * used at point i has been released when point i + 2 begins, because a layer has at most two units.
 */
typedef struct {
    int unit;
    int64_t at;          /* gathered when this point begins, before its use */
    int64_t first, last; /* points at which it is used first and last */
    int64_t offset;      /* its position in the buffer, in elements */
} Gather;

/* All stays in the order in which they begin: `at` and `first` ascend. */
typedef struct {
    Gather *gather;
    int64_t n;
    int64_t elements; /* size of the buffer: at most max_live_parameters */
} GatherPlan;

/* Returns the smallest possible max_live_parameters for these uses: the size of the largest pair of
 * units that are used in succession. size[unit] is 0 for a unit that is not gathered. */
int64_t gathers_least(const int64_t *size, const Use *uses, int64_t n_uses);
/* Returns the plan for these uses and limits; free it with gathers_free. */
GatherPlan gathers_plan(const int64_t *size, const Use *uses, int64_t n_uses,
                        const GatherLimits *limits);
void gathers_free(GatherPlan *plan);

#endif
