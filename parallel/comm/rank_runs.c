/* rank_runs.c -- see rank_runs.h. */
#include "parallel/comm/rank_runs.h"

int rank_run_next(const int *rank, int n, RankRun *run)
{
    *run = (RankRun){.first = rank[0], .stride = n > 1 ? rank[1] - rank[0] : 1};
    while (run->count < n && rank[run->count] == rank_run_at(run, run->count))
        run->count++;
    return run->count;
}

int rank_runs(const int *rank, int n, RankRun *run, int room)
{
    int runs = 0;
    for (int i = 0; i < n; runs++) {
        RankRun next;
        i += rank_run_next(rank + i, n - i, &next);
        if (runs < room) run[runs] = next;
    }
    return runs;
}

void rank_runs_gather(Comm *comm, int own, int most, int *rank)
{
    int32_t mine = own, two[2] = {mine, mine}, odd = 1;
    if (comm->size > most && comm->size > 1) {
        for (int i = 0; i < 2; i++)
            comm->ops->broadcast(comm, NULL, tensor_1d(&two[i], I32, 1), i);
        RankRun run = {.first = two[0], .stride = two[1] - two[0], .count = comm->size};
        odd = mine != rank_run_at(&run, comm->rank);
        comm->ops->all_reduce(comm, NULL, tensor_1d(&odd, I32, 1), REDUCE_MAX);
        for (int i = 0; i < comm->size && !odd; i++)
            rank[i] = rank_run_at(&run, i);
    }
    if (odd)
        comm->ops->all_gather(comm, NULL, tensor_1d(rank, I32, comm->size),
                              tensor_1d(&mine, I32, 1));
}
