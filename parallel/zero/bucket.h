/* bucket.h -- a list of units whose collectives go out together, as one group, up to a number of
 * elements. A unit is never cut, so one that is larger than a bucket has a bucket to itself. */
#ifndef PARALLEL_ZERO_BUCKET_H
#define PARALLEL_ZERO_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int *unit, n;     /* units in the order in which they were added */
    int64_t elements; /* of all units in it */
    int64_t most;     /* elements up to which units share a group */
} Bucket;

/* An empty bucket with places for so many units. Free with bucket_free. */
Bucket bucket_create(int units, int64_t most);
void bucket_free(Bucket *bucket);
/* Whether a unit of so many elements may join those in the bucket. False of an empty bucket, too,
 * for a unit that is larger than a bucket. */
bool bucket_has_room(const Bucket *bucket, int64_t elements);
/* Adds a unit; `elements` is its size. */
void bucket_add(Bucket *bucket, int unit, int64_t elements);
/* Whether no further unit can join. */
bool bucket_is_full(const Bucket *bucket);
void bucket_clear(Bucket *bucket);

#endif
