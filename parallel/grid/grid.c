/* grid.c -- see grid.h. */
#include "parallel/grid/grid.h"

#include "model/core/check.h"

#include <stdio.h>

GridPlace grid_place(GridPlace size, int rank)
{
    GridPlace at;
    at.tp = rank % size.tp;
    rank /= size.tp;
    at.cp = rank % size.cp;
    rank /= size.cp;
    at.dp = rank % size.dp;
    at.pp = rank / size.dp;
    return at;
}

char *grid_place_text(GridPlace size, int rank, char *text, size_t n)
{
    GridPlace at = grid_place(size, rank);
    const struct {
        const char *name;
        int size, at;
    } axis[] = {{"pp", size.pp, at.pp},
                {"dp", size.dp, at.dp},
                {"cp", size.cp, at.cp},
                {"tp", size.tp, at.tp}};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof axis / sizeof *axis && used < n; i++)
        if (axis[i].size > 1)
            used += (size_t)snprintf(text + used, n - used, "%s%s %d", used ? " " : "",
                                     axis[i].name, axis[i].at);
    return text;
}

/* The number of the line along one axis that the rank lies on: its coordinates without that
 * axis'. */
static int line_of(GridPlace size, GridPlace at)
{
    return ((at.pp * size.dp + at.dp) * size.cp + at.cp) * size.tp + at.tp;
}

Grid grid_open(Comm *world, GridPlace size)
{
    int ranks = size.pp * size.dp * size.cp * size.tp;
    CHECK(ranks == world->size, "a grid of %d ranks in a world of %d", ranks, world->size);
    GridPlace at = grid_place(size, world->rank);
    GridPlace pp = at, dp = at, cp = at, tp = at;
    pp.pp = dp.dp = cp.cp = tp.tp = 0;
    Grid grid = {.size = size, .at = at};
    grid.pp = comm_split(world, "pp", line_of(size, pp), at.pp);
    grid.dp = comm_split(world, "dp", line_of(size, dp), at.dp);
    grid.cp = comm_split(world, "cp", line_of(size, cp), at.cp);
    grid.tp = comm_split(world, "tp", line_of(size, tp), at.tp);
    grid.shard = comm_split(world, "shard", line_of(size, dp), at.dp);
    grid.replicate = comm_self("replicate");
    return grid;
}

Grid grid_single(void)
{
    Comm world = comm_self("world");
    Grid grid = grid_open(&world, GRID_OF_ONE);
    comm_close(&world);
    return grid;
}

void grid_close(Grid *grid)
{
    comm_close(&grid->pp);
    comm_close(&grid->dp);
    comm_close(&grid->cp);
    comm_close(&grid->tp);
    comm_close(&grid->shard);
    comm_close(&grid->replicate);
}
