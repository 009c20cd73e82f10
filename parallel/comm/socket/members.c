/* members.c -- see members.h. */
#include "parallel/comm/socket/members.h"

#include "model/core/check.h"

#include <stdlib.h>

void socket_members_create(SocketMembers *m, int size)
{
    *m = (SocketMembers){.size = size,
                         .rank = must_alloc((size_t)size * sizeof *m->rank),
                         .order = must_alloc((size_t)size * sizeof *m->order)};
    for (int i = 0; i < size; i++)
        m->rank[i] = -1;
}

void socket_members_free(SocketMembers *m)
{
    free(m->rank);
    free(m->order);
    *m = (SocketMembers){0};
}

static int by_rank(const void *a, const void *b, void *of)
{
    const int *rank = of, *x = a, *y = b;
    return (rank[*x] > rank[*y]) - (rank[*x] < rank[*y]);
}

void socket_members_index(SocketMembers *m)
{
    bool ascends = true;
    for (int i = 0; i < m->size; i++)
        m->order[i] = i;
    for (int i = 1; i < m->size; i++)
        ascends = ascends && m->rank[i - 1] < m->rank[i];
    if (!ascends) qsort_r(m->order, (size_t)m->size, sizeof *m->order, by_rank, m->rank);
    m->indexed = true;
}

int socket_members_find(const SocketMembers *m, int rank)
{
    if (!m->indexed) {
        for (int i = 0; i < m->size; i++)
            if (m->rank[i] == rank) return i;
        return -1;
    }
    int low = 0, high = m->size;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (m->rank[m->order[middle]] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->size && m->rank[m->order[low]] == rank ? m->order[low] : -1;
}

bool socket_run_is_valid(const RankRun *run, int ranks)
{
    /* Computed in 64 bits, because the numbers come from another process and might overflow 32
     * bits. */
    int64_t last = run->first + (int64_t)run->stride * ((int64_t)run->count - 1);
    return run->count >= 1 && run->first >= 0 && run->first < ranks && last >= 0 && last < ranks;
}

int socket_runs_expand(const RankRun *run, int runs, int *rank, int room, int ranks)
{
    int n = 0;
    for (int i = 0; i < runs; i++) {
        if (!socket_run_is_valid(&run[i], ranks) || run[i].count > room - n) return -1;
        for (int k = 0; k < run[i].count; k++)
            rank[n++] = rank_run_at(&run[i], k);
    }
    return n;
}
