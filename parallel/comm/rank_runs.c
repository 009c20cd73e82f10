/* rank_runs.c -- see rank_runs.h. */
#include "parallel/comm/rank_runs.h"

int rank_runs(const int *rank, int n, RankRun *run, int room)
{
    int runs = 0;
    for (int i = 0; i < n; runs++) {
        RankRun next = {.first = rank[i], .stride = i + 1 < n ? rank[i + 1] - rank[i] : 1};
        while (i < n && rank[i] == rank_run_at(&next, next.count)) {
            next.count++;
            i++;
        }
        if (runs < room) run[runs] = next;
    }
    return runs;
}
