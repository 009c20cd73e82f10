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
