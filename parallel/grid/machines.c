/* machines.c -- stores and looks up which ranks are on which machine. See machines.h. Each process
 * has one description of the world, whose size is proportional to the number of ranks. */
#include "parallel/grid/machines.h"

#include "model/core/check.h"
#include "model/core/pool.h"
#include "parallel/comm/counted.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int first, ranks;
    char *host;
} Machine;

/* The world that a launcher has started; 0 ranks: there is none. */
static struct {
    int ranks, count;
    int *machine, *local; /* of each rank: its machine, and its number among the ranks there */
    Machine *of;          /* of each machine */
} known;

void machines_forget(void)
{
    for (int m = 0; m < known.count; m++)
        free(known.of[m].host);
    free(known.of);
    free(known.machine);
    free(known.local);
    known.ranks = known.count = 0;
    known.machine = known.local = NULL;
    known.of = NULL;
}

/* A rank and its machine, for sorting the ranks by machine, and those of one machine by rank. */
typedef struct {
    int machine, rank;
} RankAt;

static int by_machine(const void *a, const void *b)
{
    const RankAt *x = a, *y = b;
    if (x->machine != y->machine) return x->machine < y->machine ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

void machines_set(int ranks, const MachineOfRank *of)
{
    CHECK(ranks >= 1, "%d ranks", ranks);
    machines_forget();
    RankAt *place = must_calloc((size_t)ranks, sizeof *place);
    int *lowest = must_calloc(
        (size_t)ranks, sizeof *lowest); /* lowest[r]: the lowest rank on the machine of rank r */
    known.machine = must_calloc((size_t)ranks, sizeof *known.machine);
    known.local = must_calloc((size_t)ranks, sizeof *known.local);
    for (int r = 0; r < ranks; r++)
        place[r] = (RankAt){of[r].machine, r};
    qsort(place, (size_t)ranks, sizeof *place, by_machine);
    for (int i = 0; i < ranks; i++) {
        bool next = i == 0 || place[i].machine != place[i - 1].machine;
        lowest[place[i].rank] = next ? place[i].rank : lowest[place[i - 1].rank];
        known.local[place[i].rank] = next ? 0 : known.local[place[i - 1].rank] + 1;
        known.count += next;
    }
    free(place);
    known.of = must_calloc((size_t)known.count, sizeof *known.of);
    for (int r = 0, count = 0; r < ranks; r++) {
        if (lowest[r] == r) {
            known.of[count] = (Machine){.first = r, .host = must_strdup(of[r].host)};
            known.machine[r] = count++;
        }
        known.machine[r] = known.machine[lowest[r]];
        known.of[known.machine[r]].ranks++;
    }
    free(lowest);
    known.ranks = ranks;
}

/* Returns whether `world` is the world that `known` describes. */
static bool is_known(const Comm *world)
{
    return world != NULL && known.ranks == world->size && !comm_is_counted(world);
}

Machines machines_of(const Comm *world)
{
    int rank = world ? world->rank : 0, size = world ? world->size : 1;
    if (!is_known(world)) return (Machines){.count = 1, .local_rank = rank, .local_ranks = size};
    int own = known.machine[rank];
    return (Machines){.count = known.count,
                      .own = own,
                      .local_rank = known.local[rank],
                      .local_ranks = known.of[own].ranks,
                      .first = known.of[own].first,
                      .joined = true};
}

int machines_machine(const Comm *world, int rank)
{
    return is_known(world) ? known.machine[rank] : 0;
}

int machines_first(const Comm *world, int machine)
{
    return is_known(world) ? known.of[machine].first : 0;
}

int machines_ranks(const Comm *world, int machine)
{
    return is_known(world) ? known.of[machine].ranks : world ? world->size : 1;
}

const char *machines_host(const Comm *world, int machine)
{
    return is_known(world) ? known.of[machine].host : "";
}

Comm machines_split(Comm *world)
{
    return comm_split(world, "machine", machines_of(world).own, world->rank);
}

void machines_share(Comm *world, void *data, size_t bytes)
{
    Tensor all = tensor_1d(data, U8, (int64_t)bytes);
    if (machines_of(world).count == 1) {
        comm_broadcast(world, NULL, all, 0);
        return;
    }
    Comm here = machines_split(world);
    comm_broadcast(&here, NULL, all, 0);
    comm_close(&here);
}

int machines_share_cores(Comm *world)
{
    Machines own = machines_of(world);
    uint64_t mine = pool_cores_hash();
    int alike = 0;
    /* Threads and forked processes have inherited the same set of CPU cores, so all of them share
     * it. */
    if (!own.joined) return own.local_ranks;
    Comm here = machines_split(world);
    uint64_t *all = must_calloc((size_t)here.size, sizeof *all);
    comm_all_gather(&here, NULL, tensor_1d(all, U8, here.size * (int64_t)sizeof mine),
                    tensor_1d(&mine, U8, sizeof mine));
    for (int r = 0; r < here.size; r++)
        alike += all[r] == mine;
    free(all);
    comm_close(&here);
    return alike;
}

char *machines_place(const Comm *world, int rank, char *text, size_t n)
{
    text[0] = '\0';
    if (machines_of(world).count > 1)
        snprintf(text, n, " on %s", machines_host(world, machines_machine(world, rank)));
    return text;
}
