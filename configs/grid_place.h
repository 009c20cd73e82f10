/* grid_place.h -- GridPlace: the sizes of the four axes of a grid of ranks, or one rank's
 * coordinates on them. */
#ifndef CONFIGS_GRID_PLACE_H
#define CONFIGS_GRID_PLACE_H

#include <stdint.h>

/* One number per axis of the grid of ranks: pipeline, data, context and tensor parallel. It holds
 * either the sizes of the axes or the coordinates of one rank. */
typedef struct {
    int pp, dp, cp, tp;
} GridPlace;

/* The axis sizes of a grid that has one rank. */
#define GRID_OF_ONE ((GridPlace){1, 1, 1, 1})

/* Returns the number of ranks in a grid of this size. */
static inline int64_t grid_ranks(GridPlace size)
{
    return (int64_t)size.pp * size.dp * size.cp * size.tp;
}

#endif
