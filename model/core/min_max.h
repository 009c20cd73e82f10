/* min_max.h -- the smaller and the larger of two integers. */
#ifndef MODEL_CORE_MIN_MAX_H
#define MODEL_CORE_MIN_MAX_H

#include <stdint.h>

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
