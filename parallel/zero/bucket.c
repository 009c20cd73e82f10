/* bucket.c -- see bucket.h. */
#include "parallel/zero/bucket.h"

#include "model/core/check.h"

#include <stdlib.h>

Bucket bucket_create(int units, int64_t most)
{
    return (Bucket){.unit = must_calloc((size_t)units, sizeof(int)), .most = most};
}

void bucket_free(Bucket *bucket)
{
    free(bucket->unit);
    *bucket = (Bucket){0};
}

bool bucket_has_room(const Bucket *bucket, int64_t elements)
{
    return bucket->elements + elements <= bucket->most;
}

void bucket_add(Bucket *bucket, int unit, int64_t elements)
{
    bucket->unit[bucket->n++] = unit;
    bucket->elements += elements;
}

bool bucket_is_full(const Bucket *bucket)
{
    return bucket->elements >= bucket->most;
}

void bucket_clear(Bucket *bucket)
{
    bucket->n = 0;
    bucket->elements = 0;
}
