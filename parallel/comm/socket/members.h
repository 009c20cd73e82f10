/* members.h -- inside parallel/comm/socket: the ranks of a group, in the group's order. */
#ifndef PARALLEL_COMM_SOCKET_MEMBERS_H
#define PARALLEL_COMM_SOCKET_MEMBERS_H

#include "parallel/comm/rank_runs.h"

#include <stdbool.h>

typedef struct {
    int size;
    int *rank;    /* [size] world ranks; -1: not known yet */
    int *order;   /* [size] if `indexed`: the members in ascending order of their ranks */
    bool indexed; /* all members are known, and socket_members_find is quick */
} SocketMembers;

/* Makes room for `size` members that are not known yet. No other function here allocates memory. */
void socket_members_create(SocketMembers *m, int size);
void socket_members_free(SocketMembers *m);
/* To be called when all members are known: makes socket_members_find quick. */
void socket_members_index(SocketMembers *m);
/* Returns the member with this world rank, or -1. */
int socket_members_find(const SocketMembers *m, int rank);

/* Returns whether the run has at least one rank, and all of its ranks are in [0, ranks). */
bool socket_run_is_valid(const RankRun *run, int ranks);
/* Writes the ranks of the runs to rank[0..room). Returns the number of ranks; -1: they do not fit,
 * or some are not in [0, ranks). */
int socket_runs_expand(const RankRun *run, int runs, int *rank, int room, int ranks);

#endif
