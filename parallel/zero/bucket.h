/* bucket.h -- a list of units whose collectives are issued together as one group, up to a number of
 * elements. (A unit is the flat buffer of a block, a table, the final norm or the head; param.h.) A
 * unit is never divided, so a unit larger than a bucket gets its own bucket. */
#ifndef PARALLEL_ZERO_BUCKET_H
#define PARALLEL_ZERO_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int *unit, n;     /* units in the order in which they were added */
    int64_t elements; /* of all these units together */
    int64_t most;     /* limit of `elements` for a bucket with several units */
} Bucket;

/* Returns an empty bucket with room for `units` units; free it with bucket_free. */
Bucket bucket_create(int units, int64_t most);
void bucket_free(Bucket *bucket);
/* Returns whether a unit of `elements` elements still fits into the bucket. Also returns false for
 * an empty bucket if the unit is larger than a bucket. */
bool bucket_has_room(const Bucket *bucket, int64_t elements);
/* Adds a unit; `elements` is its size. */
void bucket_add(Bucket *bucket, int unit, int64_t elements);
/* Returns whether no further unit fits. */
bool bucket_is_full(const Bucket *bucket);
void bucket_clear(Bucket *bucket);

#endif
