/* grid_place.h -- the axes of a grid of ranks, as sizes or as one rank's coordinates. */
#ifndef CONFIGS_GRID_PLACE_H
#define CONFIGS_GRID_PLACE_H

#include <stdint.h>

/* The axes of the grid of ranks: pipeline, data, context and tensor parallel. Once as the axes'
 * sizes, once as a rank's coordinates. */
typedef struct {
    int pp, dp, cp, tp;
} GridPlace;

/* The sizes of a grid of one rank. */
#define GRID_OF_ONE ((GridPlace){1, 1, 1, 1})

/* How many ranks a grid of these sizes has. */
static inline int64_t grid_ranks(GridPlace size)
{
    return (int64_t)size.pp * size.dp * size.cp * size.tp;
}

#endif
