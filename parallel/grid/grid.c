/* grid.c -- computes a rank's coordinates in the grid, and opens and connects its groups. See
 * grid.h. */
#include "parallel/grid/grid.h"

#include "model/core/check.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/machines.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* The axes, from the outermost to the innermost (tp): the name of each, the offset of its
 * coordinate in a GridPlace, and the offset of its communicator in a Grid. */
static const struct {
    const char *name;
    size_t number, comm;
} axis[] = {{"pp", offsetof(GridPlace, pp), offsetof(Grid, pp)},
            {"dp", offsetof(GridPlace, dp), offsetof(Grid, dp)},
            {"cp", offsetof(GridPlace, cp), offsetof(Grid, cp)},
            {"tp", offsetof(GridPlace, tp), offsetof(Grid, tp)}};
enum { AXES = sizeof axis / sizeof *axis };

static int *number(GridPlace *place, int a)
{
    return (int *)((char *)place + axis[a].number);
}

static Comm *axis_comm(Grid *grid, int a)
{
    return (Comm *)((char *)grid + axis[a].comm);
}

GridPlace grid_place(GridPlace size, int rank)
{
    GridPlace at;
    for (int a = AXES - 1; a >= 0; a--) {
        *number(&at, a) = a > 0 ? rank % *number(&size, a) : rank;
        rank /= *number(&size, a);
    }
    return at;
}

/* For each axis that has several ranks, writes its name and its number in `place` (a coordinate or
 * a size), with `between` between two axes. */
static char *format_axes(GridPlace size, GridPlace place, const char *between, char *text, size_t n)
{
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < AXES && used < n; a++)
        if (*number(&size, a) > 1)
            used += (size_t)snprintf(text + used, n - used, "%s%s %d", used ? between : "",
                                     axis[a].name, *number(&place, a));
    return text;
}

char *grid_place_text(GridPlace size, int rank, char *text, size_t n)
{
    return format_axes(size, grid_place(size, rank), " ", text, n);
}

char *grid_size_text(GridPlace size, char *text, size_t n)
{
    return format_axes(size, size, " x ", text, n);
}

char *grid_shard_text(const Config *config, int data, char *text, size_t n)
{
    int shard = config_shard(config, data);
    text[0] = '\0';
    if (shard < data) snprintf(text, n, " in groups of %d", shard);
    return text;
}

bool grid_shard_is_spread_over(const int *machine, GridPlace size, int shard)
{
    const int step = size.cp * size.tp; /* between neighbours on the dp axis */
    for (int r = 0; r < size.pp * size.dp * step; r++) {
        int first = r - grid_place(size, r).dp % shard * step;
        if (machine[r] != machine[first]) return true;
    }
    return false;
}

bool grid_shard_is_spread(const Comm *world, GridPlace size, int shard)
{
    if (machines_of(world).count == 1) return false;
    int *machine = must_calloc((size_t)world->size, sizeof *machine);
    for (int r = 0; r < world->size; r++)
        machine[r] = machines_machine(world, r);
    bool spread = grid_shard_is_spread_over(machine, size, shard);
    free(machine);
    return spread;
}

/* Returns the ranks that differ from `at` only on axis `a`, in the order of their coordinates
 * there. */
static CommLine line_of(GridPlace size, GridPlace at, int a)
{
    CommLine line = {.first = 0, .stride = 1, .size = *number(&size, a)};
    *number(&at, a) = 0;
    for (int i = 0; i < AXES; i++) {
        line.first = line.first * *number(&size, i) + *number(&at, i);
        if (i > a) line.stride *= *number(&size, i);
    }
    return line;
}

/* Opens the communicator of neighbouring tensor-parallel ranks that share a key/value head. */
static Comm open_kv(Comm *tp, const GridGroups *groups)
{
    int kv = groups ? groups->kv : 0, sharers = kv > 0 && kv < tp->size ? tp->size / kv : 1;
    if (sharers == 1) return comm_self("kv");
    return comm_line(tp, "kv", (CommLine){tp->rank - tp->rank % sharers, 1, sharers});
}

static Comm open_tie(Comm *pp, const GridGroups *groups)
{
    /* A rank of a stage between the first and the last one is alone in its group. */
    bool end = pp->rank == 0 || pp->rank == pp->size - 1;
    if (groups == NULL || !groups->tied || pp->size == 1) return comm_self("tie");
    return comm_line(pp, "tie", end ? (CommLine){0, pp->size - 1, 2} : (CommLine){pp->rank, 1, 1});
}

/* Opens the communicators of ZeRO: neighbouring dp ranks (shard), and the dp ranks with the same
 * position in their group of neighbours (replicate). */
static void open_shard(Grid *grid, Comm *world, CommLine dp, int shard)
{
    int at = grid->at.dp, step = dp.stride;
    CHECK(shard > 0 && dp.size % shard == 0, "shard groups of %d of %d ranks", shard, dp.size);
    CommLine group = {dp.first + (at - at % shard) * step, step, shard},
             same = {dp.first + at % shard * step, step * shard, dp.size / shard};
    grid->shard = comm_line(world, "shard", group);
    grid->replicate = same.size > 1 ? comm_line(world, "replicate", same) : comm_self("replicate");
}

/* Returns whether shard consists of the same ranks as dp, and so can use dp's connections. */
static bool shard_is_dp(const Grid *grid)
{
    return grid->replicate.size == 1;
}

Grid grid_open(Comm *world, GridPlace size, const GridGroups *groups)
{
    int ranks = size.pp * size.dp * size.cp * size.tp, dp = 1;
    CHECK(ranks == world->size, "a grid of %d ranks in a world of %d", ranks, world->size);
    GridPlace at = grid_place(size, world->rank);
    Grid grid = {.size = size, .at = at};
    for (int a = 0; a < AXES; a++)
        *axis_comm(&grid, a) = comm_line(world, axis[a].name, line_of(size, at, a));
    open_shard(&grid, world, line_of(size, at, dp),
               groups && groups->shard > 0 ? groups->shard : size.dp);
    grid.kv = open_kv(&grid.tp, groups);
    grid.tie = open_tie(&grid.pp, groups);
    return grid;
}

Grid grid_single(void)
{
    Comm world = comm_self("world");
    Grid grid = grid_open(&world, GRID_OF_ONE, NULL);
    comm_close(&world);
    return grid;
}

GridNccl grid_nccl(const Config *config)
{
    return (GridNccl){.pp = (int)config->parallel.nccl.pp_max_ctas,
                      .dp = (int)config->parallel.nccl.dp_max_ctas,
                      .replicate = (int)config->parallel.nccl.replicate_max_ctas,
                      .tp = (int)config->parallel.nccl.tp_max_ctas,
                      .kv = (int)config->parallel.nccl.kv_max_ctas,
                      .tie = (int)config->parallel.nccl.tie_max_ctas,
                      .chunks = config->parallel.pipeline_chunks > 1,
                      .timeout = config->parallel.timeout};
}

/* Returns how a group uses NCCL. Connections for messages need much memory, so only pipeline
 * stages, which exchange messages, have them. The last and the first stage need a connection to
 * each other only if a stage has several chunks (GridNccl.chunks). */
static NcclUse use_of(const Grid *grid, const Comm *comm, const GridNccl *nccl)
{
    NcclUse use = {0};
    if (comm == &grid->pp)
        use = (NcclUse){nccl->chunks ? NCCL_IN_RING : NCCL_IN_LINE, nccl->pp};
    else if (comm == &grid->dp || comm == &grid->shard)
        use.max_ctas = nccl->dp;
    else if (comm == &grid->replicate)
        use.max_ctas = nccl->replicate;
    else if (comm == &grid->tp)
        use.max_ctas = nccl->tp;
    else if (comm == &grid->kv)
        use.max_ctas = nccl->kv;
    else if (comm == &grid->tie)
        use.max_ctas = nccl->tie;
    return use;
}

void grid_prepare(Grid *grid, Device *dev, const GridNccl *nccl)
{
    const Comm *comm[GRID_COMMS];
    grid_comms(grid, comm);
    for (int i = 0; i < GRID_COMMS; i++) {
        Comm *c = (Comm *)comm[i];
        if (c == &grid->shard && shard_is_dp(grid))
            nccl_share(c, &grid->dp);
        else
            nccl_prepare(c, dev, use_of(grid, c, nccl), nccl->timeout);
    }
}

void grid_connect(Grid *grid, Comm *world)
{
    const Comm *comm[GRID_COMMS];
    grid_comms(grid, comm);
    /* All ranks open the communicators in the same order, because nccl_start waits for the other
     * ranks of the group. NCCL also allocates memory there, so there is a barrier before and after
     * nccl_start: otherwise a rank could already use its group while another still allocates. */
    for (int i = 0; i < GRID_COMMS; i++) {
        comm_barrier(world);
        nccl_start((Comm *)comm[i]);
        comm_barrier(world);
        nccl_use_first((Comm *)comm[i]);
    }
}

void grid_comms(const Grid *grid, const Comm *comm[GRID_COMMS])
{
    int n = 0;
    for (int a = 0; a < AXES; a++)
        comm[n++] = axis_comm((Grid *)grid, a);
    comm[n++] = &grid->shard;
    comm[n++] = &grid->replicate;
    comm[n++] = &grid->kv;
    comm[n++] = &grid->tie;
}

size_t grid_reserve(const Grid *grid, const GridNccl *nccl)
{
    const Comm *comm[GRID_COMMS];
    size_t bytes = 0;
    grid_comms(grid, comm);
    for (int i = 0; i < GRID_COMMS; i++)
        /* If shard is dp, it uses dp's communicator, which is counted already. */
        if (comm[i] != &grid->shard || !shard_is_dp(grid))
            bytes += nccl_reserve(comm[i]->rank, comm[i]->size, use_of(grid, comm[i], nccl));
    return bytes;
}

int grid_fewer_channels(const Config *config)
{
    const GridNccl n = grid_nccl(config);
    const bool cut = config_shard(config, (int)config->parallel.data) < config->parallel.data;
    const struct {
        int64_t ranks;
        int max_ctas;
    } group[] = {
        {config->parallel.data, n.dp > 0 && n.dp < n.replicate && cut ? n.replicate : n.dp},
        {config->parallel.tensor, n.tp > 0 && n.tp < n.kv ? n.kv : n.tp},
        {config->parallel.pipeline, n.pp > 0 && n.pp < n.tie ? n.tie : n.pp}};
    int fewer = 0;
    for (size_t i = 0; i < sizeof group / sizeof *group && fewer == 0; i++)
        if (group[i].ranks > 1) fewer = nccl_fewer_channels(group[i].max_ctas);
    return fewer;
}

void grid_close(Grid *grid)
{
    const Comm *comm[GRID_COMMS];
    grid_comms(grid, comm);
    /* In reverse order: groups that were split from a group, or share its communicator, are closed
     * before it. */
    for (int i = GRID_COMMS; i-- > 0;)
        comm_close((Comm *)comm[i]);
}
